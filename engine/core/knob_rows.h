// SPDX-License-Identifier: Apache-2.0
// Builders for the rows of config_knobs.cpp: one function per type of a Config member.
#pragma once

#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/knob_text.h"

namespace sluice {

template <auto kMember>
Expected<void> set_integer(Config& config, const Knob& knob, const std::string& text) {
  const auto value = parse_integer(text);
  if (!value || *value < knob.min || *value > knob.max) {
    return knob_error(knob, range_rule(knob), text);
  }
  config.*kMember = static_cast<std::remove_reference_t<decltype(config.*kMember)>>(*value);
  return {};
}

template <auto kMember>
std::string get_integer(const Config& config) {
  return std::to_string(config.*kMember);
}

// The value 0 means "chosen at start" and is written as auto (-1 is also accepted, as in vLLM).
template <auto kMember>
Expected<void> set_integer_or_auto(Config& config, const Knob& knob, const std::string& text) {
  if (text == "auto" || text == "-1") {
    config.*kMember = 0;
    return {};
  }
  const auto value = parse_integer(text);
  if (!value || *value < knob.min || *value > knob.max) {
    return knob_error(knob, "auto or " + range_rule(knob), text);
  }
  config.*kMember = static_cast<std::remove_reference_t<decltype(config.*kMember)>>(*value);
  return {};
}

template <auto kMember>
std::string get_integer_or_auto(const Config& config) {
  return config.*kMember == 0 ? "auto" : std::to_string(config.*kMember);
}

template <auto kMember>
Expected<void> set_boolean(Config& config, const Knob& knob, const std::string& given) {
  const std::string text = lower_case(given);
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (text == yes) {
      config.*kMember = true;
      return {};
    }
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (text == no) {
      config.*kMember = false;
      return {};
    }
  }
  return knob_error(knob, "true or false", given);
}

template <auto kMember>
std::string get_boolean(const Config& config) {
  return config.*kMember ? "true" : "false";
}

template <auto kMember>
Expected<void> set_string(Config& config, const Knob&, const std::string& text) {
  config.*kMember = text;
  return {};
}

template <auto kMember>
std::string get_string(const Config& config) {
  return config.*kMember;
}

template <auto kMember>
Expected<void> set_list(Config& config, const Knob& knob, const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(without_brackets(text));
  for (std::string item; std::getline(stream, item, ',');) {
    if (item.empty()) return knob_error(knob, "a comma-separated list without empty items", text);
    items.push_back(item);
  }
  config.*kMember = std::move(items);
  return {};
}

template <auto kMember>
std::string get_list(const Config& config) {
  std::string joined;
  for (const std::string& item : config.*kMember) {
    if (!joined.empty()) joined += ',';
    joined += item;
  }
  return joined;
}

// Values may be secrets: errors do not show them.
template <auto kMember>
Expected<void> set_lines(Config& config, const Knob& knob, const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::string_view value = trimmed(line);
    if (value.empty()) {
      return make_error(
          ErrorCode::kInvalidArgument, std::string(knob.name) + " has an empty line", knob.name);
    }
    lines.emplace_back(value);
  }
  config.*kMember = std::move(lines);
  return {};
}

template <auto kMember>
std::string get_lines(const Config& config) {
  std::string joined;
  for (const std::string& line : config.*kMember) {
    if (!joined.empty()) joined += '\n';
    joined += line;
  }
  return joined;
}

template <auto kMember>
Expected<void> set_integer_list(Config& config, const Knob& knob, const std::string& text) {
  std::vector<int32_t> values;
  std::stringstream stream(without_brackets(text));
  for (std::string item; std::getline(stream, item, ',');) {
    const auto value = parse_integer(item);
    if (!value || *value < knob.min || *value > knob.max) {
      return knob_error(knob, "a comma-separated list, each " + range_rule(knob), text);
    }
    values.push_back(static_cast<int32_t>(*value));
  }
  config.*kMember = std::move(values);
  return {};
}

template <auto kMember>
std::string get_integer_list(const Config& config) {
  std::string joined;
  for (const int32_t value : config.*kMember) {
    if (!joined.empty()) joined += ',';
    joined += std::to_string(value);
  }
  return joined;
}

// Sets a choice; choices are in lower case, the given value may be in any.
template <auto kMember>
Expected<void> set_choice(Config& config, const Knob& knob, const std::string& given) {
  const std::string text = lower_case(given);
  if (!is_choice(knob, text)) {
    return knob_error(knob, "one of " + std::string(knob.choices), given);
  }
  if constexpr (std::is_same_v<decltype(Config::model),
                               std::remove_reference_t<decltype(config.*kMember)>>) {
    config.*kMember = text;
  } else {
    config.*kMember = static_cast<int32_t>(*parse_integer(text));
  }
  return {};
}

template <auto kMember>
std::string get_choice(const Config& config) {
  if constexpr (std::is_same_v<const std::string&, decltype((config.*kMember))>) {
    return config.*kMember;
  } else {
    return std::to_string(config.*kMember);
  }
}

struct Range {
  int64_t min;
  int64_t max;
};

using Text = const char*;

template <auto M>
Knob integer(Text name, Text group, Text unit, Range range, Text help) {
  return {name,
          group,
          KnobKind::kInteger,
          unit,
          range.min,
          range.max,
          "",
          help,
          set_integer<M>,
          get_integer<M>};
}

template <auto M>
Knob integer_or_auto(Text name, Text group, Text unit, Range range, Text help) {
  Knob knob = integer<M>(name, group, unit, range, help);
  knob.set = set_integer_or_auto<M>;
  knob.get = get_integer_or_auto<M>;
  return knob;
}

template <auto M>
Knob bytes(Text name, Text group, Range range, Text help) {
  Knob knob = integer<M>(name, group, "bytes", range, help);
  knob.kind = KnobKind::kBytes;
  return knob;
}

template <auto M>
Knob bytes_or_auto(Text name, Text group, Range range, Text help) {
  Knob knob = integer_or_auto<M>(name, group, "bytes", range, help);
  knob.kind = KnobKind::kBytes;
  return knob;
}

template <auto M>
Knob boolean(Text name, Text group, Text help) {
  return {name, group, KnobKind::kBoolean, "", 0, 1, "", help, set_boolean<M>, get_boolean<M>};
}

template <auto M>
Knob string(Text name, Text group, Text help) {
  return {name, group, KnobKind::kString, "", 0, 0, "", help, set_string<M>, get_string<M>};
}

template <auto M>
Knob list(Text name, Text group, Text help) {
  return {name, group, KnobKind::kStringList, "", 0, 0, "", help, set_list<M>, get_list<M>};
}

template <auto M>
Knob lines(Text name, Text group, Text help) {
  return {name, group, KnobKind::kLineList, "", 0, 0, "", help, set_lines<M>, get_lines<M>};
}

template <auto M>
Knob integer_list(Text name, Text group, Text unit, Range range, Text help) {
  return {name,
          group,
          KnobKind::kIntegerList,
          unit,
          range.min,
          range.max,
          "",
          help,
          set_integer_list<M>,
          get_integer_list<M>};
}

template <auto M>
Knob choice(Text name, Text group, Text unit, Text choices, Text help) {
  return {name, group, KnobKind::kChoice, unit, 0, 0, choices, help, set_choice<M>, get_choice<M>};
}

// Return the rows of what is between the processes of a model, between workers and routers, and the
// router's.
std::vector<Knob> make_node_knobs();
std::vector<Knob> make_worker_knobs();
std::vector<Knob> make_router_knobs();

// Returns the rows of models that make vectors and scores.
std::vector<Knob> make_pooling_knobs();

}  // namespace sluice
