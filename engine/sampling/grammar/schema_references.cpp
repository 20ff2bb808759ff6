// SPDX-License-Identifier: Apache-2.0
// $ref: what it names, through any number of others.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/hex.h"
#include "engine/sampling/grammar/schema_forms.h"

namespace sluice {
namespace {

using Json = SchemaJson;

}  // namespace

bool SchemaReader::is_only_reference(const Json& schema) {
  static constexpr std::array kBeside = {"$ref",
                                         "title",
                                         "description",
                                         "$comment",
                                         "default",
                                         "examples",
                                         "$defs",
                                         "definitions",
                                         "deprecated",
                                         "readOnly",
                                         "writeOnly",
                                         "$schema",
                                         "$id"};
  if (!schema.is_object() || !schema.contains("$ref")) return false;
  return std::ranges::all_of(schema.items(), [](const auto& item) {
    return std::ranges::find(kBeside, item.key()) != kBeside.end();
  });
}

const Json* SchemaReader::look_up(const Json& schema) {
  const Json& reference = schema["$ref"];
  if (!reference.is_string()) {
    fail(ErrorCode::kInvalidArgument, "$ref is no string at " + place(&schema));
    return nullptr;
  }
  const auto& text = reference.get_ref<const std::string&>();
  const auto unresolved = [&] {
    fail(ErrorCode::kUnsupported,
         "unsupported keyword '$ref' at " + place(&schema) + ": it leads to nothing in the schema");
    return nullptr;
  };
  if (text != "#" && !text.starts_with("#/")) return unresolved();
  const Json* at = &root_;
  std::string rest = percent_decoded(text.substr(1));
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    std::string token = rest.substr(1, end - 1);
    rest.erase(0, end);
    for (size_t i = 0; (i = token.find('~', i)) != std::string::npos; ++i) {
      if (token.compare(i, 2, "~1") == 0) {
        token.replace(i, 2, "/");
      } else if (token.compare(i, 2, "~0") == 0) {
        token.replace(i, 2, "~");
      }
    }
    if (at->is_object()) {
      const auto found = at->find(token);
      if (found == at->end()) return unresolved();
      at = &*found;
    } else if (at->is_array()) {
      const bool is_index = !token.empty() && token.size() < 7 &&
                            token.find_first_not_of("0123456789") == std::string::npos;
      if (!is_index || std::stoul(token) >= at->size()) return unresolved();
      at = &(*at)[std::stoul(token)];
    } else {
      return unresolved();
    }
    // A schema with an identity of its own changes the base of references.
    if (at->is_object() && at->contains("$id")) return unresolved();
  }
  return at;
}

const Json* SchemaReader::resolve(const Json& schema) {
  const Json* at = &schema;
  for (int32_t steps = 0; is_only_reference(*at); ++steps) {
    if (steps > limits_.max_depth) {
      fail(ErrorCode::kInvalidArgument, "references in a circle at " + place(&schema));
      return nullptr;
    }
    at = look_up(*at);
    if (at == nullptr) return nullptr;
  }
  return at;
}

SchemaForms SchemaReader::expand(const SchemaForm& reference) {
  SchemaForms forms = read({reference.target});
  if (reference.is_implied) {
    for (SchemaForm& form : forms) form.is_implied = true;
  }
  return forms;
}

}  // namespace sluice
