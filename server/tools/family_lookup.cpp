// SPDX-License-Identifier: Apache-2.0
#include "server/tools/families.h"

#include <algorithm>

#include "server/tools/output_format.h"

namespace sluice {
namespace {

template <typename Family>
const Family* find_family(std::span<const Family> families, std::string_view name) {
  for (const Family& family : families) {
    if (family.name == name || std::ranges::find(family.aliases, name) != family.aliases.end()) {
      return &family;
    }
  }
  return nullptr;
}

template <typename Family>
std::vector<std::string_view> names_of(std::span<const Family> families) {
  std::vector<std::string_view> names;
  for (const Family& family : families) {
    names.push_back(family.name);
    names.insert(names.end(), family.aliases.begin(), family.aliases.end());
  }
  std::ranges::sort(names);
  return names;
}

// Texts of this form spell a token; if the vocabulary lacks it they belong to other models.
bool is_control_name(std::string_view text) {
  return (text.starts_with("<|") && text.ends_with("|>")) ||
         (text.starts_with("<｜") && text.ends_with("｜>"));
}

// The length of the texts, if the template holds them all; else 0.
template <typename Texts>
size_t detected_length(const Texts& texts, std::string_view source, const Tokenizer& tokenizer) {
  size_t length = 0;
  const bool fits = std::ranges::all_of(texts, [&](std::string_view text) {
    length += text.size();
    return source.find(text) != std::string_view::npos &&
           (!is_control_name(text) || tokenizer.find_token(text) != kInvalidToken);
  });
  return fits ? length : 0;
}

// The family whose texts the template holds, of several the one with the longest.
template <typename Family>
const Family* detect(std::span<const Family> families,
                     std::string_view source,
                     const Tokenizer& tokenizer) {
  const Family* best = nullptr;
  size_t best_length = 0;
  for (const Family& family : families) {
    for (const auto& texts : family.detect) {
      const size_t length = detected_length(texts, source, tokenizer);
      if (length <= best_length) continue;
      best = &family;
      best_length = length;
    }
  }
  return best;
}

}  // namespace

const CallFamily* find_call_family(std::string_view name) {
  return find_family(call_families(), name);
}

const ReasoningFamily* find_reasoning_family(std::string_view name) {
  return find_family(reasoning_families(), name);
}

std::vector<std::string_view> call_family_names() { return names_of(call_families()); }

std::vector<std::string_view> reasoning_family_names() { return names_of(reasoning_families()); }

std::string_view name_of(const CallFamily& family) { return family.name; }

std::string_view name_of(const ReasoningFamily& family) { return family.name; }

CallIdRule id_rule_of(const CallFamily& family) { return family.id_rule; }

bool sorts_tools(const CallFamily& family) { return family.sorts_tools; }

DetectedFamilies detect_families(std::string_view template_source, const Tokenizer& tokenizer) {
  DetectedFamilies found;
  found.calls = detect(call_families(), template_source, tokenizer);
  found.reasoning = detect(reasoning_families(), template_source, tokenizer);
  if (found.calls == nullptr) return found;
  // Families that write both in one form.
  for (const ReasoningFamily& family : reasoning_families()) {
    if (family.implied_by == found.calls->name) found.reasoning = &family;
  }
  return found;
}

std::shared_ptr<const OutputFormat> resolve_format(const CallFamily* calls,
                                                   const ReasoningFamily* reasoning,
                                                   const Tokenizer& tokenizer) {
  if (calls == nullptr && reasoning != nullptr && !reasoning->implied_by.empty()) {
    calls = find_call_family(reasoning->implied_by);
  }
  return std::make_shared<const OutputFormat>(calls, reasoning, tokenizer);
}

}  // namespace sluice
