// SPDX-License-Identifier: Apache-2.0
// Which layers of a Hugging Face checkpoint are quantized and how, as its configuration says:
// compressed-tensors, FP8 in blocks, modelopt, GPTQ, AWQ. What tensors a layer has then is a row of
// the table in quantization.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/regex.h"
#include "quant/scheme.h"

namespace sluice {

// What the tensors of a quantized layer are called, behind the layer's name; empty: it has none.
struct SchemeNames {
  std::string_view codes;
  std::string_view scales;
  std::string_view second = {};
  std::string_view zeros = {};
  std::string_view group_index = {};
  std::string_view shape = {};
  std::string_view input_scale = {};
  std::string_view input_second = {};

  bool operator==(const SchemeNames&) const = default;
};

struct LayerScheme {
  WeightScheme weights;
  SchemeNames names;

  bool operator==(const LayerScheme&) const = default;
};

// A row of the table, whose groups, zero points and inputs are still the configuration's to say.
enum class SchemeKind : uint8_t {
  kInt8,
  kFp8,
  kFp8Block,
  kPackedInts,
  kNvfp4,
  kMxfp4,
  kModeloptNvfp4,
  kGptq,
  kAwq,
};

LayerScheme layer_scheme(SchemeKind kind);

class Quantization {
 public:
  // `layer`: "model.layers.0.self_attn.q_proj". Null: it is not quantized.
  [[nodiscard]] const LayerScheme* scheme_of(std::string_view layer) const;

  // No layer is.
  [[nodiscard]] bool empty() const { return schemes_.empty(); }

  // What the matrices of layers become, where there are no tensors to tell.
  [[nodiscard]] WeightFormat usual_format() const;

  // For the readers of configurations. A target is a layer's name, "re:" and a regular expression
  // that matches from the beginning, a name with * or ?, or "Linear": all layers. The most exact
  // one decides. kUnsupported: two schemes of one target.
  Expected<void> add(const LayerScheme& scheme,
                     const std::vector<std::string>& targets,
                     const std::string& place);
  Expected<void> ignore(const std::vector<std::string>& targets, const std::string& place);

 private:
  struct Pattern {
    std::string text;
    std::optional<Regex> regex;  // none: a name with * or ?
    size_t scheme = 0;
  };

  static Expected<std::optional<Pattern>> pattern_of(const std::string& target,
                                                     const std::string& place);
  static bool matches(const Pattern& pattern, std::string_view layer);

  std::vector<LayerScheme> schemes_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<Pattern> patterns_;  // in the order of their texts
  std::optional<size_t> of_all_;
  std::unordered_set<std::string> ignored_;
  std::vector<Pattern> ignored_patterns_;
};

}  // namespace sluice
