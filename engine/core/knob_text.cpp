// SPDX-License-Identifier: Apache-2.0
#include "engine/core/knob_text.h"

#include <algorithm>
#include <limits>

#include "engine/core/checked.h"

namespace sluice {
namespace {

// vLLM's suffixes: k, m, g, t are powers of 1000, K, M, G, T (also Ki, KiB, ...) powers of 1024.
std::optional<uint64_t> suffix_factor(std::string_view suffix) {
  if (suffix.empty()) return 1;
  static constexpr std::string_view kDecimal = "kmgt";
  static constexpr std::string_view kBinary = "KMGT";
  const std::string_view rest = suffix.substr(1);
  const bool decimal = kDecimal.find(suffix[0]) != std::string_view::npos;
  const auto power = (decimal ? kDecimal : kBinary).find(suffix[0]);
  if (power == std::string_view::npos) return std::nullopt;
  if (!rest.empty() && (decimal || (rest != "i" && rest != "iB"))) return std::nullopt;
  uint64_t factor = 1;
  for (size_t i = 0; i <= power; ++i) factor *= decimal ? 1000 : 1024;
  return factor;
}

// Takes "e9", "E+09" and the like off the front of `text`: the power of ten, 0 where there is none.
// Helm and YAML write large integers so.
int take_exponent(std::string_view& text) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return 0;
  size_t i = text.size() > 1 && text[1] == '+' ? 2 : 1;
  const size_t begin = i;
  int exponent = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && exponent < 100; ++i) {
    exponent = 10 * exponent + (text[i] - '0');
  }
  if (i == begin) return 0;
  text.remove_prefix(i);
  return exponent;
}

// The mantissa times a power of ten, of which the fraction takes its part first.
std::optional<uint64_t> scaled(uint64_t mantissa, int exponent, uint64_t& divisor) {
  for (; exponent > 0 && divisor > 1; --exponent) divisor /= 10;
  for (; exponent > 0 && mantissa > 0; --exponent) {
    const auto next = checked_mul(mantissa, 10);
    if (!next) return std::nullopt;
    mantissa = *next;
  }
  return mantissa;
}

}  // namespace

tl::unexpected<Error> knob_error(const Knob& knob, const std::string& rule, std::string_view got) {
  return make_error(
      ErrorCode::kInvalidArgument,
      std::string(knob.name) + " must be " + rule + ", got \"" + std::string(got) + "\"",
      knob.name);
}

std::string range_rule(const Knob& knob) {
  return "an integer in [" + std::to_string(knob.min) + ", " + std::to_string(knob.max) + "]";
}

std::optional<int64_t> parse_integer(std::string_view text) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  uint64_t mantissa = 0;
  uint64_t divisor = 1;
  size_t num_digits = 0;
  size_t i = 0;
  bool in_fraction = false;
  for (; i < text.size(); ++i) {
    if (text[i] == '.' && !in_fraction) {
      in_fraction = true;
      continue;
    }
    if (text[i] < '0' || text[i] > '9') break;
    const auto tenfold = checked_mul(mantissa, 10);
    const auto sum =
        tenfold ? checked_add(*tenfold, static_cast<uint64_t>(text[i] - '0')) : std::nullopt;
    if (!sum) return std::nullopt;
    mantissa = *sum;
    ++num_digits;
    if (in_fraction) divisor *= 10;
    if (num_digits > 19) return std::nullopt;
  }
  text.remove_prefix(i);
  const auto whole = scaled(mantissa, take_exponent(text), divisor);
  const auto factor = suffix_factor(text);
  if (num_digits == 0 || !whole || !factor) return std::nullopt;
  const auto product = checked_mul(*whole, *factor);
  if (!product || *product % divisor != 0) return std::nullopt;
  const uint64_t value = *product / divisor;
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

std::string without_brackets(const std::string& text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return text;
  std::string plain;
  for (const char c : text.substr(1, text.size() - 2)) {
    if (c != '"' && c != ' ') plain += c;
  }
  return plain;
}

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(line.find_first_not_of(kBlanks), line.size());
  line.remove_prefix(begin);
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);
}

bool is_choice(const Knob& knob, const std::string& text) {
  std::stringstream stream{std::string(knob.choices)};
  for (std::string choice; std::getline(stream, choice, '|');) {
    if (choice == text) return true;
  }
  return false;
}

std::string values_text(const Knob& knob) {
  switch (knob.kind) {
    case KnobKind::kInteger:
    case KnobKind::kBytes:
      if (knob.max == std::numeric_limits<int64_t>::max())
        return "from " + std::to_string(knob.min);
      return std::to_string(knob.min) + " to " + std::to_string(knob.max);
    case KnobKind::kBoolean:
      return "true, false";
    case KnobKind::kString:
      return "text";
    case KnobKind::kStringList:
    case KnobKind::kLineList:
      return "list";
    case KnobKind::kIntegerList:
      return "list of " + std::to_string(knob.min) + " to " + std::to_string(knob.max);
    case KnobKind::kChoice: {
      std::string text;
      for (const char* c = knob.choices; *c != '\0'; ++c) {
        text += *c == '|' ? std::string(", ") : std::string(1, *c);
      }
      return text;
    }
  }
  return "";
}

}  // namespace sluice
