// SPDX-License-Identifier: Apache-2.0
// Writes forms as a schema that the grammar library reads exactly: each keyword alone or with those
// that it knows beside it, everything that may recur as a definition.
#include "engine/sampling/grammar/schema_gate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/sampling/grammar/exact_regex.h"
#include "engine/sampling/grammar/finite_values.h"
#include "engine/sampling/grammar/number_pattern.h"
#include "engine/sampling/grammar/schema_forms.h"
#include "engine/sampling/grammar/schema_pattern.h"
#include "engine/sampling/grammar/string_format.h"

namespace sluice {
namespace {

using Json = SchemaJson;
using Kind = SchemaForm::Kind;

// The library's bounds of integers.
constexpr auto kLeastInteger = static_cast<NumberBound>(std::numeric_limits<int64_t>::min());
constexpr auto kLargestInteger = static_cast<NumberBound>(std::numeric_limits<int64_t>::max());
constexpr double kLargestStep = 1024;
// The integers between two bounds of which the library lists the multiples.
constexpr NumberBound kMostListed = 10000;
constexpr NumberBound kLargestNumber = 2147483647;
// A name of a host has at most 253 characters (RFC 1035), an address of mail 254 (RFC 5321).
constexpr int64_t kLongAddress = 253;
// More characters, items or properties than an answer has.
constexpr int64_t kBeyondAnswers = std::numeric_limits<int32_t>::max();
// Decimal places that bounds of numbers keep, as a factor.
constexpr NumberBound kDigits = 1e6;

class GateWriter {
 public:
  GateWriter(SchemaReader& reader, const SchemaLimits& limits) : reader_(reader), limits_(limits) {}

  // Returns nullopt where no value is valid, or there is an error.
  std::optional<Json> document(const Json& root) {
    std::optional<Json> top = write({&root});
    if (!top) return std::nullopt;
    if (definitions_.empty()) return top;
    if (!check_finite(*top)) return std::nullopt;
    Json out = *top;
    out["$defs"] = Json::object();
    for (size_t i = 0; i < definitions_.size(); ++i) out["$defs"][name_of(i)] = definitions_[i];
    return out;
  }

 private:
  static std::string name_of(size_t definition) { return "d" + std::to_string(definition); }

  // A value that cannot be without another of its own kind would have no end.
  bool check_finite(const Json& top) {
    const std::vector<bool> finite = finite_definitions(definitions_);
    if (has_finite_value(top, finite)) return true;
    // The first that was written: places of schemas in memory have no order that stays.
    const Schemas* first = nullptr;
    size_t lowest = definitions_.size();
    for (const auto& [schemas, index] : by_schemas_) {
      if (finite[index] || index >= lowest) continue;
      first = &schemas;
      lowest = index;
    }
    const std::string place = first == nullptr ? "#" : reader_.place(first->front());
    reader_.fail(ErrorCode::kUnsupported,
                 "unsupported keyword '$ref' at " + place +
                     ": what it leads to requires itself without end");
    return false;
  }

  bool spend() {
    if (++num_written_ > limits_.max_nodes) {
      reader_.fail(ErrorCode::kInvalidArgument, "the schema is too complex");
    }
    return !reader_.error();
  }

  std::optional<Json> write(const Schemas& schemas) {
    if (!spend()) return std::nullopt;
    if (schemas.empty()) return Json::object();
    if (schemas.size() > 1) return reference(schemas);
    if (!SchemaReader::is_only_reference(*schemas[0])) {
      // A reference among its parts may lead back into it.
      if (std::ranges::find(inline_, schemas[0]) != inline_.end()) return reference(schemas);
      inline_.push_back(schemas[0]);
      std::optional<Json> out = write(reader_.read(schemas), schemas[0]);
      inline_.pop_back();
      return out;
    }
    const Json* const target = reader_.resolve(*schemas[0]);
    if (target == nullptr) return std::nullopt;
    return reference({target});
  }

  // Refers to the definition of the values for which all of `schemas` hold.
  std::optional<Json> reference(Schemas schemas) {
    std::ranges::sort(schemas);
    const auto [found, is_new] = by_schemas_.try_emplace(schemas, definitions_.size());
    const size_t index = found->second;
    if (is_new) {
      definitions_.emplace_back();
      is_impossible_.push_back(false);
      direct_.push_back(index);
      std::optional<Json> body = write(reader_.read(schemas), schemas[0]);
      direct_.pop_back();
      is_impossible_[index] = !body;
      definitions_[index] = body ? std::move(*body) : Json(false);
    } else if (std::ranges::find(direct_, index) != direct_.end()) {
      reader_.fail(ErrorCode::kInvalidArgument,
                   "$ref goes round in a circle at " + reader_.place(schemas[0]));
    }
    if (is_impossible_[index] || reader_.error()) return std::nullopt;
    return Json{{"$ref", "#/$defs/" + name_of(index)}};
  }

  // Strings of one pattern are one definition: each copy would be compiled for itself, and that
  // takes time at each place of its text.
  Json shared(Json string) {
    const auto [found, is_new] = by_text_.try_emplace(string.dump(), definitions_.size());
    if (is_new) {
      definitions_.push_back(std::move(string));
      is_impossible_.push_back(false);
    }
    return Json{{"$ref", "#/$defs/" + name_of(found->second)}};
  }

  // Writes a part of an array or object, where open definitions may recur.
  std::optional<Json> write_inside(const Schemas& schemas) {
    std::vector<size_t> outside;
    std::swap(outside, direct_);
    std::optional<Json> out = write(schemas);
    std::swap(outside, direct_);
    return out;
  }

  std::optional<Json> write(SchemaForms forms, const Json* source) {
    const bool has_explicit =
        std::ranges::any_of(forms, [](const SchemaForm& form) { return !form.is_implied; });
    if (has_explicit) std::erase_if(forms, [](const SchemaForm& form) { return form.is_implied; });
    if (static_cast<int64_t>(forms.size()) > limits_.max_branches) {
      reader_.fail(ErrorCode::kInvalidArgument,
                   "more than " + std::to_string(limits_.max_branches) + " branches at " +
                       reader_.place(source));
    }
    Json choice = Json::array();
    for (const SchemaForm& form : forms) {
      if (!spend()) return std::nullopt;
      std::optional<Json> one = write(form);
      if (!one) continue;
      if (std::ranges::find(choice, *one) == choice.end()) choice.push_back(std::move(*one));
    }
    if (reader_.error() || choice.empty()) return std::nullopt;
    if (choice.size() == 1) return choice[0];
    return Json{{"anyOf", std::move(choice)}};
  }

  std::optional<Json> write(const SchemaForm& form) {
    switch (form.kind) {
      case Kind::kAny:
        return Json::object();
      case Kind::kReference: {
        const Json* const target = reader_.resolve(*form.target);
        if (target == nullptr) return std::nullopt;
        return reference({target});
      }
      case Kind::kValues:
        return write_values(form);
      case Kind::kNull:
        return Json{{"type", "null"}};
      case Kind::kBoolean:
        return Json{{"type", "boolean"}};
      case Kind::kNumber:
        return write_number(form);
      case Kind::kString:
        return write_string(form);
      case Kind::kArray:
        return write_array(form);
      case Kind::kObject:
        return write_object(form);
    }
    return std::nullopt;
  }

  std::optional<Json> write_values(const SchemaForm& form) {
    for (const Json& value : form.values) {
      if (value.is_number_unsigned() && value.get<uint64_t>() > (uint64_t{1} << 62)) {
        reader_.refuse("enum", form.source);
      }
    }
    return Json{{"enum", form.values}};
  }

  std::optional<Json> write_number(const SchemaForm& form) {
    double step = 1;
    bool is_integer = form.is_integer;
    for (const double multiple : form.multiples) {
      const bool is_whole = multiple == std::floor(multiple);
      if (is_whole && multiple <= kLargestStep) {
        is_integer = true;
        step = static_cast<double>(
            std::lcm(static_cast<int64_t>(step), static_cast<int64_t>(multiple)));
      } else if (!form.is_integer || is_whole || 1 / multiple != std::floor(1 / multiple)) {
        reader_.refuse("multipleOf", form.source);
      }
    }
    return is_integer ? write_integer(form, step) : write_decimal(form);
  }

  std::optional<Json> write_integer(const SchemaForm& form, double step) {
    NumberBound min = std::ceil(form.min);
    NumberBound max = std::floor(form.max);
    if (form.excludes_min && min == form.min) ++min;
    if (form.excludes_max && max == form.max) --max;
    if (min > max) return std::nullopt;
    if (std::isfinite(min) && (min < kLeastInteger || min > kLargestInteger)) {
      reader_.refuse(keyword_of_min(form), form.source);
      min = -std::numeric_limits<NumberBound>::infinity();
    }
    if (std::isfinite(max) && (max < kLeastInteger || max > kLargestInteger)) {
      reader_.refuse(keyword_of_max(form), form.source);
      max = std::numeric_limits<NumberBound>::infinity();
    }
    Json out = {{"type", "integer"}};
    if (step > 1) {
      const bool has_both = std::isfinite(min) && std::isfinite(max);
      const bool has_none = !std::isfinite(min) && !std::isfinite(max);
      if (has_both && std::floor(max / step) < std::ceil(min / step)) return std::nullopt;
      if (step <= kLargestStep && (has_none || (has_both && max - min < kMostListed))) {
        out["multipleOf"] = static_cast<int64_t>(step);
      } else {
        reader_.refuse("multipleOf", form.source);
      }
    }
    if (std::isfinite(min)) out["minimum"] = static_cast<int64_t>(min);
    if (std::isfinite(max)) out["maximum"] = static_cast<int64_t>(max);
    return out;
  }

  static const char* keyword_of_min(const SchemaForm& form) {
    return form.excludes_min ? "exclusiveMinimum" : "minimum";
  }

  static const char* keyword_of_max(const SchemaForm& form) {
    return form.excludes_max ? "exclusiveMaximum" : "maximum";
  }

  std::optional<Json> write_decimal(const SchemaForm& form) {
    if (form.min > form.max || (form.min == form.max && (form.excludes_min || form.excludes_max))) {
      return std::nullopt;
    }
    if (const std::string_view pattern = pattern_of_number(form); !pattern.empty()) {
      return shared(Json{{"type", "string"}, {"pattern", pattern}});
    }
    Json out = {{"type", "number"}};
    const auto add = [&](NumberBound bound, const char* keyword) {
      if (!std::isfinite(bound)) return;
      const NumberBound scaled = bound * kDigits;
      if (std::fabs(bound) > kLargestNumber ||
          std::fabs(scaled - std::round(scaled)) > std::fabs(scaled) * 1e-15L) {
        reader_.refuse(keyword, form.source);
      } else {
        out[keyword] = static_cast<double>(bound);
      }
    };
    add(form.min, keyword_of_min(form));
    add(form.max, keyword_of_max(form));
    // The library's numbers between bounds have six places and no exponent.
    for (const char* keyword : {keyword_of_min(form), keyword_of_max(form)}) {
      if (out.contains(keyword)) reader_.tell(keyword, form.source);
    }
    return out;
  }

  // An upper bound that the library can count; others are refused where an answer may get there.
  std::optional<int64_t> upper_bound(const SchemaForm& form, const char* keyword) {
    if (form.max_size >= kBeyondAnswers) return std::nullopt;
    if (form.max_size <= limits_.max_repetitions) return form.max_size;
    reader_.refuse(std::string(keyword) + " above " + std::to_string(limits_.max_repetitions),
                   form.source);
    return std::nullopt;
  }

  bool check_minimum(int64_t size, const char* keyword, const SchemaForm& form) {
    if (size <= limits_.max_repetitions) return true;
    reader_.fail(ErrorCode::kInvalidArgument,
                 std::string(keyword) + " is above " + std::to_string(limits_.max_repetitions) +
                     " at " + reader_.place(form.source));
    return false;
  }

  [[nodiscard]] int64_t most_counted() const {
    return std::min(limits_.max_counted, limits_.max_repetitions);
  }

  // The bounds of a string that the library can count; the others are refused.
  StringSize counted_size(const SchemaForm& form) {
    StringSize size{.min = form.min_size};
    if (const auto most = upper_bound(form, "maxLength")) size.max = *most;
    const std::string above = " above " + std::to_string(most_counted());
    if (size.min > most_counted()) {
      reader_.refuse("minLength" + above, form.source);
      size.min = 0;
    }
    if (size.max != StringSize::kEndless && size.max > most_counted()) {
      reader_.refuse("maxLength" + above, form.source);
      size.max = StringSize::kEndless;
    }
    return size;
  }

  std::optional<Json> write_string(const SchemaForm& form) {
    std::optional<Json> out = string_of(form);
    const bool is_bound = out && (out->contains("pattern") || out->contains("format"));
    return is_bound ? shared(std::move(*out)) : out;
  }

  std::optional<Json> string_of(const SchemaForm& form) {
    if (form.min_size > form.max_size) return std::nullopt;
    if (!check_minimum(form.min_size, "minLength", form)) return std::nullopt;
    const StringFormat* const format = find_string_format(form.format);
    if (format != nullptr && form.patterns.empty()) return string_of_format(form, *format);
    if (!is_remark_on_strings(form.format)) reader_.refuse("format", form.source);
    const StringSize size = counted_size(form);
    const bool has_length = size.min > 0 || size.max != StringSize::kEndless;
    Json out = {{"type", "string"}};
    if (form.patterns.size() > 1) reader_.refuse("pattern", form.source);
    if (!form.patterns.empty()) {
      auto pattern = pattern_of_whole_string(form.patterns[0], most_counted(), size);
      if (!pattern && has_length) {
        pattern = pattern_of_whole_string(form.patterns[0], most_counted());
        if (pattern) reader_.refuse("minLength or maxLength beside pattern", form.source);
      }
      if (pattern) {
        out["pattern"] = *pattern;
      } else {
        reader_.refuse("pattern", form.source);
      }
    } else if (has_length) {
      out["pattern"] = pattern_of_length(size);
    }
    return out;
  }

  // Bounds of the length that the format does not keep by itself are refused. Those that are far
  // beyond such texts, as Pydantic gives addresses, are left open in strict schemas too: named with
  // best effort, where a strict schema has nothing that could name them.
  std::optional<Json> string_of_format(const SchemaForm& form, const StringFormat& format) {
    const bool is_empty = format.size.min > form.max_size || format.size.max < form.min_size;
    if (is_empty) return std::nullopt;
    if (format.size.min < form.min_size) reader_.refuse("minLength beside format", form.source);
    if (format.size.max > form.max_size && form.max_size < kBeyondAnswers) {
      if (form.max_size < kLongAddress) {
        reader_.refuse("maxLength beside format", form.source);
      } else {
        reader_.tell("maxLength", form.source);
      }
    }
    if (format.pattern.empty()) return Json{{"type", "string"}, {"format", format.name}};
    return Json{{"type", "string"}, {"pattern", *pattern_of_whole_string(format.pattern, 2)}};
  }

  std::optional<Json> write_array(const SchemaForm& form) {
    if (form.min_size > form.max_size) return std::nullopt;
    if (!check_minimum(form.min_size, "minItems", form)) return std::nullopt;
    if (form.is_unique && form.max_size > 1) reader_.refuse("uniqueItems", form.source);
    int64_t most = form.max_size;
    Json prefix = Json::array();
    for (const Schemas& item : form.prefix) {
      if (static_cast<int64_t>(prefix.size()) >= most) break;
      std::optional<Json> written = write_inside(item);
      if (!written) {
        most = static_cast<int64_t>(prefix.size());
        break;
      }
      prefix.push_back(std::move(*written));
    }
    const auto length = static_cast<int64_t>(prefix.size());
    // Unnamed items do not follow a prefix, unless so many items are required.
    const bool may_follow =
        most > length && (prefix.empty() || form.has_rest || form.min_size > length);
    std::optional<Json> rest;
    if (may_follow) rest = write_inside(form.rest);
    if (reader_.error()) return std::nullopt;
    if (!rest) most = std::min(most, length);
    if (form.min_size > most) return std::nullopt;
    Json out = {{"type", "array"}};
    if (!prefix.empty()) out["prefixItems"] = std::move(prefix);
    out["items"] = rest ? std::move(*rest) : Json(false);
    if (form.min_size > 0) out["minItems"] = form.min_size;
    if (!rest) return out;
    if (const auto upper = upper_bound(form, "maxItems")) out["maxItems"] = std::max(*upper, length);
    return out;
  }

  std::optional<Json> write_object(const SchemaForm& form) {
    if (form.min_size > form.max_size) return std::nullopt;
    if (!form.pattern_properties.empty()) return write_patterned(form);
    if (form.properties.empty() && form.required.empty()) return write_map(form);
    auto named = form.properties;
    for (const std::string& name : form.required) {
      if (form.property(name) == nullptr) named.emplace_back(name, form.rest);
    }
    Json properties = Json::object();
    for (const auto& [name, schemas] : named) {
      const bool may_be = form.names.empty() || reader_.is_valid(Json(name), form.names);
      std::optional<Json> written;
      if (may_be) written = write_inside(schemas);
      if (reader_.error()) return std::nullopt;
      if (written) {
        properties[name] = std::move(*written);
      } else if (form.required.contains(name)) {
        return std::nullopt;
      }
    }
    return closed_object(form, std::move(properties));
  }

  // Writes an object with exactly the given properties.
  std::optional<Json> closed_object(const SchemaForm& form, Json properties) {
    const auto count = static_cast<int64_t>(properties.size());
    if (form.min_size > count || static_cast<int64_t>(form.required.size()) > form.max_size) {
      return std::nullopt;
    }
    Json out = {{"type", "object"}};
    if (form.min_size > static_cast<int64_t>(form.required.size())) {
      out["minProperties"] = form.min_size;
    }
    if (form.max_size < count) out["maxProperties"] = form.max_size;
    out["properties"] = std::move(properties);
    if (!form.required.empty()) out["required"] = form.required;
    out["additionalProperties"] = false;
    return out;
  }

  // An object without names: any name, with one schema for all values. A name that occurs twice
  // counts once, so that more than one property cannot be asked for.
  std::optional<Json> write_map(const SchemaForm& form) {
    std::optional<Json> value;
    if (form.max_size > 0) value = write_inside(form.rest);
    if (reader_.error()) return std::nullopt;
    if (!value) {
      if (form.min_size > 0) return std::nullopt;
      return closed_object(form, Json::object());
    }
    if (!form.names.empty()) return write_named_map(form, std::move(*value));
    return open_object(form, {{"additionalProperties", std::move(*value)}});
  }

  // Writes an object with any number of properties, which `members` speak of.
  Json open_object(const SchemaForm& form, Json members) {
    if (form.min_size > 1) reader_.refuse("minProperties", form.source);
    Json out = {{"type", "object"}};
    out.update(members);
    if (form.min_size > 0) out["minProperties"] = 1;
    if (const auto most = upper_bound(form, "maxProperties")) out["maxProperties"] = *most;
    return out;
  }

  // Names are listed, match one pattern, or are not bound at all.
  std::optional<Json> write_named_map(const SchemaForm& form, Json value) {
    static const Json kString = {{"type", "string"}};
    Schemas schemas = form.names;
    schemas.push_back(&kString);
    Json properties = Json::object();
    std::vector<std::string> patterns;
    bool is_any = false;
    for (const SchemaForm& name : reader_.read(schemas)) {
      if (name.kind == Kind::kValues) {
        for (const Json& text : name.values) properties[text.get<std::string>()] = value;
        continue;
      }
      const std::optional<Json> string = string_of(name);
      if (!string) continue;
      if (string->contains("format")) reader_.refuse("format", name.source);
      const auto pattern = string->find("pattern");
      is_any |= pattern == string->end();
      if (pattern != string->end()) patterns.push_back(*pattern);
    }
    if (reader_.error()) return std::nullopt;
    if (!is_any && patterns.empty()) return closed_object(form, std::move(properties));
    if (!is_any && patterns.size() == 1 && properties.empty()) {
      return open_object(form,
                         {{"patternProperties", {{patterns[0], std::move(value)}}},
                          {"additionalProperties", false}});
    }
    if (!is_any) reader_.refuse("propertyNames", form.source);
    return open_object(form, {{"additionalProperties", std::move(value)}});
  }

  // Writes an object whose names match one pattern.
  std::optional<Json> write_patterned(const SchemaForm& form) {
    const bool is_alone = form.pattern_properties.size() == 1 && form.properties.empty() &&
                          form.required.empty() && form.names.empty() && form.min_size <= 1;
    const auto pattern = pattern_of_whole_string(form.pattern_properties[0].first, most_counted());
    if (!is_alone || !pattern) {
      reader_.refuse("patternProperties", form.source);
      SchemaForm others = form;
      others.pattern_properties.clear();
      others.rest.clear();  // what it says of names that no pattern speaks of
      return write_object(others);
    }
    std::optional<Json> value;
    if (form.max_size > 0) value = write_inside({form.pattern_properties[0].second});
    if (reader_.error()) return std::nullopt;
    if (!value) {
      if (form.min_size > 0) return std::nullopt;
      return closed_object(form, Json::object());
    }
    return open_object(
        form,
        {{"patternProperties", {{*pattern, std::move(*value)}}}, {"additionalProperties", false}});
  }

  SchemaReader& reader_;
  const SchemaLimits limits_;
  std::map<Schemas, size_t> by_schemas_;
  std::map<std::string, size_t> by_text_;
  std::vector<Json> definitions_;
  std::vector<bool> is_impossible_;
  Schemas inline_;              // that are being written in place
  std::vector<size_t> direct_;  // definitions that are open, with no array or object between
  int64_t num_written_ = 0;
};

}  // namespace

Expected<std::string> gate_schema(std::string_view schema,
                                  bool is_best_effort,
                                  const SchemaLimits& limits,
                                  std::vector<LeftOutKeyword>* left_out) {
  if (static_cast<int64_t>(schema.size()) > limits.max_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the schema has more than " + std::to_string(limits.max_bytes) + " bytes");
  }
  const Json root = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || (!root.is_object() && !root.is_boolean())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the schema is neither a JSON object nor a boolean");
  }
  SchemaReader reader(root, is_best_effort, limits);
  std::optional<Json> out;
  if (!reader.error()) out = GateWriter(reader, limits).document(root);
  if (left_out != nullptr) std::ranges::move(reader.left_out(), std::back_inserter(*left_out));
  if (reader.error()) return tl::unexpected(*reader.error());
  if (!out) return make_error(ErrorCode::kInvalidArgument, "no value is valid in the schema");
  return out->dump();
}

Expected<std::string> gate_regex(std::string_view regex, const SchemaLimits& limits) {
  return exact_regex(regex, limits.max_counted);
}

}  // namespace sluice
