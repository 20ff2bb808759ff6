// SPDX-License-Identifier: Apache-2.0
#include "engine/core/config.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string_view>

#include "engine/core/suggest.h"

namespace sluice {
namespace {

std::string value_text(const YAML::Node& node, KnobKind kind) {
  if (!node.IsSequence()) return node.IsNull() ? std::string() : node.as<std::string>();
  std::string joined;
  for (const YAML::Node& item : node) {
    if (!joined.empty()) joined += list_separator(kind);
    joined += item.as<std::string>();
  }
  return joined;
}

Expected<void> apply_yaml_entry(Config& config,
                                const YAML::Node& key,
                                const YAML::Node& value,
                                std::set<std::string>& seen) {
  const auto name = key.as<std::string>();
  const Knob* knob = find_knob(name);
  if (knob == nullptr) {
    const std::string nearest = nearest_knob(name);
    return make_error(ErrorCode::kInvalidArgument,
                      "unknown key \"" + name + "\"" +
                          (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?"),
                      name);
  }
  if (!seen.insert(knob->name).second) {
    return make_error(
        ErrorCode::kInvalidArgument, "key \"" + name + "\" appears twice", knob->name);
  }
  if (value.IsMap() || (value.IsSequence() && !is_list(knob->kind))) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::string(knob->name) + " must be a single value, got \"" +
                          (value.IsMap() ? "a map" : "a list") + "\"",
                      knob->name);
  }
  return knob->set(config, *knob, value_text(value, knob->kind));
}

// Variables that are not knobs: of the process's parts, and of the scripts and tests that start it.
bool is_of_others(std::string_view name) {
  constexpr std::string_view kNames[] = {"SLUICE_PREDECESSOR",
                                         "SLUICE_INHERITED_LISTENER",
                                         "SLUICE_KUBERNETES_API",
                                         "SLUICE_KUBERNETES_ACCOUNT",
                                         "SLUICE_MODELS",
                                         "SLUICE_SKIP_PACKAGES",
                                         "SLUICE_XGRAMMAR_ROOT",
                                         "SLUICE_FULL",
                                         "SLUICE_STAGES",
                                         "SLUICE_SMOLLM2",
                                         "SLUICE_GEMMA3",
                                         "SLUICE_TEST_PYTHON",
                                         "SLUICE_ROUTER_PYTHON"};
  constexpr std::string_view kPrefixes[] = {
      "SLUICE_FUZZ_", "SLUICE_SIM_", "SLUICE_DETERMINISM_", "SLUICE_GPU_", "SLUICE_GOLDEN_"};
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// What Kubernetes gives pods for a Service called sluice, or sluice-something:
// SLUICE_PORT=tcp://10.0.0.1:80, SLUICE_SERVICE_HOST, SLUICE_SERVICE_PORT_HTTP,
// SLUICE_PORT_80_TCP_ADDR.
bool is_service_link(std::string_view name, std::string_view value) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  return name.ends_with("_SERVICE_HOST") || has("_SERVICE_PORT") ||
         (name.ends_with("_PORT") && value.starts_with("tcp://")) ||
         (has("_PORT_") && (has("_TCP") || has("_UDP")));
}

}  // namespace

const Knob* find_knob(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const Knob& knob : config_knobs()) {
    if (dashed == knob.name) return &knob;
  }
  return nullptr;
}

std::string nearest_knob(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::vector<std::string> names;
  for (const Knob& knob : config_knobs()) names.emplace_back(knob.name);
  return nearest_name(dashed, names);
}

std::string environment_name(const Knob& knob) {
  std::string name = "SLUICE_";
  for (const char* c = knob.name; *c != '\0'; ++c) {
    name += *c == '-' ? '_' : static_cast<char>(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
  }
  return name;
}

Expected<void> apply_yaml(Config& config, const std::string& path) {
  const auto fail = [&path](int line, const std::string& message, const std::string& param = {}) {
    const std::string place = line < 0 ? path : path + ":" + std::to_string(line + 1);
    return make_error(ErrorCode::kInvalidArgument, place + ": " + message, param);
  };
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return {};
    if (!root.IsMap()) return fail(-1, "must be a map of knobs, such as `port: 8000`");
    std::set<std::string> seen;
    for (const auto& entry : root) {
      const auto applied = apply_yaml_entry(config, entry.first, entry.second, seen);
      if (!applied) {
        return fail(entry.first.Mark().line, applied.error().message, applied.error().param);
      }
    }
  } catch (const YAML::BadFile&) {
    return make_error(ErrorCode::kNotFound, path + ": cannot read this configuration file");
  } catch (const YAML::Exception& error) {
    return fail(error.mark.line, error.msg);
  }
  return {};
}

Expected<void> apply_environment(Config& config) {
  for (const Knob& knob : config_knobs()) {
    const std::string name = environment_name(knob);
    const char* text = std::getenv(name.c_str());
    if (text == nullptr) continue;
    // Kubernetes gives every pod <SERVICE>_PORT=tcp://...; a Service called sluice must not break
    // the server that it exposes.
    if (name.ends_with("_PORT") && std::string_view(text).starts_with("tcp://")) continue;
    const auto applied = knob.set(config, knob, text);
    if (!applied) {
      return make_error(
          ErrorCode::kInvalidArgument, name + ": " + applied.error().message, knob.name);
    }
  }
  return {};
}

std::vector<std::string> unknown_environment() {
  std::vector<std::string> known;
  for (const Knob& knob : config_knobs()) known.push_back(environment_name(knob));
  std::vector<std::string> unknown;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t end = std::min(text.find('='), text.size());
    const std::string name(text.substr(0, end));
    const std::string_view value = text.substr(std::min(end + 1, text.size()));
    if (!name.starts_with("SLUICE_") || is_of_others(name) || is_service_link(name, value) ||
        std::ranges::find(known, name) != known.end()) {
      continue;
    }
    const std::string nearest = nearest_name(name, known);
    unknown.push_back("unknown variable " + name +
                      (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
  std::ranges::sort(unknown);
  return unknown;
}

std::string print_config(const Config& config) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const Knob& knob : config_knobs()) {
    const std::string value = knob.get(config);
    const std::string_view name = knob.name;
    if (name == "api-key" || name == "hf-token" || name == "worker-secret") {
      // A secret does not belong on a terminal or in a log.
      if (!value.empty()) {
        out << YAML::Comment(std::string(name) + ": set, not shown") << YAML::Newline;
      }
      continue;
    }
    out << YAML::Key << knob.name << YAML::Value;
    if (is_list(knob.kind)) {
      out << YAML::Flow << YAML::BeginSeq;
      std::stringstream stream(value);
      for (std::string item; std::getline(stream, item, list_separator(knob.kind));) out << item;
      out << YAML::EndSeq;
    } else if (knob.kind == KnobKind::kString) {
      out << YAML::DoubleQuoted << value;
    } else {
      out << value;
    }
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace sluice
