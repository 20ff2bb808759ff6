// SPDX-License-Identifier: Apache-2.0
#include "server/traces/trace_settings.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace sluice {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string text_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

tl::unexpected<Error> refused(const std::string& name,
                              const std::string& value,
                              const std::string& rule) {
  return make_error(
      ErrorCode::kInvalidArgument, name + ": '" + value + "' is not " + rule + ".", name);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return (c >= 0 && c < ' ') || c == '\x7F'; });
}

// Tells whether a header or an attribute may have this name: nothing in it would end it.
bool is_name(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~' && c != ':'; });
}

// "key=value,key=value".
Expected<Pairs> pairs_of(const Environment& environment, const char* name) {
  const std::string text = text_of(environment, name);
  Pairs pairs;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = trimmed(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    std::string value =
        equals == std::string_view::npos ? "" : percent_decoded(trimmed(item.substr(equals + 1)));
    const std::string_view key = trimmed(item.substr(0, std::min(equals, item.size())));
    if (equals == std::string_view::npos || !is_name(key) || has_control(value)) {
      return refused(name, text, "a list of key=value");
    }
    pairs.emplace_back(key, std::move(value));
  }
  return pairs;
}

// The signal's path is appended to a base URL; a URL for this signal alone is used unchanged.
Expected<std::string> url_of(const Config& config, const Environment& environment) {
  std::string name = "otlp-traces-endpoint";
  std::string url = config.otlp_traces_endpoint;
  bool is_base = false;
  if (url.empty()) {
    name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    url = text_of(environment, name.c_str());
  }
  if (url.empty()) {
    name = "OTEL_EXPORTER_OTLP_ENDPOINT";
    url = text_of(environment, name.c_str());
    is_base = true;
  }
  if (url.empty()) return url;
  const size_t scheme = url.find("://");
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http || has_control(url) || url.find(' ') != std::string::npos) {
    return refused(name, url, "a URL of http or https (OTLP over HTTP; gRPC's port takes none)");
  }
  const size_t slash = url.find('/', scheme + 3);
  const bool has_path = slash != std::string::npos && slash + 1 < url.size();
  while (url.ends_with('/')) url.pop_back();
  if (is_base || !has_path) url += "/v1/traces";
  return url;
}

Expected<void> read_sampler(const Environment& environment, TraceSettings& settings) {
  constexpr const char* kArgument = "OTEL_TRACES_SAMPLER_ARG";
  std::string_view sampler;
  const std::string given = text_of(environment, "OTEL_TRACES_SAMPLER");
  sampler = given.empty() ? std::string_view("parentbased_always_on") : given;
  settings.follows_parent = sampler.starts_with("parentbased_");
  if (settings.follows_parent) sampler.remove_prefix(std::string_view("parentbased_").size());
  if (sampler == "always_on") return {};
  if (sampler == "always_off") {
    settings.ratio = 0;
    return {};
  }
  if (sampler != "traceidratio") {
    return refused("OTEL_TRACES_SAMPLER",
                   given,
                   "always_on, always_off or traceidratio, with or without parentbased_");
  }
  const std::string ratio = text_of(environment, kArgument);
  if (ratio.empty()) return {};
  const auto [end, error] =
      std::from_chars(ratio.data(), ratio.data() + ratio.size(), settings.ratio);
  const bool is_whole = error == std::errc() && end == ratio.data() + ratio.size();
  if (!is_whole || !(settings.ratio >= 0 && settings.ratio <= 1)) {
    return refused(kArgument, ratio, "a number from 0 to 1");
  }
  return {};
}

}  // namespace

Expected<std::optional<TraceSettings>> trace_settings(const Config& config,
                                                      const Environment& environment) {
  TraceSettings settings;
  SLUICE_TRY(settings.url, url_of(config, environment));
  const bool is_off = text_of(environment, "OTEL_SDK_DISABLED") == "true" ||
                      text_of(environment, "OTEL_TRACES_EXPORTER") == "none";
  if (settings.url.empty() || is_off) return std::optional<TraceSettings>();
  for (const char* name : {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}) {
    SLUICE_TRY(Pairs headers, pairs_of(environment, name));
    settings.headers.insert(settings.headers.end(), headers.begin(), headers.end());
  }
  SLUICE_TRY(settings.resource_attributes, pairs_of(environment, "OTEL_RESOURCE_ATTRIBUTES"));
  const std::string service = text_of(environment, "OTEL_SERVICE_NAME");
  std::erase_if(settings.resource_attributes,
                [&](const auto& pair) { return pair.first == "service.name" && !service.empty(); });
  const bool is_named = std::ranges::any_of(
      settings.resource_attributes, [](const auto& pair) { return pair.first == "service.name"; });
  if (!is_named) {
    settings.resource_attributes.emplace_back("service.name", service.empty() ? "sluice" : service);
  }
  SLUICE_TRY_VOID(read_sampler(environment, settings));
  return std::optional<TraceSettings>(std::move(settings));
}

}  // namespace sluice
