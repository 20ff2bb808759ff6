// SPDX-License-Identifier: Apache-2.0
#include "server/tools/structured_outputs.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/json/json_fields.h"
#include "server/json/json_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "response_format";
constexpr std::string_view kOutputs = "structured_outputs";

constexpr size_t kMaxSchemaBytes = 256 << 10;
constexpr size_t kMaxRegexBytes = 16 << 10;
constexpr size_t kMaxGrammarBytes = 128 << 10;
constexpr size_t kMaxChoiceBytes = 1 << 20;
constexpr size_t kMaxChoices = 10000;
constexpr size_t kMaxNameBytes = 64;
constexpr int32_t kMaxSchemaDepth = 80;

Expected<void> check_size(size_t bytes,
                          size_t most,
                          const std::string& what,
                          std::string_view param) {
  if (bytes <= most) return {};
  return invalid(what + " may have at most " + std::to_string(most) + " bytes, got " +
                     std::to_string(bytes) + ".",
                 param);
}

// A schema as JSON, or as a text that holds it.
Expected<std::string> schema_text(const Json& value,
                                  const std::string& what,
                                  std::string_view param) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  SLUICE_TRY_VOID(check_size(text.size(), kMaxSchemaBytes, what, param));
  if (value.is_string()) {
    const Expected<Json> parsed = parse_json(text, kMaxSchemaDepth);
    if (!parsed) return invalid(what + " is no JSON: " + parsed.error().message, param);
    if (!parsed->is_object() && !parsed->is_boolean()) {
      return invalid(what + " must be a JSON schema, got " + show_value(*parsed) + ".", param);
    }
    return text;
  }
  if (!value.is_object() && !value.is_boolean()) {
    return invalid(what + " must be a JSON schema, got " + show_value(value) + ".", param);
  }
  return text;
}

Expected<GrammarSpec> read_json_schema(const Json& format) {
  const Json* holder = find_field(format, "json_schema");
  if (holder == nullptr || !holder->is_object()) {
    return invalid("response_format.json_schema must be an object with a `schema`.", kFormat);
  }
  const Json* name = find_field(*holder, "name");
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty() ||
      name->get_ref<const std::string&>().size() > kMaxNameBytes) {
    return invalid("response_format.json_schema.name must be a string of 1 to " +
                       std::to_string(kMaxNameBytes) + " bytes.",
                   kFormat);
  }
  const Json* schema = find_field(*holder, "schema");
  if (schema == nullptr) {
    return invalid("response_format.json_schema.schema is missing.", kFormat);
  }
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  SLUICE_TRY(const bool is_strict, read_bool(*holder, "strict", false));
  spec.is_best_effort = !is_strict;
  SLUICE_TRY(spec.text, schema_text(*schema, "response_format.json_schema.schema", kFormat));
  return spec;
}

// An older tag, of `structures` and `triggers`, in the newer form: text, in which a trigger begins
// a structure, after which text goes on.
Expected<Json> triggered_tags(const Json& tag, const std::string& what, std::string_view param) {
  const Json* structures = find_field(tag, "structures");
  const Json* triggers = find_field(tag, "triggers");
  if (structures == nullptr || !structures->is_array() || triggers == nullptr) {
    return invalid(what + " must have `format`, or `structures`, an array, and `triggers`.", param);
  }
  Json tags = Json::array();
  for (const Json& structure : *structures) {
    if (!structure.is_object()) {
      return invalid(what + ".structures must be objects, got " + show_value(structure) + ".",
                     param);
    }
    const Json* schema = find_field(structure, "schema");
    tags.push_back({{"begin", string_member(structure, "begin")},
                    {"content",
                     {{"type", "json_schema"},
                      {"json_schema", schema != nullptr ? *schema : Json::object()}}},
                    {"end", string_member(structure, "end")}});
  }
  return Json({{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}});
}

Expected<GrammarSpec> read_structural_tag(const Json& tag,
                                          const std::string& what,
                                          std::string_view param) {
  const Json* format = find_field(tag, "format");
  Json triggered;
  if (format == nullptr) {
    SLUICE_TRY(triggered, triggered_tags(tag, what, param));
    format = &triggered;
  }
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.text = Json({{"type", "structural_tag"}, {"format", *format}})
                  .dump(-1, ' ', false, Json::error_handler_t::replace);
  SLUICE_TRY_VOID(check_size(spec.text.size(), kMaxSchemaBytes, what, param));
  return spec;
}

Expected<GrammarSpec> read_format(const Json& format) {
  if (!format.is_object()) {
    return invalid("response_format must be an object, got " + show_value(format) + ".", kFormat);
  }
  const Json* type = find_field(format, "type");
  GrammarSpec spec;
  if (type == nullptr && find_field(format, "json_schema") != nullptr) {
    return invalid("response_format.type is missing.", kFormat);
  }
  if (type == nullptr || *type == "text") return spec;
  if (*type == "json_object") {
    // llama-server's form of a schema.
    if (const Json* schema = find_field(format, "schema")) {
      spec.kind = GrammarKind::kJsonSchema;
      spec.is_best_effort = true;
      SLUICE_TRY(spec.text, schema_text(*schema, "response_format.schema", kFormat));
      return spec;
    }
    spec.kind = GrammarKind::kAnyObject;
    return spec;
  }
  if (*type == "json_schema") return read_json_schema(format);
  if (*type == "structural_tag") return read_structural_tag(format, "response_format", kFormat);
  return invalid(
      "response_format.type must be one of text, json_object, json_schema, structural_tag, got " +
          show_value(*type) + ".",
      kFormat);
}

// One of the texts as a terminal of EBNF.
std::string ebnf_terminal(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";  // not "\\x", which has as many digits as follow
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

Expected<GrammarSpec> read_choice(const Json& choices) {
  if (!choices.is_array() || choices.empty() || choices.size() > kMaxChoices) {
    return invalid("structured_outputs.choice must be an array of 1 to " +
                       std::to_string(kMaxChoices) + " strings, got " + show_value(choices) + ".",
                   kOutputs);
  }
  GrammarSpec spec;
  spec.kind = GrammarKind::kEbnf;
  spec.text = "root ::= ";
  for (const Json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return invalid(
          "structured_outputs.choice must be non-empty strings, got " + show_value(choice) + ".",
          kOutputs);
    }
    if (spec.text.back() == '"') spec.text += " | ";
    spec.text += ebnf_terminal(choice.get_ref<const std::string&>());
  }
  SLUICE_TRY_VOID(
      check_size(spec.text.size(), kMaxChoiceBytes, "structured_outputs.choice", kOutputs));
  return spec;
}

Expected<GrammarSpec> read_text(const Json& value,
                                GrammarKind kind,
                                const std::string& what,
                                size_t most) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return invalid(what + " must be a non-empty string, got " + show_value(value) + ".", kOutputs);
  }
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = value.get<std::string>();
  SLUICE_TRY_VOID(check_size(spec.text.size(), most, what, kOutputs));
  if (spec.text.find('\0') != std::string::npos) {
    return invalid(what + " may not contain NUL.", kOutputs);
  }
  return spec;
}

// Returns the pattern without the escapes that Python's re.escape writes and no pattern needs: of
// white space, and of marks that mean themselves everywhere.
std::string without_needless_escapes(std::string_view pattern) {
  constexpr std::string_view kPlain = " \t\n\r\v\f!\"#%&',/:;<=>@_`~";
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool is_escape = pattern[i] == '\\' && i + 1 < pattern.size();
    if (!is_escape) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (kPlain.find(escaped) == std::string_view::npos) out += '\\';
    out += escaped;
  }
  return out;
}

Expected<GrammarSpec> read_constraint(std::string_view name, const Json& value) {
  const std::string what = std::string(kOutputs) + "." + std::string(name);
  GrammarSpec spec;
  if (name == "json") {
    spec.kind = GrammarKind::kJsonSchema;
    SLUICE_TRY(spec.text, schema_text(value, what, kOutputs));
    return spec;
  }
  if (name == "json_object") {
    if (value != true) return invalid(what + " must be true.", kOutputs);
    spec.kind = GrammarKind::kAnyObject;
    return spec;
  }
  if (name == "regex") {
    SLUICE_TRY(spec, read_text(value, GrammarKind::kRegex, what, kMaxRegexBytes));
    spec.text = without_needless_escapes(spec.text);
    return spec;
  }
  if (name == "choice") return read_choice(value);
  if (name == "structural_tag") {
    if (value.is_object()) return read_structural_tag(value, what, kOutputs);
    SLUICE_TRY(spec, read_text(value, GrammarKind::kStructuralTag, what, kMaxSchemaBytes));
    const Expected<Json> tag = parse_json(spec.text, kMaxSchemaDepth);
    const bool is_older = tag && tag->is_object() && tag->contains("structures");
    return is_older ? read_structural_tag(*tag, what, kOutputs) : std::move(spec);
  }
  SLUICE_TRY(spec, read_text(value, GrammarKind::kLark, what, kMaxGrammarBytes));
  // Lark's rules have a colon; "::=" is EBNF alone.
  if (spec.text.find("::=") != std::string::npos) spec.kind = GrammarKind::kEbnf;
  return spec;
}

// A flag may be false; a schema that is false allows nothing, which is a constraint.
bool is_unset(std::string_view name, const Json& member) {
  const bool is_flag = name == "json_object" || name.starts_with("disable_");
  return member.is_null() || (is_flag && member == false);
}

bool has_no_member_set(const Json& value) {
  return value.is_object() && std::ranges::all_of(value.items(), [](const auto& member) {
           return is_unset(member.key(), member.value());
         });
}

Expected<GrammarSpec> read_outputs(const Json& outputs) {
  if (!outputs.is_object()) {
    return invalid("structured_outputs must be an object, got " + show_value(outputs) + ".",
                   kOutputs);
  }
  static constexpr std::array<std::string_view, 6> kConstraints = {
      "json", "json_object", "regex", "choice", "grammar", "structural_tag"};
  std::string_view given;
  const Json* constraint = nullptr;
  for (const std::string_view name : kConstraints) {
    const Json* value = find_field(outputs, name);
    if (value == nullptr || is_unset(name, *value)) continue;
    if (constraint != nullptr) {
      return invalid("structured_outputs may have one constraint, got " + std::string(given) +
                         " and " + std::string(name) + ".",
                     kOutputs);
    }
    given = name;
    constraint = value;
  }
  if (constraint == nullptr) {
    return invalid(
        "structured_outputs must have one of json, json_object, regex, choice, grammar, "
        "structural_tag.",
        kOutputs);
  }
  if (find_field(outputs, "whitespace_pattern") != nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "`structured_outputs.whitespace_pattern` is not supported; leave it out.",
                      std::string(kOutputs));
  }
  SLUICE_TRY(const bool is_compact, read_bool(outputs, "disable_any_whitespace", false));
  // Objects have no properties but those of the schema in any case.
  SLUICE_TRY_VOID(read_bool(outputs, "disable_additional_properties", false));
  SLUICE_TRY(GrammarSpec spec, read_constraint(given, *constraint));
  spec.allows_whitespace = !is_compact;
  return spec;
}

}  // namespace

Expected<GrammarSpec> read_structured_outputs(const Json& body) {
  const Json* format = find_field(body, kFormat);
  const Json* outputs = find_field(body, kOutputs);
  GrammarSpec spec;
  if (format != nullptr) {
    SLUICE_TRY(spec, read_format(*format));
    if (spec.is_set()) spec.param = kFormat;
  }
  if (outputs == nullptr || has_no_member_set(*outputs)) return spec;
  if (spec.is_set()) {
    return invalid("response_format and structured_outputs cannot be used together.", kOutputs);
  }
  SLUICE_TRY(spec, read_outputs(*outputs));
  if (spec.is_set()) spec.param = kOutputs;
  return spec;
}

}  // namespace sluice
