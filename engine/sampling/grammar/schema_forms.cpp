// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/schema_forms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice {
namespace {

using Json = SchemaJson;
using Kind = SchemaForm::Kind;

const Json* member(const Json& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

constexpr size_t kMostNamed = 64;  // keywords that are left out

bool has(const Json& schema, const char* name) { return schema.contains(name); }

constexpr std::array kNumberWords = {
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::array kStringWords = {"minLength", "maxLength", "pattern"};
constexpr std::array kArrayWords = {"items",
                                    "prefixItems",
                                    "additionalItems",
                                    "minItems",
                                    "maxItems",
                                    "uniqueItems",
                                    "contains",
                                    "unevaluatedItems"};
constexpr std::array kObjectWords = {"properties",
                                     "required",
                                     "additionalProperties",
                                     "patternProperties",
                                     "propertyNames",
                                     "minProperties",
                                     "maxProperties",
                                     "unevaluatedProperties",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "dependencies"};

bool has_any(const Json& schema, const auto& words) {
  return std::ranges::any_of(words, [&](const char* word) { return has(schema, word); });
}

constexpr std::array kDynamicWords = {"$dynamicRef", "$recursiveRef"};

bool is_conditional(const Json& schema) {
  return has(schema, "if") && (has(schema, "then") || has(schema, "else"));
}

bool speaks_of(const Json& schema, Kind kind) {
  switch (kind) {
    case Kind::kNumber:
      return has_any(schema, kNumberWords);
    case Kind::kString:
      return has_any(schema, kStringWords);
    case Kind::kArray:
      return has_any(schema, kArrayWords);
    case Kind::kObject:
      return has_any(schema, kObjectWords);
    default:
      return false;
  }
}

void escape_pointer(std::string_view name, std::string& out) {
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
}

}  // namespace

Schemas* SchemaForm::property(const std::string& name) {
  const auto found = std::ranges::find(properties, name, &std::pair<std::string, Schemas>::first);
  return found == properties.end() ? nullptr : &found->second;
}

const Schemas* SchemaForm::property(const std::string& name) const {
  return const_cast<SchemaForm*>(this)->property(name);
}

SchemaReader::SchemaReader(const Json& root, bool is_best_effort, const SchemaLimits& limits)
    : root_(root), is_best_effort_(is_best_effort), limits_(limits) {
  survey(root, {}, 0);
}

const Json* SchemaReader::never() {
  static const Json schema = false;
  return &schema;
}

// The schema itself, or the one in the document that implies it.
const Json* SchemaReader::in_document(const Json* schema) const {
  const auto found = origins_.find(schema);
  return found == origins_.end() ? schema : found->second;
}

std::string SchemaReader::place(const Json* schema) const {
  std::vector<const std::string*> tokens;
  const Json* value = in_document(schema);
  for (auto found = places_.find(value); found != places_.end(); found = places_.find(value)) {
    value = found->second.outer;
    if (value != nullptr) tokens.push_back(&found->second.token);
  }
  std::string text = "#";
  for (size_t i = tokens.size(); i-- > 0;) text += "/" + *tokens[i];
  return text;
}

void SchemaReader::fail(ErrorCode code, std::string message) {
  if (!error_) error_ = Error{code, std::move(message), "", {}, 0};
}

void SchemaReader::refuse(std::string_view keyword, const Json* schema) {
  if (is_best_effort_) return tell(keyword, schema);
  fail(ErrorCode::kUnsupported,
       "unsupported keyword '" + std::string(keyword) + "' at " + place(schema));
}

void SchemaReader::tell(std::string_view keyword, const Json* schema) {
  if (!is_best_effort_ || left_out_.size() == kMostNamed) return;
  if (!left_out_of_.emplace(in_document(schema), keyword).second) return;
  const LeftOutKeyword named = {std::string(keyword), place(schema)};
  if (std::ranges::find(left_out_, named) == left_out_.end()) left_out_.push_back(named);
}

bool SchemaReader::spend() {
  if (++work_ > limits_.max_work) fail(ErrorCode::kInvalidArgument, "the schema is too complex");
  return !error_;
}

// Counts the schema's values and notes their places.
void SchemaReader::survey(const Json& value, Place at, int32_t depth) {
  if (error_) return;
  places_.emplace(&value, std::move(at));
  if (depth > limits_.max_depth) {
    return fail(ErrorCode::kInvalidArgument,
                "the schema is deeper than " + std::to_string(limits_.max_depth) + " at " +
                    place(&value).substr(0, 100));
  }
  if (++num_nodes_ > limits_.max_nodes) {
    return fail(ErrorCode::kInvalidArgument,
                "the schema has more than " + std::to_string(limits_.max_nodes) + " values");
  }
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      survey(value[i], {&value, std::to_string(i)}, depth + 1);
    }
    return;
  }
  if (!value.is_object()) return;
  for (const auto& [name, inner] : value.items()) {
    if (name == "properties" && inner.is_object()) {
      num_properties_ += static_cast<int64_t>(inner.size());
    }
    if (name == "enum" && inner.is_array()) num_enum_values_ += static_cast<int64_t>(inner.size());
    std::string token;
    escape_pointer(name, token);
    survey(inner, {&value, std::move(token)}, depth + 1);
  }
  if (num_properties_ > limits_.max_properties) {
    fail(ErrorCode::kInvalidArgument,
         "the schema has more than " + std::to_string(limits_.max_properties) + " properties");
  }
  if (num_enum_values_ > limits_.max_enum_values) {
    fail(ErrorCode::kInvalidArgument,
         "the schema has more than " + std::to_string(limits_.max_enum_values) + " enum values");
  }
}

// --- Keywords --------------------------------------------------------------------------------

SchemaForms SchemaReader::read(const Schemas& schemas) {
  if (depth_ >= limits_.max_depth) {
    fail(ErrorCode::kInvalidArgument, "the schema goes round in a circle or is too deep");
    return {};
  }
  ++depth_;
  SchemaForms forms = {SchemaForm()};
  for (const Json* schema : schemas) {
    if (!spend()) break;
    forms = intersect(forms, forms_of(*schema));
  }
  --depth_;
  return forms;
}

bool SchemaReader::holds_anything(const Json& schema) {
  return schema == true || (schema.is_object() && schema.empty());
}

// Refuses keywords that have no form here.
void SchemaReader::refuse_unknown(const Json& schema) {
  for (const char* const word : kDynamicWords) {
    if (has(schema, word)) refuse(word, &schema);
  }
  if (&schema != &root_ && has(schema, "$id")) refuse("$id", &schema);
  if (is_conditional(schema)) refuse("if", &schema);
  if (const Json* contains = member(schema, "contains")) {
    if (member(schema, "minContains") == nullptr || schema["minContains"] != 0 ||
        has(schema, "maxContains")) {
      refuse("contains", contains == nullptr ? nullptr : &schema);
    }
  }
}

SchemaForms SchemaReader::forms_of(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? SchemaForms{SchemaForm()} : SchemaForms();
  if (!schema.is_object()) {
    fail(ErrorCode::kInvalidArgument, "no schema at " + place(&schema));
    return {};
  }
  refuse_unknown(schema);
  SchemaForms forms = typed_forms(schema);
  for (SchemaForm& form : forms) {
    if (form.source == nullptr) form.source = &schema;
  }
  if (has(schema, "$ref")) {
    SchemaForm reference;
    reference.kind = Kind::kReference;
    reference.target = look_up(schema);
    if (reference.target == nullptr) return {};
    forms = intersect(forms, {reference});
  }
  if (const Json* all = member(schema, "allOf"); all != nullptr && all->is_array()) {
    Schemas parts;
    for (const Json& part : *all) parts.push_back(&part);
    forms = intersect(forms, read(parts));
  }
  if (const Json* any = member(schema, "anyOf"); any != nullptr && any->is_array()) {
    SchemaForms choice;
    for (const Json& part : *any) {
      for (SchemaForm& form : read({&part})) choice.push_back(std::move(form));
      if (error_) return {};
    }
    forms = intersect(forms, choice);
  }
  if (has(schema, "oneOf") && schema["oneOf"].is_array()) forms = intersect(forms, one_of(schema));
  const Schemas implied = dependencies(schema);
  if (!implied.empty()) forms = intersect(forms, read(implied));
  if (const Json* denied = member(schema, "not")) {
    if (holds_anything(*denied)) return {};
    if (*denied != false) refuse("not", &schema);
  }
  read_unevaluated(schema, forms);
  return forms;
}

SchemaForms SchemaReader::typed_forms(const Json& schema) {
  if (has(schema, "const") || has(schema, "enum")) {
    SchemaForm values;
    values.kind = Kind::kValues;
    if (const Json* only = member(schema, "const")) {
      values.values.push_back(*only);
    } else if (schema["enum"].is_array()) {
      for (const Json& value : schema["enum"]) values.values.push_back(value);
    }
    if (const Json* list = member(schema, "enum"); list != nullptr && has(schema, "const")) {
      std::erase_if(values.values, [&](const Json& value) {
        return std::ranges::find(*list, value) == list->end();
      });
    }
    Json others = schema;
    others.erase("const");
    others.erase("enum");
    for (const char* word :
         {"$ref", "allOf", "anyOf", "oneOf", "not", "$defs", "definitions", "if"}) {
      others.erase(word);
    }
    return intersect({values}, typed_forms(make(std::move(others), schema)));
  }
  static constexpr std::array<std::pair<const char*, Kind>, 7> kTypes = {
      {{"null", Kind::kNull},
       {"boolean", Kind::kBoolean},
       {"integer", Kind::kNumber},
       {"number", Kind::kNumber},
       {"string", Kind::kString},
       {"array", Kind::kArray},
       {"object", Kind::kObject}}};
  SchemaForms forms;
  const Json* type = member(schema, "type");
  if (type != nullptr) {
    const Json names = type->is_array() ? *type : Json::array({*type});
    for (const auto& [name, kind] : kTypes) {
      const bool is_named = std::ranges::find(names, name) != names.end();
      const bool is_covered =
          std::string_view(name) == "integer" && std::ranges::find(names, "number") != names.end();
      if (!is_named || is_covered) continue;
      forms.push_back(form_of_type(kind, schema));
      forms.back().is_integer = forms.back().is_integer || std::string_view(name) == "integer";
    }
    for (const Json& name : names) {
      const bool is_known =
          std::ranges::any_of(kTypes, [&](const auto& known) { return name == known.first; });
      if (!is_known) fail(ErrorCode::kInvalidArgument, "unknown type at " + place(&schema));
    }
    return forms;
  }
  static constexpr std::array kKinds = {
      Kind::kNull, Kind::kBoolean, Kind::kNumber, Kind::kString, Kind::kArray, Kind::kObject};
  if (std::ranges::none_of(kKinds, [&](Kind kind) { return speaks_of(schema, kind); })) {
    return {SchemaForm()};
  }
  for (const Kind kind : kKinds) {
    forms.push_back(form_of_type(kind, schema));
    forms.back().is_implied = !speaks_of(schema, kind);
  }
  return forms;
}

SchemaForm SchemaReader::form_of_type(Kind kind, const Json& schema) {
  SchemaForm form;
  form.kind = kind;
  form.source = &schema;
  if (kind == Kind::kNumber) read_number(schema, form);
  if (kind == Kind::kString) read_string(schema, form);
  if (kind == Kind::kArray) read_array(schema, form);
  if (kind == Kind::kObject) read_object(schema, form);
  return form;
}

const Json& SchemaReader::make(Json schema, const Json& origin) {
  made_.push_back(std::make_unique<Json>(std::move(schema)));
  origins_.emplace(made_.back().get(), in_document(&origin));
  return *made_.back();
}

int64_t SchemaReader::read_size(const Json& schema, const char* keyword, int64_t fallback) {
  const Json* value = member(schema, keyword);
  if (value == nullptr) return fallback;
  if (!value->is_number() || value->get<double>() < 0) {
    fail(ErrorCode::kInvalidArgument, std::string(keyword) + " is no size at " + place(&schema));
    return fallback;
  }
  constexpr double kLargest = 1e15;
  return static_cast<int64_t>(std::min(value->get<double>(), kLargest));
}

void SchemaReader::read_number(const Json& schema, SchemaForm& form) {
  const auto number = [&](const char* keyword) -> std::optional<NumberBound> {
    const Json* value = member(schema, keyword);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) {
      fail(ErrorCode::kInvalidArgument,
           std::string(keyword) + " is no number at " + place(&schema));
      return std::nullopt;
    }
    return value->get<NumberBound>();
  };
  if (const auto min = number("minimum")) form.min = *min;
  if (const auto max = number("maximum")) form.max = *max;
  if (const auto min = number("exclusiveMinimum"); min && *min >= form.min) {
    form.min = *min;
    form.excludes_min = true;
  }
  if (const auto max = number("exclusiveMaximum"); max && *max <= form.max) {
    form.max = *max;
    form.excludes_max = true;
  }
  if (const auto step = number("multipleOf")) {
    if (*step <= 0) fail(ErrorCode::kInvalidArgument, "multipleOf is not above 0");
    form.multiples.push_back(static_cast<double>(*step));
  }
}

void SchemaReader::read_string(const Json& schema, SchemaForm& form) {
  form.min_size = read_size(schema, "minLength", 0);
  form.max_size = read_size(schema, "maxLength", SchemaForm::kUnbounded);
  const auto text = [&](const char* keyword) -> const std::string* {
    const Json* value = member(schema, keyword);
    if (value == nullptr) return nullptr;
    if (value->is_string()) return &value->get_ref<const std::string&>();
    fail(ErrorCode::kInvalidArgument, std::string(keyword) + " is no string at " + place(&schema));
    return nullptr;
  };
  if (const std::string* pattern = text("pattern")) form.patterns.push_back(*pattern);
  if (const std::string* format = text("format")) form.format = *format;
}

void SchemaReader::read_array(const Json& schema, SchemaForm& form) {
  form.min_size = read_size(schema, "minItems", 0);
  form.max_size = read_size(schema, "maxItems", SchemaForm::kUnbounded);
  const Json* items = member(schema, "items");
  const bool is_list = items != nullptr && items->is_array();  // before draft 2020-12
  const Json* prefix = is_list ? items : member(schema, "prefixItems");
  if (prefix != nullptr && prefix->is_array()) {
    for (const Json& item : *prefix) form.prefix.push_back({&item});
  }
  const Json* rest = is_list ? member(schema, "additionalItems") : items;
  form.has_rest = rest != nullptr;
  if (rest != nullptr) form.rest.push_back(rest);
  if (const Json* unique = member(schema, "uniqueItems")) form.is_unique = *unique == true;
}

void SchemaReader::read_object(const Json& schema, SchemaForm& form) {
  form.min_size = read_size(schema, "minProperties", 0);
  form.max_size = read_size(schema, "maxProperties", SchemaForm::kUnbounded);
  if (const Json* properties = member(schema, "properties")) {
    if (!properties->is_object()) {
      return fail(ErrorCode::kInvalidArgument, "properties is no object at " + place(&schema));
    }
    for (const auto& [name, property] : properties->items()) {
      form.properties.push_back({name, {&property}});
    }
  }
  if (const Json* required = member(schema, "required")) {
    for (const Json& name : *required) {
      if (!name.is_string()) {
        return fail(ErrorCode::kInvalidArgument, "required is no list at " + place(&schema));
      }
      form.required.insert(name.get<std::string>());
    }
  }
  read_other_properties(schema, form);
}

void SchemaReader::read_other_properties(const Json& schema, SchemaForm& form) {
  if (const Json* patterns = member(schema, "patternProperties"); patterns != nullptr) {
    for (const auto& [pattern, property] : patterns->items()) {
      if (!holds_anything(property) || has(schema, "additionalProperties")) {
        form.pattern_properties.emplace_back(pattern, &property);
      }
    }
  }
  if (const Json* others = member(schema, "additionalProperties"); others && *others != true) {
    form.rest.push_back(others);
  }
  if (const Json* names = member(schema, "propertyNames"); names && *names != true) {
    form.names.push_back(names);
  }
}

// Unevaluated is what no keyword beside it speaks of. Nothing beyond the named properties and items
// is ever generated beside names, so this is about forms without any. A keyword that is left out
// may speak of more.
void SchemaReader::read_unevaluated(const Json& schema, SchemaForms& forms) {
  const Json* properties = member(schema, "unevaluatedProperties");
  const Json* items = member(schema, "unevaluatedItems");
  if (has_any(schema, kDynamicWords) || is_conditional(schema)) {
    if (properties && *properties != true) refuse("unevaluatedProperties", &schema);
    if (items && *items != true) refuse("unevaluatedItems", &schema);
    return;
  }
  for (SchemaForm& form : forms) {
    const bool is_open = form.kind == Kind::kAny || form.kind == Kind::kReference;
    if (is_open && ((properties && *properties != true) || (items && *items != true))) {
      refuse(properties ? "unevaluatedProperties" : "unevaluatedItems", &schema);
    }
    if (form.kind == Kind::kObject && properties != nullptr && form.rest.empty() &&
        form.pattern_properties.empty()) {
      form.rest.push_back(properties);
    }
    if (form.kind == Kind::kArray && items != nullptr && !form.has_rest) {
      form.has_rest = true;
      form.rest.push_back(items);
    }
  }
}

// Schemas that dependentRequired, dependentSchemas and dependencies imply: without the name, or
// with it and what it asks for.
Schemas SchemaReader::dependencies(const Json& schema) {
  constexpr size_t kMost = 4;
  const auto [known, is_new] = dependencies_.try_emplace(&schema);
  if (!is_new) return known->second;
  Schemas made;
  for (const char* const word : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* const list = member(schema, word);
    if (list == nullptr || !list->is_object()) continue;
    if (list->size() > kMost) {
      refuse(word, &schema);
      continue;
    }
    for (const auto& [name, asked] : list->items()) {
      Json with = {{"required", Json::array({name})}};
      if (asked.is_array()) {
        for (const Json& other : asked) with["required"].push_back(other);
      } else {
        with["allOf"] = Json::array({asked});
      }
      Json without = {{"properties", {{name, false}}}};
      Json either = {{"anyOf", Json::array({std::move(without), std::move(with)})}};
      made.push_back(&make(std::move(either), schema));
    }
  }
  dependencies_[&schema] = made;
  return made;
}

SchemaForms SchemaReader::one_of(const Json& schema) {
  std::vector<SchemaForms> branches;
  for (const Json& part : schema["oneOf"]) {
    branches.push_back(read({&part}));
    if (error_) return {};
  }
  SchemaForms choice;
  for (size_t i = 0; i < branches.size(); ++i) {
    SchemaForms own = branches[i];
    const bool has_explicit =
        std::ranges::any_of(own, [](const SchemaForm& form) { return !form.is_implied; });
    if (has_explicit) std::erase_if(own, [](const SchemaForm& form) { return form.is_implied; });
    for (size_t j = 0; j < branches.size(); ++j) {
      if (i != j && !are_disjoint(own, branches[j], 0)) refuse("oneOf", &schema);
      if (error_) return {};
    }
    for (SchemaForm& form : own) choice.push_back(std::move(form));
  }
  return choice;
}

}  // namespace sluice
