// SPDX-License-Identifier: Apache-2.0
// Reads the configurations of GPTQ, AWQ and auto-round: integers in groups, with zero points, for
// all layers of one size except those that an expression names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"
#include "engine/weights/neutral_fields.h"
#include "engine/weights/quant_methods.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLargestGroup = 1 << 20;
constexpr int64_t kFloatBits = 16;  // of a layer that stays floats
const std::vector<std::string> kAllLayers = {"Linear"};
constexpr std::string_view kGptqExceptions = "dynamic";
constexpr std::string_view kAutoRoundExceptions = "extra_config";

// Reads group_size: -1 is one group for all of k.
Expected<void> take_group_size(JsonFields& fields, const std::string& name, WeightScheme& scheme) {
  SLUICE_TRY(const int64_t size, fields.whole(name, -1, kLargestGroup));
  if (size == 0) return fields.wrong(name, "-1 or more than 0");
  scheme.place = size < 0 ? ScalePlace::kRow : ScalePlace::kGroup;
  scheme.group = size < 0 ? 0 : static_cast<int32_t>(size);
  return {};
}

Expected<void> take_bits(JsonFields& fields, WeightScheme& scheme) {
  const bool is_awq = scheme.packing == CodePacking::kAwq;
  const char* expected = is_awq ? "4" : "4 or 8";
  SLUICE_TRY(const int64_t bits, fields.whole("bits", 1, kFloatBits * 2));
  if (bits != 4 && (is_awq || bits != 8)) return fields.wrong("bits", expected);
  scheme.code = bits == 4 ? CodeKind::kInt4 : CodeKind::kInt8;
  return {};
}

// The order of columns is in g_idx; a single group has none.
void expect_group_index(bool is_ordered, WeightScheme& scheme) {
  scheme.has_group_index = is_ordered && scheme.place == ScalePlace::kGroup;
}

// Whether auto-round takes the text for an expression, not for a layer's name.
bool is_expression(std::string_view text) {
  return text.find_first_of("*+?^$()[]{}|\\") != std::string_view::npos;
}

// Reads what differs in layers that a name or an expression selects, from GPTQ's `dynamic`, whose
// expressions match from the beginning, and auto-round's `extra_config`, whose expressions match
// anywhere and yield to names. Layers that stay floats need no scheme: their tensors tell.
Expected<void> take_exceptions(JsonFields& fields,
                               const std::string& key,
                               const LayerScheme& usual,
                               Quantization& quantization) {
  const Json* exceptions = fields.find(key);
  if (exceptions == nullptr || *exceptions == false) return {};
  if (!exceptions->is_object()) return fields.wrong(key, "an object of layers");
  const bool is_auto_round = key == kAutoRoundExceptions;
  const auto anchor =
      is_auto_round ? Quantization::Anchor::kNone : Quantization::Anchor::kBeginning;
  for (const auto& [name, values] : exceptions->items()) {
    const std::string place = fields.place() + "." + key + "." + shown_json(Json(name));
    SLUICE_TRY(JsonFields layer, JsonFields::create(values, place));
    const Json* bits = layer.find("bits");
    const bool is_float = bits != nullptr && bits->is_number_integer() && *bits >= kFloatBits;
    if (is_float || name.starts_with("-:")) continue;
    LayerScheme scheme = usual;
    if (bits != nullptr) SLUICE_TRY_VOID(take_bits(layer, scheme.weights));
    if (layer.find("group_size") != nullptr) {
      SLUICE_TRY_VOID(take_group_size(layer, "group_size", scheme.weights));
    }
    SLUICE_TRY(scheme.weights.symmetric, layer.flag("sym", usual.weights.symmetric));
    SLUICE_TRY(const bool is_ordered, layer.flag("desc_act", usual.weights.has_group_index));
    expect_group_index(is_ordered, scheme.weights);
    SLUICE_TRY_VOID(take_neutral_fields(layer));
    SLUICE_TRY_VOID(layer.no_more());
    if (is_auto_round && !is_expression(name)) {
      quantization.except_name(scheme, name);
      continue;
    }
    const std::string expression = name.starts_with("+:") ? name.substr(2) : name;
    SLUICE_TRY_VOID(quantization.except(scheme, expression, anchor, place));
  }
  return {};
}

// Reads the rest of GPTQ's fields for a layout whose version of zero points is known.
Expected<void> read_gptq_fields(JsonFields& fields,
                                ZeroPoints zeros,
                                Quantization& quantization) {
  LayerScheme scheme = layer_scheme(SchemeKind::kGptq);
  scheme.weights.zeros = zeros;
  SLUICE_TRY_VOID(take_bits(fields, scheme.weights));
  SLUICE_TRY_VOID(take_group_size(fields, "group_size", scheme.weights));
  SLUICE_TRY(scheme.weights.symmetric, fields.flag("sym", true));
  SLUICE_TRY(const bool is_ordered, fields.flag("desc_act", false));
  expect_group_index(is_ordered, scheme.weights);
  for (const std::string_view key : {kGptqExceptions, kAutoRoundExceptions}) {
    SLUICE_TRY_VOID(take_exceptions(fields, std::string(key), scheme, quantization));
  }
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, kAllLayers, fields.place());
}

// Zero points are those of the tensors, which symmetric codes may lack.
Expected<void> read_awq_fields(JsonFields& fields, Quantization& quantization) {
  LayerScheme scheme = layer_scheme(SchemeKind::kAwq);
  // Older names of the fields.
  const bool is_old = fields.find("w_bit") != nullptr;
  if (is_old) {
    SLUICE_TRY_VOID(fields.whole("w_bit", 4, 4));
  } else {
    SLUICE_TRY_VOID(take_bits(fields, scheme.weights));
  }
  SLUICE_TRY_VOID(take_group_size(fields, is_old ? "q_group_size" : "group_size", scheme.weights));
  SLUICE_TRY(const bool has_zeros, fields.flag("zero_point", true));
  if (!has_zeros) scheme.weights.zeros = ZeroPoints::kNone;
  SLUICE_TRY_VOID(fields.flag("sym", false));
  SLUICE_TRY(const std::vector<std::string> kept, fields.names("modules_to_not_convert"));
  const std::string place = fields.place();
  SLUICE_TRY_VOID(quantization.ignore_parts(kept, place + ".modules_to_not_convert"));
  for (const std::string_view key : {kGptqExceptions, kAutoRoundExceptions}) {
    SLUICE_TRY_VOID(take_exceptions(fields, std::string(key), scheme, quantization));
  }
  SLUICE_TRY_VOID(take_neutral_fields(fields));
  SLUICE_TRY_VOID(fields.no_more());
  return quantization.add(scheme, kAllLayers, place);
}

}  // namespace

Expected<void> read_gptq(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kFormats[] = {"gptq", "gptq_v2"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  ZeroPoints zeros = ZeroPoints::kGptqV1;
  for (const char* key : {"checkpoint_format", "format"}) {
    if (fields.find(key) == nullptr) continue;
    SLUICE_TRY(const std::string format, fields.choice(key, kFormats));
    if (format == "gptq_v2") zeros = ZeroPoints::kGptqV2;
  }
  return read_gptq_fields(fields, zeros, quantization);
}

Expected<void> read_awq(const Json& config, const std::string& place, Quantization& quantization) {
  constexpr std::string_view kFormats[] = {"gemm"};
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  // One layout under three names, of which writers use some.
  bool has_any = false;
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    if (fields.find(key) == nullptr) continue;
    SLUICE_TRY_VOID(fields.choice(key, kFormats, true));
    has_any = true;
  }
  if (!has_any) return fields.wrong("version", "\"gemm\"");
  return read_awq_fields(fields, quantization);
}

// auto-round's own method is one of the others' layouts, by `packing_format` (`backend` in its
// first versions).
Expected<void> read_auto_round(const Json& config,
                               const std::string& place,
                               Quantization& quantization) {
  struct Packing {
    std::string_view name;
    ZeroPoints zeros;
  };
  constexpr Packing kPackings[] = {
      {"auto_round:auto_gptq", ZeroPoints::kGptqV1},
      {"auto_round:gptq", ZeroPoints::kGptqV1},
      {"auto_round:gptqmodel", ZeroPoints::kGptqV2},
      {"auto_round", ZeroPoints::kGptqV2},
      {"auto_round:auto_awq", ZeroPoints::kAwq},
      {"auto_round:awq", ZeroPoints::kAwq},
  };
  SLUICE_TRY(JsonFields fields, JsonFields::create(config, place));
  const char* const key = fields.find("packing_format") != nullptr ? "packing_format" : "backend";
  std::vector<std::string_view> names;
  for (const Packing& packing : kPackings) names.push_back(packing.name);
  SLUICE_TRY(const std::string name, fields.choice(key, names));
  const ZeroPoints zeros = std::ranges::find(kPackings, name, &Packing::name)->zeros;
  return zeros == ZeroPoints::kAwq ? read_awq_fields(fields, quantization)
                                   : read_gptq_fields(fields, zeros, quantization);
}

}  // namespace sluice
