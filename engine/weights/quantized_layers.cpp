// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/quantized_layers.h"

#include <algorithm>
#include <array>
#include <iterator>

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
  std::string_view SchemeNames::*other = nullptr;

  // Returns the role's names in this scheme; empty: the scheme has no such tensor.
  [[nodiscard]] std::array<std::string_view, 2> suffixes(const SchemeNames& names) const {
    return {names.*name, other == nullptr ? std::string_view() : names.*other};
  }
};

constexpr NamedRole kRoles[] = {
    {CompanionRole::kScales, &SchemeNames::scales, &SchemeNames::other_scales},
    {CompanionRole::kSecondScale, &SchemeNames::second},
    {CompanionRole::kZeros, &SchemeNames::zeros},
    {CompanionRole::kGroupIndex, &SchemeNames::group_index},
    {CompanionRole::kShape, &SchemeNames::shape},
    {CompanionRole::kInputScale, &SchemeNames::input_scale, &SchemeNames::other_input_scale},
    {CompanionRole::kInputSecondScale, &SchemeNames::input_second},
};

// What follows the name of all experts' matrices in one tensor, such as "mlp.experts.down_proj".
constexpr SchemeNames kStackNames = {
    .codes = "", .scales = "_scale_inv", .input_scale = "_activation_scale"};

bool is_in_stack(std::string_view stored) {
  const size_t dot = stored.rfind('.');
  return dot != std::string_view::npos && stored.substr(0, dot).ends_with(".experts");
}

// Cuts a tensor's name into a layer's and a suffix; no layer: the name has one part only.
std::array<std::string_view, 2> layer_and_suffix(std::string_view stored, bool is_stack) {
  if (!is_stack) {
    const size_t dot = stored.rfind('.');
    if (dot == std::string_view::npos) return {"", stored};
    return {stored.substr(0, dot), stored.substr(dot + 1)};
  }
  for (const std::string_view suffix : {kStackNames.scales, kStackNames.input_scale}) {
    const size_t end = stored.size() - std::min(stored.size(), suffix.size());
    if (stored.ends_with(suffix)) return {stored.substr(0, end), suffix};
  }
  return {stored, ""};
}

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

Expected<bool> QuantizedLayers::take(const FileTensor& tensor, const std::string& path) {
  if (!tensor.type) return false;
  if (is_cache_scale(tensor.name)) {
    if (!has_cache_scales_) {
      warn_of_file(path, tensor.name, "a scale for all of a cache", "a scale for each of its rows");
    }
    has_cache_scales_ = true;
    return true;
  }
  if (quantization_.empty()) return false;
  const bool is_stack = takes_stacks_ && is_in_stack(tensor.name);
  const auto [name, suffix] = layer_and_suffix(tensor.name, is_stack);
  if (name.empty()) return false;
  auto found = layers_.find(name);
  if (found == layers_.end()) {
    SLUICE_TRY_VOID(quantization_.check_exceptions(name));
    const LayerScheme* scheme = quantization_.scheme_of(name);
    if (is_stack && scheme != nullptr && scheme->weights.code != CodeKind::kE4M3) scheme = nullptr;
    Layer layer{.scheme = scheme, .names = {}, .is_stack = is_stack, .parts = {}};
    if (scheme != nullptr) layer.names = is_stack ? kStackNames : scheme->names;
    found = layers_.emplace(name, std::move(layer)).first;
  }
  Layer& layer = found->second;
  if (layer.scheme == nullptr) return false;
  // A layer with a float weight is not quantized, whatever the configuration says.
  const bool is_codes = suffix == layer.names.codes && !float_format(*tensor.type);
  const bool is_companion = !suffix.empty() && std::ranges::any_of(kRoles, [&](const auto& role) {
    return std::ranges::count(role.suffixes(layer.names), suffix) > 0;
  });
  if (!is_codes && !is_companion) return false;
  const auto [part, is_new] = layer.parts.emplace(suffix, Part{tensor, path});
  if (is_new) return true;
  return make_error(ErrorCode::kDataLoss,
                    path + ": tensor " + sluice::in_quotes(tensor.name) + ": found one in " +
                        part->second.path + " as well, expected one");
}

tl::unexpected<Error> QuantizedLayers::wrong(const Part& at,
                                             const std::string& found,
                                             const std::string& expected) {
  return make_error(ErrorCode::kDataLoss,
                    at.path + ": tensor " + sluice::in_quotes(at.tensor.name) + ": found " + found +
                        ", expected " + expected);
}

std::string QuantizedLayers::stored_name(const std::string& layer_name,
                                         const Layer& layer,
                                         std::string_view suffix) {
  return sluice::in_quotes(layer_name + (layer.is_stack ? "" : ".") + std::string(suffix));
}

Expected<const QuantizedLayers::Part*> QuantizedLayers::codes_of(const std::string& name,
                                                                 const Layer& layer) {
  const auto codes = layer.parts.find(layer.names.codes);
  if (codes == layer.parts.end()) {
    return wrong(layer.parts.begin()->second,
                 "no codes beside it",
                 stored_name(name, layer, layer.names.codes));
  }
  if (codes->second.tensor.unreadable) return tl::unexpected(*codes->second.tensor.unreadable);
  return &codes->second;
}

// Null: the scheme can do without.
Expected<const QuantizedLayers::Part*> QuantizedLayers::companion_of(const std::string& name,
                                                                     const Layer& layer,
                                                                     size_t role) {
  const Part* found = nullptr;
  std::string looked_for;
  for (const std::string_view suffix : kRoles[role].suffixes(layer.names)) {
    if (suffix.empty()) continue;
    looked_for += (looked_for.empty() ? "" : " or ") + stored_name(name, layer, suffix);
    const auto at = layer.parts.find(suffix);
    if (at == layer.parts.end()) continue;
    if (found != nullptr) {
      return wrong(at->second, sluice::in_quotes(found->tensor.name) + " beside it", "one of them");
    }
    found = &at->second;
  }
  if (found != nullptr || !is_needed(kRoles[role].role, layer.scheme->weights)) return found;
  SLUICE_TRY(const Part* codes, codes_of(name, layer));
  return wrong(*codes, "no tensor " + looked_for, "one beside it");
}

Expected<QuantizedLayer> QuantizedLayers::join_one(const std::string& name, const Layer& layer) {
  const SchemeNames& names = layer.names;
  SLUICE_TRY(const Part* codes, codes_of(name, layer));
  const Part& of_codes = *codes;
  std::vector<Companion> companions;
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    SLUICE_TRY(const Part* part, companion_of(name, layer, i));
    if (part == nullptr) continue;
    const FileTensor& tensor = part->tensor;
    companions.push_back({.role = kRoles[i].role,
                          .name = tensor.name,
                          .type = *tensor.type,
                          .shape = tensor.shape,
                          .bytes = tensor.data});
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
  return QuantizedLayer{.name = name + (layer.is_stack ? "" : ".weight"),
                        .file = of_codes.path,
                        .matrix = std::make_shared<const CodedMatrix>(std::move(*matrix))};
}

// Cuts a stack with a scale for each expert into matrices of their own: gate rows lie before up
// rows and have the same scales.
Expected<std::vector<QuantizedLayer>> QuantizedLayers::split_stack(const std::string& name,
                                                                   const Layer& layer) {
  SLUICE_TRY(const Part* codes, codes_of(name, layer));
  const FileTensor& stack = codes->tensor;
  const size_t dot = name.rfind('.');
  const bool is_pair = name.substr(dot + 1) == "gate_up_proj";
  const std::vector<std::string> halves =
      is_pair ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector{name.substr(dot + 1)};
  if (stack.shape.size() != 3 || stack.shape[0] == 0 || stack.shape[1] % halves.size() != 0) {
    return wrong(*codes, "another shape", "[experts, rows, columns]");
  }
  const size_t num_experts = stack.shape[0];
  std::vector<const Part*> companions;
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    SLUICE_TRY(const Part* part, companion_of(name, layer, i));
    if (part == nullptr) continue;
    const FileTensor& scales = part->tensor;
    const auto size = static_cast<size_t>(element_info(*scales.type).bytes);
    const bool fits = float_format(*scales.type) && scales.data.size() == num_experts * size;
    if (!fits) return wrong(*part, "another type or shape", "a float for each expert");
    companions.push_back(part);
  }
  std::vector<QuantizedLayer> matrices;
  const std::vector<uint64_t> shape = {stack.shape[1] / halves.size(), stack.shape[2]};
  for (size_t e = 0; e < num_experts; ++e) {
    for (size_t half = 0; half < halves.size(); ++half) {
      Layer one{.scheme = layer.scheme, .names = layer.names, .is_stack = true, .parts = {}};
      const auto add = [&](const Part& part, std::string_view suffix, size_t index, size_t count) {
        FileTensor piece = part.tensor;
        piece.data = part.tensor.data.subspan(index * (part.tensor.data.size() / count),
                                              part.tensor.data.size() / count);
        piece.shape = suffix.empty() ? shape : std::vector<uint64_t>();
        one.parts.emplace(suffix, Part{std::move(piece), part.path});
      };
      add(*codes, "", e * halves.size() + half, num_experts * halves.size());
      for (const Part* part : companions) {
        add(*part, std::string_view(part->tensor.name).substr(name.size()), e, num_experts);
      }
      SLUICE_TRY(QuantizedLayer matrix, join_one(name, one));
      matrix.name = name.substr(0, dot + 1) + std::to_string(e) + "." + halves[half] + ".weight";
      matrices.push_back(std::move(matrix));
    }
  }
  return matrices;
}

Expected<std::vector<QuantizedLayer>> QuantizedLayers::join() const {
  std::vector<QuantizedLayer> joined;
  bool has_warned = false;
  for (const auto& [name, layer] : layers_) {
    if (layer.parts.empty()) continue;
    if (layer.is_stack && layer.scheme->weights.place == ScalePlace::kMatrix) {
      SLUICE_TRY(std::vector<QuantizedLayer> experts, split_stack(name, layer));
      std::ranges::move(experts, std::back_inserter(joined));
      continue;
    }
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
