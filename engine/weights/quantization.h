// SPDX-License-Identifier: Apache-2.0
// Which layers of a Hugging Face checkpoint are quantized and how, according to its configuration:
// compressed-tensors, FP8 in blocks, modelopt, GPTQ, AWQ. A table in quantization.cpp gives the
// tensors of each scheme.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/text/regex.h"
#include "quant/scheme.h"

namespace sluice {

// Suffixes of the names of a quantized layer's tensors; empty: it has no such tensor. The names of
// other writers stand where the usual ones do not.
struct SchemeNames {
  std::string_view codes;
  std::string_view scales;
  std::string_view other_scales = {};
  std::string_view second = {};
  std::string_view zeros = {};
  std::string_view group_index = {};
  std::string_view shape = {};
  std::string_view input_scale = {};
  std::string_view other_input_scale = {};
  std::string_view input_second = {};

  bool operator==(const SchemeNames&) const = default;
};

struct LayerScheme {
  WeightScheme weights;
  SchemeNames names;

  bool operator==(const LayerScheme&) const = default;
};

// A row of the table; groups, zero points and inputs are read from the configuration.
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
  // `layer`: "model.layers.0.self_attn.q_proj". Null: not quantized.
  [[nodiscard]] const LayerScheme* scheme_of(std::string_view layer) const;

  // True when no layer is quantized.
  [[nodiscard]] bool empty() const { return schemes_.empty(); }

  // The format of layers' matrices where no tensors tell.
  [[nodiscard]] WeightFormat usual_format() const;

  // For the readers of configurations. A target is a layer's name, "re:" and a regular expression
  // anchored at the beginning, a name with * or ?, or "Linear": all layers. The most specific
  // target decides. kUnsupported: two schemes for one target.
  Expected<void> add(const LayerScheme& scheme,
                     const std::vector<std::string>& targets,
                     const std::string& place);
  Expected<void> ignore(const std::vector<std::string>& targets, const std::string& place);
  // Takes names of layers that stay floats as transformers does: one without * or ? is that of any
  // run of a layer's parts, "mlp" of "model.layers.0.mlp.up_proj".
  Expected<void> ignore_parts(const std::vector<std::string>& names, const std::string& place);
  // For a regular expression, which decides before all targets of add(): anchored at the beginning
  // of a layer's name, or found anywhere in it.
  enum class Anchor : uint8_t { kBeginning, kNone };
  Expected<void> except(const LayerScheme& scheme,
                        const std::string& expression,
                        Anchor anchor,
                        const std::string& place);
  // For the whole name of a layer, once each, which decides before all expressions.
  void except_name(const LayerScheme& scheme, const std::string& name);

  // kUnsupported: two expressions of exceptions match the layer, with other schemes.
  [[nodiscard]] Expected<void> check_exceptions(std::string_view layer) const;

 private:
  struct Pattern {
    std::string text;
    size_t literal = 0;          // characters in front of the first * or ?
    std::optional<Regex> regex;  // none: text has * or ?
    size_t scheme = 0;
    std::string place = {};  // of an exception: where it is written
  };

  static Expected<std::optional<Pattern>> pattern_of(const std::string& target,
                                                     const std::string& place,
                                                     Anchor anchor = Anchor::kBeginning);
  static bool matches(const Pattern& pattern, const std::string& layer, Regex::Scanner& scanner);

  struct NameHash {
    using is_transparent = void;

    size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };

  using Names = std::unordered_set<std::string, NameHash, std::equal_to<>>;

  Expected<void> ignore_all(const std::vector<std::string>& targets,
                            const std::string& place,
                            Names& names);
  [[nodiscard]] bool has_ignored_part(std::string_view layer) const;
  [[nodiscard]] bool is_ignored(const std::string& layer, Regex::Scanner& scanner) const;
  // Returns the index of the scheme that an exception gives the layer by its name.
  [[nodiscard]] std::optional<size_t> exception_of_name(
      const std::vector<std::string>& spellings) const;

  std::vector<LayerScheme> schemes_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, Pattern> patterns_;  // by text, whose order decides
  std::optional<size_t> of_all_;
  Names ignored_;
  Names ignored_parts_;
  std::vector<Pattern> ignored_patterns_;
  std::vector<Pattern> exceptions_;
  std::unordered_map<std::string, size_t> named_exceptions_;
};

}  // namespace sluice
