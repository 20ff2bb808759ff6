// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/number_pattern.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace sluice {
namespace {

struct NumberPattern {
  NumberBound min;
  NumberBound max;
  bool excludes;  // the bound 0
  std::string text;
};

// Each is one group, so that it stands beside others; no pattern of a string is the same text.
const std::array<NumberPattern, 5>& number_patterns() {
  constexpr NumberBound kNone = std::numeric_limits<NumberBound>::infinity();
  static const std::string fraction = R"((\.[0-9]+){0,1})";
  static const std::string exponent = "([eE][+-]{0,1}[0-9]+){0,1}";
  static const std::string not_negative = "(0|[1-9][0-9]*)" + fraction + exponent;
  static const std::string positive =
      R"((0\.0*[1-9][0-9]*|[1-9][0-9]*)" + fraction + ")" + exponent;
  static const std::string share = "0" + fraction + R"(([eE]-[0-9]+){0,1}|1(\.0+){0,1}|[0-9])" +
                                   fraction + "[eE]-0*[1-9][0-9]*";
  static const std::array<NumberPattern, 5> all = {{
      {0, kNone, false, "(?:" + not_negative + ")"},
      {0, kNone, true, "(?:" + positive + ")"},
      {-kNone, 0, false, "(?:-" + not_negative + "|0)"},
      {-kNone, 0, true, "(?:-" + positive + ")"},
      {0, 1, false, "(?:" + share + ")"},
  }};
  return all;
}

}  // namespace

std::string_view pattern_of_number(const SchemaForm& form) {
  const auto found = std::ranges::find_if(number_patterns(), [&](const NumberPattern& pattern) {
    return form.min == pattern.min && form.max == pattern.max &&
           form.excludes_min == (pattern.excludes && pattern.min == 0) &&
           form.excludes_max == (pattern.excludes && pattern.max == 0);
  });
  return found == number_patterns().end() ? std::string_view() : std::string_view(found->text);
}

bool is_number_pattern(std::string_view pattern) {
  return std::ranges::any_of(number_patterns(),
                             [&](const NumberPattern& known) { return known.text == pattern; });
}

}  // namespace sluice
