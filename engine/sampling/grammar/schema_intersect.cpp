// SPDX-License-Identifier: Apache-2.0
// The intersection of forms, the values valid in a form, and whether two forms share a value.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/sampling/grammar/schema_forms.h"
#include "engine/sampling/grammar/string_format.h"

namespace sluice {
namespace {

using Json = SchemaJson;
using Kind = SchemaForm::Kind;

void append(Schemas& to, const Schemas& from) {
  for (const Json* schema : from) {
    if (std::ranges::find(to, schema) == to.end()) to.push_back(schema);
  }
}

bool contains_never(const Schemas& schemas) {
  return std::ranges::any_of(schemas, [](const Json* schema) { return *schema == false; });
}

void narrow_range(SchemaForm& a, const SchemaForm& b) {
  if (b.min > a.min || (b.min == a.min && b.excludes_min)) {
    a.min = b.min;
    a.excludes_min = b.excludes_min;
  }
  if (b.max < a.max || (b.max == a.max && b.excludes_max)) {
    a.max = b.max;
    a.excludes_max = b.excludes_max;
  }
  a.is_integer = a.is_integer || b.is_integer;
  a.multiples.insert(a.multiples.end(), b.multiples.begin(), b.multiples.end());
}

// Counts the characters of UTF-8 text.
int64_t num_characters(const std::string& text) {
  return std::ranges::count_if(text,
                               [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; });
}

bool is_whole(NumberBound value) { return std::isfinite(value) && value == std::floor(value); }

bool fits_number(NumberBound value, const SchemaForm& form) {
  if (form.is_integer && !is_whole(value)) return false;
  if (value < form.min || (form.excludes_min && value == form.min)) return false;
  if (value > form.max || (form.excludes_max && value == form.max)) return false;
  return std::ranges::all_of(form.multiples, [&](double step) {
    return is_whole(static_cast<double>(value) / step);
  });
}

bool fits_size(size_t size, const SchemaForm& form) {
  const auto count = static_cast<int64_t>(size);
  return count >= form.min_size && count <= form.max_size;
}

}  // namespace

SchemaForms SchemaReader::intersect(const SchemaForms& a, const SchemaForms& b) {
  SchemaForms out;
  for (const SchemaForm& left : a) {
    for (const SchemaForm& right : b) {
      if (!spend()) return {};
      const bool left_is_open = left.kind == Kind::kReference && right.kind != Kind::kAny;
      const bool right_is_open = right.kind == Kind::kReference && left.kind != Kind::kAny;
      if (left_is_open || right_is_open) {
        const SchemaForms both = intersect(left_is_open ? expand(left) : SchemaForms{left},
                                           right_is_open ? expand(right) : SchemaForms{right});
        out.insert(out.end(), both.begin(), both.end());
      } else if (auto form = intersect(left, right)) {
        out.push_back(std::move(*form));
      }
    }
  }
  if (static_cast<int64_t>(out.size()) > limits_.max_branches + 6) {
    const bool are_values =
        std::ranges::all_of(out, [](const SchemaForm& form) { return form.kind == Kind::kValues; });
    if (!are_values) {
      fail(ErrorCode::kInvalidArgument,
           "more than " + std::to_string(limits_.max_branches) + " branches at " +
               place(out.back().source));
    }
  }
  return out;
}

// Neither form is a reference, unless the other is kAny.
std::optional<SchemaForm> SchemaReader::intersect(const SchemaForm& a, const SchemaForm& b) {
  if (a.kind == Kind::kAny) return b;
  if (b.kind == Kind::kAny) return a;
  if (a.kind == Kind::kValues || b.kind == Kind::kValues) {
    SchemaForm values = a.kind == Kind::kValues ? a : b;
    const SchemaForm& other = a.kind == Kind::kValues ? b : a;
    std::erase_if(values.values, [&](const Json& value) { return !is_valid(value, other); });
    if (values.values.empty()) return std::nullopt;
    return values;
  }
  if (a.kind != b.kind) return std::nullopt;
  SchemaForm both = a;
  both.is_implied = a.is_implied && b.is_implied;
  both.min_size = std::max(a.min_size, b.min_size);
  both.max_size = std::min(a.max_size, b.max_size);
  if (a.kind == Kind::kNumber) narrow_range(both, b);
  if (a.kind == Kind::kString) {
    for (const std::string& pattern : b.patterns) {
      if (std::ranges::find(both.patterns, pattern) == both.patterns.end()) {
        both.patterns.push_back(pattern);
      }
    }
    if (is_remark_on_strings(both.format)) {
      both.format = b.format;
    } else if (b.format != both.format && !is_remark_on_strings(b.format)) {
      refuse("format", b.source);
    }
  }
  if (a.kind == Kind::kArray) merge_arrays(both, b);
  if (a.kind == Kind::kObject) merge_objects(both, b);
  return both;
}

void SchemaReader::merge_arrays(SchemaForm& a, const SchemaForm& b) {
  const size_t length = std::max(a.prefix.size(), b.prefix.size());
  for (size_t i = 0; i < length; ++i) {
    if (i >= a.prefix.size()) a.prefix.push_back(a.rest);
    append(a.prefix[i], i < b.prefix.size() ? b.prefix[i] : b.rest);
  }
  append(a.rest, b.rest);
  a.has_rest = a.has_rest || b.has_rest;
  a.is_unique = a.is_unique || b.is_unique;
}

void SchemaReader::merge_objects(SchemaForm& a, SchemaForm b) {
  const bool has_patterns = !a.pattern_properties.empty() || !b.pattern_properties.empty();
  const bool has_names =
      !a.properties.empty() || !b.properties.empty() || !a.rest.empty() || !b.rest.empty();
  if (has_patterns && has_names) {
    refuse("patternProperties", b.source);
    // What the rest is without the patterns is not known.
    for (SchemaForm* form : {&a, &b}) {
      if (!form->pattern_properties.empty()) form->rest.clear();
      form->pattern_properties.clear();
    }
  }
  for (auto& [name, schemas] : a.properties) {
    const Schemas* const other = b.property(name);
    append(schemas, other != nullptr ? *other : b.rest);
  }
  for (const auto& [name, schemas] : b.properties) {
    if (a.property(name) != nullptr) continue;
    Schemas both = a.rest;
    append(both, schemas);
    a.properties.emplace_back(name, std::move(both));
  }
  append(a.rest, b.rest);
  append(a.names, b.names);
  a.required.insert(b.required.begin(), b.required.end());
  a.pattern_properties.insert(
      a.pattern_properties.end(), b.pattern_properties.begin(), b.pattern_properties.end());
}

bool SchemaReader::is_valid(const Json& value, const Schemas& schemas) {
  if (!spend()) return false;
  const SchemaForms forms = read(schemas);
  return std::ranges::any_of(forms, [&](const SchemaForm& form) { return is_valid(value, form); });
}

bool SchemaReader::is_valid(const Json& value, const SchemaForm& form) {
  switch (form.kind) {
    case Kind::kAny:
      return true;
    case Kind::kReference:
      return is_valid(value, Schemas{form.target});
    case Kind::kValues:
      return std::ranges::find(form.values, value) != form.values.end();
    case Kind::kNull:
      return value.is_null();
    case Kind::kBoolean:
      return value.is_boolean();
    case Kind::kNumber:
      return value.is_number() && fits_number(value.get<NumberBound>(), form);
    case Kind::kString:
      if (!value.is_string()) return false;
      if (!form.patterns.empty()) refuse("pattern", form.source);
      return fits_size(static_cast<size_t>(num_characters(value.get_ref<const std::string&>())),
                       form);
    case Kind::kArray: {
      if (!value.is_array() || !fits_size(value.size(), form)) return false;
      for (size_t i = 0; i < value.size(); ++i) {
        if (!is_valid(value[i], i < form.prefix.size() ? form.prefix[i] : form.rest)) return false;
        const auto before = value.begin() + static_cast<ptrdiff_t>(i);
        if (form.is_unique && std::find(value.begin(), before, value[i]) != before) return false;
      }
      return true;
    }
    case Kind::kObject:
      break;
  }
  if (!value.is_object() || !fits_size(value.size(), form)) return false;
  if (!form.pattern_properties.empty()) refuse("patternProperties", form.source);
  for (const std::string& name : form.required) {
    if (!value.contains(name)) return false;
  }
  return std::ranges::all_of(value.items(), [&](const auto& item) {
    const Schemas* const own = form.property(item.key());
    return is_valid(item.value(), own != nullptr ? *own : form.rest) &&
           (form.names.empty() || is_valid(Json(item.key()), form.names));
  });
}

bool SchemaReader::are_disjoint(const SchemaForms& a, const SchemaForms& b, int32_t depth) {
  return std::ranges::all_of(a, [&](const SchemaForm& left) {
    return std::ranges::all_of(
        b, [&](const SchemaForm& right) { return are_disjoint(left, right, depth); });
  });
}

// Returns false where that cannot be decided.
bool SchemaReader::are_disjoint(const SchemaForm& a, const SchemaForm& b, int32_t depth) {
  constexpr int32_t kDeepest = 3;
  if (!spend() || depth > kDeepest) return false;
  if (a.kind == Kind::kAny || b.kind == Kind::kAny) return false;
  if (a.kind == Kind::kReference) return are_disjoint(expand(a), SchemaForms{b}, depth + 1);
  if (b.kind == Kind::kReference) return are_disjoint(SchemaForms{a}, expand(b), depth + 1);
  if (a.kind == Kind::kValues || b.kind == Kind::kValues) {
    const SchemaForm& values = a.kind == Kind::kValues ? a : b;
    const SchemaForm& other = a.kind == Kind::kValues ? b : a;
    return std::ranges::none_of(values.values,
                                [&](const Json& value) { return is_valid(value, other); });
  }
  if (a.kind != b.kind) return true;
  if (a.min_size > b.max_size || b.min_size > a.max_size) return true;
  if (a.kind == Kind::kNumber) {
    const auto is_below = [](const SchemaForm& low, const SchemaForm& high) {
      return low.max < high.min || (low.max == high.min && (low.excludes_max || high.excludes_min));
    };
    return is_below(a, b) || is_below(b, a);
  }
  if (a.kind != Kind::kObject) return false;
  const auto forbids = [](const SchemaForm& form, const std::string& name) {
    const Schemas* const own = form.property(name);
    return form.pattern_properties.empty() && contains_never(own != nullptr ? *own : form.rest);
  };
  const auto excludes = [&](const SchemaForm& one, const SchemaForm& other) {
    return std::ranges::any_of(one.required,
                               [&](const std::string& name) { return forbids(other, name); });
  };
  if (excludes(a, b) || excludes(b, a)) return true;
  return std::ranges::any_of(a.required, [&](const std::string& name) {
    const Schemas* const left = a.property(name);
    const Schemas* const right = b.property(name);
    return left != nullptr && right != nullptr && b.required.contains(name) &&
           are_disjoint(read(*left), read(*right), depth + 1);
  });
}

}  // namespace sluice
