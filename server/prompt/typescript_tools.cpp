// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/typescript_tools.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "server/jinja/python_text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kDefinitions = "#/$defs/";
constexpr std::string_view kItself = "parameters";  // the interface that "#" refers to

// What a schema says of a value's type: the first of these that it does.
enum class Form : uint8_t {
  kNone,  // no form is known
  kAny,
  kNull,
  kReference,
  kOneOf,
  kEnum,
  kSeveral,  // a list of types' names
  kObject,
  kArray,
  kPlain,
};

Form form_of(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? Form::kAny : Form::kNull;
  if (!schema.is_object()) return Form::kNone;
  if (schema.empty()) return Form::kAny;
  if (schema.contains("$ref")) return Form::kReference;
  if (schema.contains("anyOf")) return Form::kOneOf;
  if (schema.contains("enum")) return Form::kEnum;
  const auto type = schema.find("type");
  if (type == schema.end()) return Form::kNone;
  if (type->is_array()) return Form::kSeveral;
  if (*type == "object") return Form::kObject;
  if (*type == "array") return Form::kArray;
  return type->is_string() ? Form::kPlain : Form::kNone;
}

// Null: the schema has no such member.
const Json* member(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

bool is_true(const Json* json) {
  if (json == nullptr || json->is_null()) return false;
  if (json->is_boolean()) return json->get<bool>();
  if (json->is_number()) return *json != 0;
  return json->is_string() ? *json != "" : !json->empty();
}

bool has_usable_description(const Json& schema) {
  const Json* description = member(schema, "description");
  return !is_true(description) || description->is_string();
}

std::string_view name_of_type(std::string_view type) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"string", "string"},
                                                                      {"number", "number"},
                                                                      {"integer", "number"},
                                                                      {"boolean", "boolean"},
                                                                      {"null", "null"},
                                                                      {"object", "{}"},
                                                                      {"array", "Array<any>"}};
  for (const auto& [name, written] : kNames) {
    if (name == type) return written;
  }
  return {};
}

// Python's isinstance(), to which a boolean is an integer.
bool is_of_type(const Json& value, const Json& type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number() || value.is_boolean();
  if (type == "integer") return value.is_number_integer() || value.is_boolean();
  return type != "boolean" || value.is_boolean();
}

bool is_usable_enum(const Json& schema) {
  const Json& values = schema["enum"];
  if (!values.is_array()) return false;
  const Json* type = member(schema, "type");
  if (type == nullptr) return true;
  if (type->is_array()) {
    if (type->empty() || type->size() > 2) return false;
    const bool is_first_null = (*type)[0] == "null";
    if (type->size() == 2 && !is_first_null && (*type)[1] != "null") return false;
    type = &(*type)[type->size() == 2 && is_first_null ? 1 : 0];
  }
  return std::ranges::all_of(values, [&](const Json& value) {
    return value.is_null() || is_of_type(value, *type);
  });
}

struct Property {
  bool is_optional;
  std::string_view name;
  const Json* schema;
};

// In the schema's order. Objects look members up one by one, so that each is visited once.
std::vector<Property> properties_of(const Json& schema) {
  const Json* properties = member(schema, "properties");
  if (properties == nullptr) return {};
  std::set<std::string_view> required;
  if (const Json* names = member(schema, "required")) {
    for (const Json& name : *names) {
      if (name.is_string()) required.insert(name.get_ref<const std::string&>());
    }
  }
  std::vector<Property> found;
  for (const auto& [name, one] : properties->get_ref<const Json::object_t&>()) {
    found.push_back({!required.contains(name), name, &one});
  }
  return found;
}

std::string joined(const std::vector<std::string>& texts, std::string_view separator) {
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) all += separator;
    all += texts[i];
  }
  return all;
}

// Lines of a comment; empty ones have no slashes.
std::string comment(std::string_view text, std::string_view indent) {
  std::string lines;
  while (true) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.empty()) lines.append(indent).append("// ").append(line);
    if (end == std::string_view::npos) return lines;
    lines += '\n';
    text.remove_prefix(end + 1);
  }
}

std::span<const char* const> limits_of(const Json& schema, Form form) {
  static constexpr const char* kText[] = {"maxLength", "minLength", "pattern"};
  static constexpr const char* kNumber[] = {"maximum", "minimum"};
  static constexpr const char* kArray[] = {"maxItems", "minItems"};
  if (form == Form::kArray) return kArray;
  if (form != Form::kPlain) return {};
  const Json& type = schema["type"];
  if (type == "string") return kText;
  if (type == "number" || type == "integer") return kNumber;
  return {};
}

// The comment before a value of this schema.
std::string comment_of(const Json& schema, std::string_view indent) {
  std::string lines;
  if (const Json* description = member(schema, "description"); is_true(description)) {
    lines += comment(description->get_ref<const std::string&>(), indent) + "\n";
  }
  std::vector<std::string> limits;
  for (const char* key : limits_of(schema, form_of(schema))) {
    const Json* limit = member(schema, key);
    if (limit != nullptr) limits.push_back(std::string(key) + ": " + jinja::python_str(*limit));
  }
  if (!limits.empty()) lines.append(indent).append("// ").append(joined(limits, ", ")) += '\n';
  return lines;
}

// Reads and then writes one function. Schemas are read in their order first, because a reference
// finds only definitions that stand before it.
class Function {
 public:
  explicit Function(const Json& function) : function_(function) {}

  std::optional<std::string> write();

 private:
  bool read(const Json& schema);
  bool read_reference(const Json& reference);
  bool read_object(const Json& schema);

  [[nodiscard]] std::string type_of(const Json& schema, const std::string& indent) const;
  [[nodiscard]] std::string object_of(const Json& schema, const std::string& indent) const;
  [[nodiscard]] std::string array_of(const Json& schema, const std::string& indent) const;
  [[nodiscard]] std::string line_of(const Property& property, const std::string& indent) const;

  const Json& function_;
  std::map<std::string_view, const Json*> definitions_;
  std::vector<std::string_view> defined_;  // their names, the first first
  bool refers_to_itself_ = false;
};

bool Function::read_reference(const Json& reference) {
  if (!reference.is_string()) return false;
  const auto& place = reference.get_ref<const std::string&>();
  if (place == "#") {
    refers_to_itself_ = true;
    return true;
  }
  if (!place.starts_with(kDefinitions)) return false;
  const auto found = definitions_.find(std::string_view(place).substr(place.rfind('/') + 1));
  return found != definitions_.end() && found->second->is_object();
}

bool Function::read_object(const Json& schema) {
  if (const Json* definitions = member(schema, "$defs"); is_true(definitions)) {
    if (!definitions->is_object()) return false;
    for (const auto& [name, definition] : definitions->get_ref<const Json::object_t&>()) {
      if (definitions_.insert_or_assign(name, &definition).second) defined_.push_back(name);
    }
  }
  if (const Json* others = member(schema, "additionalProperties")) {
    const bool is_known = others->is_null() || others->is_boolean();
    if (!is_known && (!others->is_object() || !read(*others))) return false;
  }
  const Json* properties = member(schema, "properties");
  if (properties == nullptr) return true;
  const Json* required = member(schema, "required");
  const auto is_name = [](const Json& name) { return !name.is_structured(); };
  const bool is_list =
      required == nullptr || (required->is_array() && std::ranges::all_of(*required, is_name));
  return is_list && properties->is_object() &&
         std::ranges::all_of(*properties, [this](const Json& one) { return read(one); });
}

bool Function::read(const Json& schema) {
  if (!has_usable_description(schema)) return false;
  const auto reads = [this](const Json& one) { return read(one); };
  switch (form_of(schema)) {
    case Form::kNone:
      return false;
    case Form::kAny:
    case Form::kNull:
    case Form::kPlain:
      return true;
    case Form::kReference:
      return read_reference(schema["$ref"]);
    case Form::kOneOf:
      return schema["anyOf"].is_array() && std::ranges::all_of(schema["anyOf"], reads);
    case Form::kEnum:
      return is_usable_enum(schema);
    case Form::kSeveral:
      return std::ranges::all_of(schema["type"], [](const Json& type) {
        return type.is_string() && !name_of_type(type.get_ref<const std::string&>()).empty();
      });
    case Form::kObject:
      return read_object(schema);
    case Form::kArray: {
      const Json* items = member(schema, "items");
      return !is_true(items) || read(*items);
    }
  }
  return false;
}

std::string Function::type_of(const Json& schema, const std::string& indent) const {
  std::vector<std::string> types;
  switch (form_of(schema)) {
    case Form::kNone:
    case Form::kAny:
      return "any";
    case Form::kNull:
      return "null";
    case Form::kReference: {
      const auto& place = schema["$ref"].get_ref<const std::string&>();
      return place == "#" ? std::string(kItself) : place.substr(place.rfind('/') + 1);
    }
    case Form::kOneOf:
      for (const Json& one : schema["anyOf"]) types.push_back(type_of(one, indent));
      return joined(types, " | ");
    case Form::kEnum:
      for (const Json& value : schema["enum"]) {
        const std::string text = jinja::python_str(value);
        types.push_back(value.is_string() ? "\"" + text + "\"" : text);
      }
      return joined(types, " | ");
    case Form::kSeveral:
      for (const Json& type : schema["type"]) {
        types.emplace_back(name_of_type(type.get_ref<const std::string&>()));
      }
      return joined(types, " | ");
    case Form::kObject:
      return object_of(schema, indent);
    case Form::kArray:
      return array_of(schema, indent);
    case Form::kPlain:
      return schema["type"] == "integer" ? "number" : schema["type"].get<std::string>();
  }
  return {};
}

std::string Function::array_of(const Json& schema, const std::string& indent) const {
  const Json* items = member(schema, "items");
  if (!is_true(items)) return "Array<any>";
  const std::string deeper = indent + std::string(kIndent);
  const std::string docs = comment_of(*items, deeper);
  if (docs.empty()) return "Array<" + type_of(*items, indent) + ">";
  return "Array<\n" + docs + deeper + type_of(*items, deeper) + "\n" + indent + ">";
}

std::string Function::line_of(const Property& property, const std::string& indent) const {
  std::string text = comment_of(*property.schema, indent);
  const Json* usual = member(*property.schema, "default");
  if (usual != nullptr && !usual->is_null()) {
    const bool is_plain = usual->is_number() || usual->is_boolean();
    text += indent + "// Default: " +
            (is_plain ? jinja::python_str(*usual) : jinja::python_json(*usual)) + "\n";
  }
  text.append(indent).append(property.name).append(property.is_optional ? "?: " : ": ");
  return text + type_of(*property.schema, indent);
}

std::string Function::object_of(const Json& schema, const std::string& indent) const {
  const std::string deeper = indent + std::string(kIndent);
  std::vector<Property> properties = properties_of(schema);
  std::ranges::sort(properties, [](const Property& a, const Property& b) {
    return std::tie(a.is_optional, a.name) < std::tie(b.is_optional, b.name);
  });
  std::vector<std::string> lines;
  for (const Property& property : properties) lines.push_back(line_of(property, deeper));
  const Json* others = member(schema, "additionalProperties");
  if (others != nullptr && !others->is_null()) {
    std::string type = *others == false ? "never" : "any";
    if (others->is_object()) type = type_of(*others, deeper);
    lines.push_back(deeper + "[k: string]: " + type);
  }
  return lines.empty() ? "{}" : "{\n" + joined(lines, ",\n") + "\n" + indent + "}";
}

std::optional<std::string> Function::write() {
  static const Json kNoParameters = Json::object();
  const Json* given = member(function_, "parameters");
  const Json& parameters = is_true(given) ? *given : kNoParameters;
  if (!read_object(parameters)) return std::nullopt;
  const bool is_interface = refers_to_itself_;
  std::vector<std::string> parts;
  if (is_interface) {
    std::vector<std::string> lines;
    for (const Property& property : properties_of(parameters)) {
      lines.push_back(line_of(property, std::string(kIndent)));
    }
    parts.push_back("interface " + std::string(kItself) + " {\n" + joined(lines, ",\n") + "\n}");
  }
  const auto defined = defined_;  // those inside a definition have no interface
  const auto definitions = definitions_;
  for (const std::string_view name : defined) {
    const Json* definition = definitions.at(name);
    if (!definition->is_object() || !read(*definition)) return std::nullopt;
    const Json* description = member(*definition, "description");
    const std::string docs =
        is_true(description) ? comment(description->get_ref<const std::string&>(), "") + "\n" : "";
    parts.push_back(docs + "interface " + std::string(name) + " " + type_of(*definition, ""));
  }
  if (const Json* description = member(function_, "description"); is_true(description)) {
    parts.push_back(comment(description->get_ref<const std::string&>(), ""));
  }
  const std::string taken = is_interface ? std::string(kItself) : object_of(parameters, "");
  parts.push_back("type " + function_["name"].get<std::string>() + " = (_: " + taken + ") => any;");
  return joined(parts, "\n");
}

}  // namespace

std::optional<std::string> typescript_of_tools(const Json& tools) {
  std::string text = "# Tools\n\n## functions\nnamespace functions {\n";
  for (const Json& tool : tools) {
    const std::optional<std::string> written = Function(tool["function"]).write();
    if (!written) return std::nullopt;
    text += *written + "\n";
  }
  return text + "}\n";
}

Json with_sorted_keys(Json json) {
  if (json.is_array()) {
    for (Json& element : json) element = with_sorted_keys(std::move(element));
  }
  if (!json.is_object()) return json;
  auto& members = json.get_ref<Json::object_t&>();
  std::vector<std::pair<std::string, Json>> sorted;
  for (auto& [key, value] : members) sorted.emplace_back(key, std::move(value));
  std::ranges::sort(sorted, {}, &std::pair<std::string, Json>::first);
  members.clear();
  for (auto& [key, value] : sorted) {
    members.push_back({std::move(key), with_sorted_keys(std::move(value))});
  }
  return json;
}

}  // namespace sluice
