// SPDX-License-Identifier: Apache-2.0
#include "server/traces/otlp_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "engine/core/hex.h"
#include "engine/core/version.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kErrorStatus = 2;

Json text_value(const std::string& text) { return {{"stringValue", text}}; }

Json value_of(const SpanValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return text_value(held);
        } else if constexpr (std::is_same_v<Held, int64_t>) {
          return {{"intValue", std::to_string(held)}};
        } else if constexpr (std::is_same_v<Held, double>) {
          return {{"doubleValue", held}};
        } else {
          Json items = Json::array();
          for (const std::string& item : held) items.push_back(text_value(item));
          return {{"arrayValue", {{"values", std::move(items)}}}};
        }
      },
      value);
}

Json attribute(const std::string& key, const SpanValue& value) {
  return {{"key", key}, {"value", value_of(value)}};
}

Json json_of(const Span& span) {
  Json json = {{"traceId", to_hex(span.context.trace_id)},
               {"spanId", to_hex(span.context.span_id)}};
  if (!span.context.state.empty()) json["traceState"] = span.context.state;
  if (span.parent != std::array<uint8_t, 8>{}) json["parentSpanId"] = to_hex(span.parent);
  json["flags"] = span.context.is_sampled ? 1 : 0;
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = std::to_string(span.start_ns);
  json["endTimeUnixNano"] = std::to_string(span.end_ns);
  Json& attributes = json["attributes"] = Json::array();
  for (const auto& [key, value] : span.attributes) attributes.push_back(attribute(key, value));
  for (const SpanEvent& event : span.events) {
    json["events"].push_back(
        {{"timeUnixNano", std::to_string(event.time_ns)}, {"name", event.name}});
  }
  if (span.is_error) json["status"] = {{"code", kErrorStatus}, {"message", span.error}};
  return json;
}

}  // namespace

std::string otlp_json(const TraceSettings& settings, std::span<const Span> spans) {
  Json resource = Json::array();
  for (const auto& [key, value] : settings.resource_attributes) {
    resource.push_back(attribute(key, value));
  }
  Json items = Json::array();
  for (const Span& span : spans) items.push_back(json_of(span));
  Json scope = {{"scope", {{"name", "sluice"}, {"version", version()}}}};
  scope["spans"] = std::move(items);
  Json whole = {{"resource", {{"attributes", std::move(resource)}}}};
  whole["scopeSpans"] = Json::array({std::move(scope)});
  const Json request = {{"resourceSpans", Json::array({std::move(whole)})}};
  // A client's text may be no UTF-8, which JSON cannot hold.
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice
