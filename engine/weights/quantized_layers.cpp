// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/quantized_layers.h"

#include <algorithm>
#include <array>

#include "engine/core/log.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

// Whether the tensor is a static scale or offset of queries, K or V, under several writers' names.
bool is_cache_scale(std::string_view name) {
  for (const char* suffix : {".k_scale",
                             ".v_scale",
                             ".q_scale",
                             ".prob_scale",
                             ".k_proj.k_bias",
                             ".v_proj.v_bias",
                             ".k_proj.output_scale",
                             ".v_proj.output_scale"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

struct NamedRole {
  CompanionRole role;
  std::string_view SchemeNames::*name;
};

constexpr NamedRole kRoles[] = {
    {CompanionRole::kScales, &SchemeNames::scales},
    {CompanionRole::kSecondScale, &SchemeNames::second},
    {CompanionRole::kZeros, &SchemeNames::zeros},
    {CompanionRole::kGroupIndex, &SchemeNames::group_index},
    {CompanionRole::kShape, &SchemeNames::shape},
    {CompanionRole::kInputScale, &SchemeNames::input_scale},
    {CompanionRole::kInputSecondScale, &SchemeNames::input_second},
};

bool is_needed(CompanionRole role, const WeightScheme& scheme) {
  switch (role) {
    case CompanionRole::kScales:
      return true;
    case CompanionRole::kSecondScale:
      return scheme.second != SecondScale::kNone;
    case CompanionRole::kZeros:
      return scheme.zeros != ZeroPoints::kNone;
    case CompanionRole::kGroupIndex:
      return scheme.has_group_index;
    case CompanionRole::kInputScale:
      return scheme.static_inputs;
    default:
      return false;
  }
}

// A scheme may omit zero points, but existing ones apply.
WeightScheme with_parts(WeightScheme scheme, bool has_zeros) {
  if (!has_zeros || scheme.zeros != ZeroPoints::kNone) return scheme;
  scheme.zeros = scheme.packing == CodePacking::kWords ? ZeroPoints::kWords
                 : scheme.packing == CodePacking::kAwq ? ZeroPoints::kAwq
                                                       : ZeroPoints::kBytes;
  return scheme;
}

}  // namespace

Expected<bool> QuantizedLayers::take(const SafetensorsTensor& tensor, const std::string& path) {
  if (!tensor.type) return false;
  if (is_cache_scale(tensor.name)) {
    if (!has_cache_scales_) {
      warn_of_file(path, tensor.name, "a scale for all of a cache", "a scale for each of its rows");
    }
    has_cache_scales_ = true;
    return true;
  }
  if (quantization_.empty()) return false;
  const size_t dot = tensor.name.rfind('.');
  if (dot == std::string::npos) return false;
  const std::string name = tensor.name.substr(0, dot);
  const std::string suffix = tensor.name.substr(dot + 1);
  auto found = layers_.find(name);
  if (found == layers_.end()) {
    SLUICE_TRY_VOID(quantization_.check_exceptions(name));
    const LayerScheme* scheme = quantization_.scheme_of(name);
    found = layers_.emplace(name, Layer{.scheme = scheme, .parts = {}}).first;
  }
  Layer& layer = found->second;
  if (layer.scheme == nullptr) return false;
  const SchemeNames& names = layer.scheme->names;
  // A layer with a float weight is not quantized, whatever the configuration says.
  const bool is_codes = suffix == names.codes && !float_format(*tensor.type);
  const bool is_companion = std::ranges::any_of(
      kRoles, [&](const NamedRole& role) { return suffix == names.*role.name; });
  if (!is_codes && !is_companion) return false;
  const auto [part, is_new] = layer.parts.emplace(suffix, Part{tensor, path});
  if (is_new) return true;
  return make_error(ErrorCode::kDataLoss,
                    path + ": tensor " + sluice::in_quotes(tensor.name) + ": found one in " +
                        part->second.path + " as well, expected one");
}

Expected<QuantizedLayer> QuantizedLayers::join_one(const std::string& name, const Layer& layer) {
  const SchemeNames& names = layer.scheme->names;
  const auto wrong = [](const Part& at, const std::string& found, const std::string& expected) {
    return make_error(ErrorCode::kDataLoss,
                      at.path + ": tensor " + sluice::in_quotes(at.tensor.name) + ": found " + found +
                          ", expected " + expected);
  };
  const auto codes = layer.parts.find(names.codes);
  if (codes == layer.parts.end()) {
    return wrong(layer.parts.begin()->second,
                 "no codes beside it",
                 sluice::in_quotes(name + "." + std::string(names.codes)));
  }
  const Part& of_codes = codes->second;
  if (of_codes.tensor.unreadable) return tl::unexpected(*of_codes.tensor.unreadable);
  std::vector<Companion> companions;
  for (const auto& [role, member] : kRoles) {
    const std::string_view suffix = names.*member;
    const auto found = suffix.empty() ? layer.parts.end() : layer.parts.find(suffix);
    if (found != layer.parts.end()) {
      const SafetensorsTensor& tensor = found->second.tensor;
      companions.push_back({.role = role,
                            .name = tensor.name,
                            .type = *tensor.type,
                            .shape = tensor.shape,
                            .bytes = tensor.data});
    } else if (is_needed(role, layer.scheme->weights)) {
      return wrong(of_codes,
                   "no tensor " + sluice::in_quotes(name + "." + std::string(suffix)),
                   "one beside it");
    }
  }
  const bool has_zeros = !names.zeros.empty() && layer.parts.contains(names.zeros);
  Expected<CodedMatrix> matrix = CodedMatrix::create(with_parts(layer.scheme->weights, has_zeros),
                                                     {.name = of_codes.tensor.name,
                                                      .type = *of_codes.tensor.type,
                                                      .shape = of_codes.tensor.shape,
                                                      .bytes = of_codes.tensor.data},
                                                     std::move(companions));
  if (!matrix) {
    Error error = std::move(matrix).error();
    std::string path = of_codes.path;
    for (const auto& [suffix, part] : layer.parts) {
      if (error.message.starts_with("tensor \"" + part.tensor.name + "\"")) path = part.path;
    }
    error.message = path + ": " + error.message;
    return tl::unexpected(std::move(error));
  }
  return QuantizedLayer{.name = name,
                        .file = of_codes.path,
                        .matrix = std::make_shared<const CodedMatrix>(std::move(*matrix))};
}

Expected<std::vector<QuantizedLayer>> QuantizedLayers::join() const {
  std::vector<QuantizedLayer> joined;
  bool has_warned = false;
  for (const auto& [name, layer] : layers_) {
    if (layer.parts.empty()) continue;
    SLUICE_TRY(QuantizedLayer one, join_one(name, layer));
    if (one.matrix->has_other_zeros() && !has_warned) {
      has_warned = true;
      warn_of_file(layer.parts.begin()->second.path,
                   one.matrix->companion(CompanionRole::kZeros)->name,
                   "zero points of another version than the configuration's",
                   "what they are by their values");
    }
    joined.push_back(std::move(one));
  }
  return joined;
}

}  // namespace sluice
