// SPDX-License-Identifier: Apache-2.0
#include "engine/core/sampling_params.h"

#include <array>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr double kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kMaxInt64 = 9223372036854775808.0;  // rounded up to 2^63

constexpr std::array kFields = {
    SamplingField{"temperature",
                  ParamKind::kNumber,
                  0,
                  2,
                  1,
                  "Divides the logits; 0 takes the most likely token.",
                  [](SamplingParams& p, double v) { p.temperature = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.temperature; }},
    SamplingField{"top_p",
                  ParamKind::kNumber,
                  0,
                  1,
                  1,
                  "Keeps the smallest set of tokens whose probability reaches this; 0: the first.",
                  [](SamplingParams& p, double v) { p.top_p = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.top_p; }},
    SamplingField{"top_k",
                  ParamKind::kInteger,
                  -1,
                  kMaxInt32,
                  0,
                  "Keeps the k most likely tokens; 0 or -1 keeps all.",
                  nullptr,
                  [](SamplingParams& p, int64_t v) { p.top_k = static_cast<int32_t>(v); },
                  [](const SamplingParams& p) -> double { return p.top_k; }},
    SamplingField{"min_p",
                  ParamKind::kNumber,
                  0,
                  1,
                  0,
                  "Drops tokens less likely than this share of the most likely one.",
                  [](SamplingParams& p, double v) { p.min_p = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.min_p; }},
    SamplingField{"seed",
                  ParamKind::kInteger,
                  -kMaxInt64,
                  kMaxInt64,
                  0,
                  "Same request and seed, same tokens; unset: chosen at admission.",
                  nullptr,
                  [](SamplingParams& p, int64_t v) { p.seed = static_cast<uint64_t>(v); },
                  [](const SamplingParams& p) -> double {
                    return static_cast<double>(static_cast<int64_t>(p.seed));
                  }},
    SamplingField{"max_tokens",
                  ParamKind::kInteger,
                  1,
                  kMaxInt32,
                  16,
                  "Tokens to generate at most.",
                  nullptr,
                  [](SamplingParams& p, int64_t v) { p.max_tokens = static_cast<int32_t>(v); },
                  [](const SamplingParams& p) -> double { return p.max_tokens; }},
    SamplingField{"min_tokens",
                  ParamKind::kInteger,
                  0,
                  kMaxInt32,
                  0,
                  "Nothing but max_tokens ends the answer before this many tokens.",
                  nullptr,
                  [](SamplingParams& p, int64_t v) { p.min_tokens = static_cast<int32_t>(v); },
                  [](const SamplingParams& p) -> double { return p.min_tokens; }},
    SamplingField{"ignore_eos",
                  ParamKind::kBoolean,
                  0,
                  1,
                  0,
                  "Goes on after the model's end token.",
                  [](SamplingParams& p, double v) { p.ignore_eos = v != 0; },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.ignore_eos ? 1 : 0; }},
    SamplingField{"presence_penalty",
                  ParamKind::kNumber,
                  -2,
                  2,
                  0,
                  "Lowers the logits of tokens generated before.",
                  [](SamplingParams& p, double v) { p.presence_penalty = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.presence_penalty; }},
    SamplingField{"frequency_penalty",
                  ParamKind::kNumber,
                  -2,
                  2,
                  0,
                  "The same, for each time that a token was generated.",
                  [](SamplingParams& p, double v) { p.frequency_penalty = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.frequency_penalty; }},
    SamplingField{"repetition_penalty",
                  ParamKind::kNumber,
                  0.01,
                  100,
                  1,
                  "Divides the logits of tokens in prompt and output; negative ones it multiplies.",
                  [](SamplingParams& p, double v) { p.repetition_penalty = static_cast<float>(v); },
                  nullptr,
                  [](const SamplingParams& p) -> double { return p.repetition_penalty; }},
};

std::string format_number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

tl::unexpected<Error> out_of_range(const SamplingField& field, const std::string& value) {
  const std::string name(field.name);
  return make_error(ErrorCode::kInvalidArgument,
                    name + " must be in [" + format_number(field.min) + ", " +
                        format_number(field.max) + "], got " + value + ".",
                    name);
}

}  // namespace

std::span<const SamplingField> sampling_fields() { return kFields; }

const SamplingField* find_sampling_field(std::string_view name) {
  for (const SamplingField& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Expected<void> set_sampling_field(SamplingParams& params,
                                  const SamplingField& field,
                                  double value) {
  const std::string name(field.name);
  if (!std::isfinite(value) || value < field.min || value > field.max) {
    return out_of_range(field, format_number(value));
  }
  if (field.kind != ParamKind::kNumber && value != std::floor(value)) {
    return make_error(ErrorCode::kInvalidArgument,
                      name + " must be an integer, got " + format_number(value) + ".",
                      name);
  }
  if (field.kind == ParamKind::kInteger) {
    if (value >= kMaxInt64) return out_of_range(field, format_number(value));
    field.set_integer(params, static_cast<int64_t>(value));
  } else {
    field.set(params, value);
  }
  return {};
}

Expected<void> set_sampling_integer(SamplingParams& params,
                                    const SamplingField& field,
                                    int64_t value) {
  if (field.kind != ParamKind::kInteger) {
    return set_sampling_field(params, field, static_cast<double>(value));
  }
  // Bounds are small integers or the type's own range, so this comparison is exact.
  const auto as_double = static_cast<double>(value);
  if (as_double < field.min || as_double > field.max) {
    return out_of_range(field, std::to_string(value));
  }
  field.set_integer(params, value);
  return {};
}

Expected<void> validate(const SamplingParams& params) {
  if (params.min_tokens > params.max_tokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "min_tokens must be at most max_tokens (" +
                          std::to_string(params.max_tokens) + "), got " +
                          std::to_string(params.min_tokens) + ".",
                      "min_tokens");
  }
  return {};
}

}  // namespace sluice
