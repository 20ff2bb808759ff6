// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/quantization.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/weights/known_json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr int32_t kNvfp4Group = 16;
constexpr int32_t kMxfp4Group = 32;

// NVFP4 without its second scale, whose kind depends on the package, as do the names.
constexpr WeightScheme kNvfp4 = {.name = "NVFP4",
                                 .code = CodeKind::kE2M1,
                                 .packing = CodePacking::kNibbles,
                                 .place = ScalePlace::kGroup,
                                 .group = kNvfp4Group,
                                 .scales = ScaleType::kE4M3};

constexpr WeightScheme with_second(WeightScheme scheme, SecondScale second) {
  scheme.second = second;
  return scheme;
}

// Indexed by SchemeKind.
constexpr LayerScheme kSchemes[] = {
    {.weights = {.name = "INT8", .code = CodeKind::kInt8},
     .names = {.codes = "weight",
               .scales = "weight_scale",
               .zeros = "weight_zero_point",
               .input_scale = "input_scale"}},
    {.weights = {.name = "FP8", .code = CodeKind::kE4M3, .inputs = SchemeInputs::kE4M3Token},
     .names = {.codes = "weight",
               .scales = "weight_scale",
               .other_scales = "weight_scale_inv",  // transformers', which multiply as well
               .input_scale = "input_scale",
               .other_input_scale = "activation_scale"}},
    {.weights = {.name = "FP8 in blocks",
                 .code = CodeKind::kE4M3,
                 .place = ScalePlace::kBlock,
                 .scales = ScaleType::kAnyBlock,
                 .inputs = SchemeInputs::kE4M3Group},
     .names = {.codes = "weight", .scales = "weight_scale_inv"}},
    {.weights = {.name = "packed integers",
                 .code = CodeKind::kInt4,
                 .packing = CodePacking::kWords},
     .names = {.codes = "weight_packed",
               .scales = "weight_scale",
               .zeros = "weight_zero_point",
               .group_index = "weight_g_idx",
               .shape = "weight_shape"}},
    {.weights = with_second(kNvfp4, SecondScale::kDivisor),
     .names = {.codes = "weight_packed",
               .scales = "weight_scale",
               .second = "weight_global_scale",
               .input_second = "input_global_scale"}},
    {.weights = {.name = "MXFP4",
                 .code = CodeKind::kE2M1,
                 .packing = CodePacking::kNibbles,
                 .place = ScalePlace::kGroup,
                 .group = kMxfp4Group,
                 .scales = ScaleType::kE8M0},
     .names = {.codes = "weight_packed", .scales = "weight_scale"}},
    {.weights = with_second(kNvfp4, SecondScale::kMultiplier),
     .names = {.codes = "weight",
               .scales = "weight_scale",
               .second = "weight_scale_2",
               .input_second = "input_scale"}},
    {.weights = {.name = "GPTQ",
                 .code = CodeKind::kInt4,
                 .packing = CodePacking::kGptq,
                 .zeros = ZeroPoints::kGptqV1},
     .names = {.codes = "qweight", .scales = "scales", .zeros = "qzeros", .group_index = "g_idx"}},
    {.weights = {.name = "AWQ",
                 .code = CodeKind::kInt4,
                 .packing = CodePacking::kAwq,
                 .zeros = ZeroPoints::kAwq},
     .names = {.codes = "qweight", .scales = "scales", .zeros = "qzeros"}},
};

bool has_wildcard(std::string_view target) {
  return target.find_first_of("*?[") != std::string_view::npos;
}

// Returns the layer's stored name, and its name without wrappers of a text model.
std::vector<std::string> spellings_of(std::string_view layer) {
  std::vector<std::string> spellings = {std::string(layer)};
  for (const std::string_view prefix :
       {std::string_view("language_model."), std::string_view("model.language_model.")}) {
    if (!layer.starts_with(prefix)) continue;
    spellings.emplace_back(layer.substr(prefix.size()));
    if (!spellings.back().starts_with("model.")) spellings.push_back("model." + spellings.back());
  }
  return spellings;
}

}  // namespace

LayerScheme layer_scheme(SchemeKind kind) { return kSchemes[static_cast<size_t>(kind)]; }

Expected<std::optional<Quantization::Pattern>> Quantization::pattern_of(const std::string& target,
                                                                        const std::string& place,
                                                                        Anchor anchor) {
  constexpr std::string_view kRegex = "re:";
  if (!target.starts_with(kRegex)) {
    if (!has_wildcard(target)) return std::optional<Pattern>();
    const size_t literal = target.find_first_of("*?[\\");
    return std::optional<Pattern>({.text = target, .literal = literal, .regex = std::nullopt});
  }
  const char* const front = anchor == Anchor::kBeginning ? "\\A(?:" : "(?:";
  Expected<Regex> regex = Regex::compile(front + target.substr(kRegex.size()) + ")");
  if (!regex) {
    return make_error(ErrorCode::kUnsupported,
                      place + ": found " + shown_json(Json(target)) +
                          ", expected a regular expression: " + regex.error().message);
  }
  return std::optional<Pattern>({.text = target, .regex = std::move(*regex)});
}

Expected<void> Quantization::add(const LayerScheme& scheme,
                                 const std::vector<std::string>& targets,
                                 const std::string& place) {
  const size_t index = schemes_.size();
  schemes_.push_back(scheme);
  const auto check_other = [&](const std::string& target, size_t other) -> Expected<void> {
    if (schemes_[other] == scheme) return {};
    return make_error(ErrorCode::kUnsupported,
                      place + ": found " + shown_json(Json(target)) +
                          " with another scheme as well, expected one scheme");
  };
  for (const std::string& target : targets) {
    if (target == "Linear") {
      SLUICE_TRY_VOID(check_other(target, of_all_.value_or(index)));
      if (!of_all_) of_all_ = index;
      continue;
    }
    SLUICE_TRY(std::optional<Pattern> pattern, pattern_of(target, place));
    if (pattern) {
      pattern->scheme = index;
      const auto found = patterns_.emplace(target, std::move(*pattern)).first;
      SLUICE_TRY_VOID(check_other(target, found->second.scheme));
    } else {
      const auto found = by_name_.emplace(target, index).first;
      SLUICE_TRY_VOID(check_other(target, found->second));
    }
  }
  return {};
}

Expected<void> Quantization::ignore_all(const std::vector<std::string>& targets,
                                        const std::string& place,
                                        Names& names) {
  for (const std::string& target : targets) {
    SLUICE_TRY(std::optional<Pattern> pattern, pattern_of(target, place));
    if (pattern) {
      ignored_patterns_.push_back(std::move(*pattern));
    } else {
      names.insert(target);
    }
  }
  return {};
}

Expected<void> Quantization::ignore(const std::vector<std::string>& targets,
                                    const std::string& place) {
  return ignore_all(targets, place, ignored_);
}

Expected<void> Quantization::ignore_parts(const std::vector<std::string>& names,
                                          const std::string& place) {
  return ignore_all(names, place, ignored_parts_);
}

Expected<void> Quantization::except(const LayerScheme& scheme,
                                    const std::string& expression,
                                    Anchor anchor,
                                    const std::string& place) {
  SLUICE_TRY(std::optional<Pattern> pattern, pattern_of("re:" + expression, place, anchor));
  pattern->scheme = schemes_.size();
  pattern->place = place;
  schemes_.push_back(scheme);
  exceptions_.push_back(std::move(*pattern));
  return {};
}

void Quantization::except_name(const LayerScheme& scheme, const std::string& name) {
  named_exceptions_.emplace(name, schemes_.size());
  schemes_.push_back(scheme);
}

std::optional<size_t> Quantization::exception_of_name(
    const std::vector<std::string>& spellings) const {
  if (named_exceptions_.empty()) return std::nullopt;
  for (const std::string& name : spellings) {
    const auto found = named_exceptions_.find(name);
    if (found != named_exceptions_.end()) return found->second;
  }
  return std::nullopt;
}

Expected<void> Quantization::check_exceptions(std::string_view layer) const {
  if (exceptions_.empty()) return {};
  const std::vector<std::string> spellings = spellings_of(layer);
  if (exception_of_name(spellings)) return {};
  const Pattern* first = nullptr;
  Regex::Scanner scanner;
  for (const Pattern& pattern : exceptions_) {
    const auto is_it = [&](const auto& name) { return matches(pattern, name, scanner); };
    if (!std::ranges::any_of(spellings, is_it)) continue;
    if (first == nullptr) first = &pattern;
    if (schemes_[first->scheme] == schemes_[pattern.scheme]) continue;
    return make_error(ErrorCode::kUnsupported,
                      pattern.place + ": layer " + shown_json(Json(layer)) +
                          ": found another scheme than that of " +
                          shown_json(Json(first->text)) + ", expected one scheme");
  }
  return {};
}

bool Quantization::matches(const Pattern& pattern,
                           const std::string& layer,
                           Regex::Scanner& scanner) {
  if (!pattern.regex) {
    return layer.compare(0, pattern.literal, pattern.text, 0, pattern.literal) == 0 &&
           fnmatch(pattern.text.c_str(), layer.c_str(), 0) == 0;
  }
  Regex::Range found;
  return pattern.regex->find(layer, 0, scanner, found);
}

// Looks every run of the name's parts up, as the names may be as many as the layers.
bool Quantization::has_ignored_part(std::string_view layer) const {
  constexpr ptrdiff_t kMostDots = 64;  // no layer's name has as many
  if (ignored_parts_.empty() || std::ranges::count(layer, '.') > kMostDots) return false;
  for (size_t begin = 0;; ++begin) {
    for (size_t end = layer.find('.', begin);; end = layer.find('.', end + 1)) {
      if (ignored_parts_.contains(layer.substr(begin, end - begin))) return true;
      if (end == std::string_view::npos) break;
    }
    begin = layer.find('.', begin);
    if (begin == std::string_view::npos) return false;
  }
}

bool Quantization::is_ignored(const std::string& layer, Regex::Scanner& scanner) const {
  return ignored_.contains(layer) || has_ignored_part(layer) ||
         std::ranges::any_of(ignored_patterns_, [&](const Pattern& pattern) {
           return matches(pattern, layer, scanner);
         });
}

const LayerScheme* Quantization::scheme_of(std::string_view layer) const {
  if (schemes_.empty()) return nullptr;
  const std::vector<std::string> spellings = spellings_of(layer);
  Regex::Scanner scanner;
  const auto any = [&](const auto& is_it) { return std::ranges::any_of(spellings, is_it); };
  const auto any_matches = [&](const Pattern& pattern) {
    return any([&](const std::string& name) { return matches(pattern, name, scanner); });
  };
  if (any([&](const std::string& name) { return is_ignored(name, scanner); })) return nullptr;
  if (const auto index = exception_of_name(spellings)) return &schemes_[*index];
  for (const Pattern& pattern : exceptions_) {
    if (any_matches(pattern)) return &schemes_[pattern.scheme];
  }
  for (const std::string& name : spellings) {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return &schemes_[found->second];
  }
  for (const auto& [text, pattern] : patterns_) {
    if (any_matches(pattern)) return &schemes_[pattern.scheme];
  }
  return of_all_ ? &schemes_[*of_all_] : nullptr;
}

WeightFormat Quantization::usual_format() const {
  if (schemes_.empty()) return WeightFormat::kBF16;
  const WeightScheme& scheme = schemes_[of_all_.value_or(0)].weights;
  const int32_t group = scheme.place == ScalePlace::kBlock   ? 128
                        : scheme.place == ScalePlace::kGroup ? scheme.group
                                                             : 0;
  return plain_format(scheme.code,
                      group,
                      scheme.zeros != ZeroPoints::kNone,
                      scheme.inputs == SchemeInputs::kInt8Token)
      .value_or(WeightFormat::kBF16);
}

}  // namespace sluice
