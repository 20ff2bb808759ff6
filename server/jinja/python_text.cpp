// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/python_text.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "server/jinja/json_value.h"
#include "server/jinja/print.h"

namespace sluice::jinja {
namespace {

using Json = nlohmann::ordered_json;
using Printer = std::function<Result(Runtime&, const Value&)>;

// A document beyond the limits comes as nlohmann writes it.
std::string printed(const Json& json, const Printer& print) {
  const Limits limits = {.fuel = 10'000'000,
                         .max_output_bytes = 16 << 20,
                         .max_memory_bytes = 64 << 20,
                         .max_depth = 256};
  const Clock no_clock;
  Runtime runtime(limits, no_clock);
  const auto written = [&]() -> Expected<std::string> {
    SLUICE_TRY(const auto value, json_to_value(runtime, json, Origin::kInput));
    SLUICE_TRY(const auto text, print(runtime, value));
    return std::string(text.view());
  }();
  return written ? *written : json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string python_json(const Json& json) {
  JsonStyle style;
  style.item_separator = Text(", ", Origin::kInput);
  style.key_separator = Text(": ", Origin::kInput);
  return printed(json, [&](Runtime& runtime, const Value& value) {
    return to_json(runtime, value, style);
  });
}

std::string python_str(const Json& json) { return printed(json, to_text); }

}  // namespace sluice::jinja
