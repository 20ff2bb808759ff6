// SPDX-License-Identifier: Apache-2.0
// A JSON schema as a choice of forms that each have one type or a list of values: the conjunctions
// of JSON Schema (allOf, siblings, keywords beside references) become intersections. Meanings are
// exact; where there is no exact form, an error names keyword and place.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/sampling/grammar/schema_limits.h"
#include "engine/sampling/grammar/schema_loss.h"

namespace sluice {

using SchemaJson = nlohmann::ordered_json;
// Parts of the document that all hold; an empty list allows anything.
using Schemas = std::vector<const SchemaJson*>;

// Has all integers of 64 bits, signed or not.
using NumberBound = long double;
static_assert(std::numeric_limits<NumberBound>::digits >= 64);

struct SchemaForm {
  enum class Kind : uint8_t {
    kAny,
    kReference,
    kValues,
    kNull,
    kBoolean,
    kNumber,
    kString,
    kArray,
    kObject
  };

  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  Kind kind = Kind::kAny;
  // The schema does not name the type, and keywords of another type say what it is about.
  bool is_implied = false;

  const SchemaJson* target = nullptr;  // kReference

  std::vector<SchemaJson> values;  // kValues

  // kNumber.
  bool is_integer = false;
  NumberBound min = -std::numeric_limits<NumberBound>::infinity();
  NumberBound max = std::numeric_limits<NumberBound>::infinity();
  bool excludes_min = false;
  bool excludes_max = false;
  std::vector<double> multiples;

  // kString: characters; kArray: items; kObject: properties.
  int64_t min_size = 0;
  int64_t max_size = kUnbounded;

  // kString.
  std::vector<std::string> patterns;
  std::string format;

  // kArray.
  std::vector<Schemas> prefix;
  bool has_rest = false;  // a keyword says what follows the prefix
  bool is_unique = false;

  // kArray: items after the prefix; kObject: other properties.
  Schemas rest;

  // kObject.
  std::vector<std::pair<std::string, Schemas>> properties;
  std::set<std::string> required;
  std::vector<std::pair<std::string, const SchemaJson*>> pattern_properties;
  Schemas names;

  const SchemaJson* source = nullptr;  // for errors

  [[nodiscard]] Schemas* property(const std::string& name);
  [[nodiscard]] const Schemas* property(const std::string& name) const;
};

using SchemaForms = std::vector<SchemaForm>;

// Reads parts of one document. After an error the returned values mean nothing.
class SchemaReader {
 public:
  // `root` outlives the reader.
  SchemaReader(const SchemaJson& root, bool is_best_effort, const SchemaLimits& limits);

  // Returns the forms; an empty list means that no value is valid.
  SchemaForms read(const Schemas& schemas);

  // The schema that a reference leads to, through chains of references; null with an error.
  const SchemaJson* resolve(const SchemaJson& schema);

  [[nodiscard]] static bool is_only_reference(const SchemaJson& schema);
  // The schema `false`.
  [[nodiscard]] static const SchemaJson* never();

  bool is_valid(const SchemaJson& value, const Schemas& schemas);

  // Reports an error; with best effort, leaves the keyword out instead.
  void refuse(std::string_view keyword, const SchemaJson* schema);
  // With best effort, names a keyword that the grammar keeps and that leaves valid values out.
  void tell(std::string_view keyword, const SchemaJson* schema);
  void fail(ErrorCode code, std::string message);

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  [[nodiscard]] bool is_best_effort() const { return is_best_effort_; }

  // Returns what refuse() and tell() have named, up to 64 keywords.
  [[nodiscard]] std::vector<LeftOutKeyword>& left_out() { return left_out_; }

  [[nodiscard]] std::string place(const SchemaJson* schema) const;

 private:
  // Where a value of the document is: in which one (null: it is the document), and under which name
  // or index there. Whole places would repeat long names for each value inside.
  struct Place {
    const SchemaJson* outer = nullptr;
    std::string token;  // of a JSON pointer
  };

  void survey(const SchemaJson& value, Place at, int32_t depth);
  [[nodiscard]] const SchemaJson* in_document(const SchemaJson* schema) const;
  bool spend();

  SchemaForms forms_of(const SchemaJson& schema);
  SchemaForms typed_forms(const SchemaJson& schema);
  SchemaForm form_of_type(SchemaForm::Kind kind, const SchemaJson& schema);
  void read_number(const SchemaJson& schema, SchemaForm& form);
  void read_string(const SchemaJson& schema, SchemaForm& form);
  void read_array(const SchemaJson& schema, SchemaForm& form);
  void read_object(const SchemaJson& schema, SchemaForm& form);
  void read_other_properties(const SchemaJson& schema, SchemaForm& form);
  void read_unevaluated(const SchemaJson& schema, SchemaForms& forms);
  SchemaForms one_of(const SchemaJson& schema);
  Schemas dependencies(const SchemaJson& schema);
  bool holds_anything(const SchemaJson& schema);
  const SchemaJson& make(SchemaJson schema, const SchemaJson& origin);
  int64_t read_size(const SchemaJson& schema, const char* keyword, int64_t fallback);
  void refuse_unknown(const SchemaJson& schema);
  const SchemaJson* look_up(const SchemaJson& schema);

  SchemaForms intersect(const SchemaForms& a, const SchemaForms& b);
  std::optional<SchemaForm> intersect(const SchemaForm& a, const SchemaForm& b);
  void merge_arrays(SchemaForm& a, const SchemaForm& b);
  void merge_objects(SchemaForm& a, SchemaForm b);
  SchemaForms expand(const SchemaForm& reference);
  bool is_valid(const SchemaJson& value, const SchemaForm& form);
  bool are_disjoint(const SchemaForm& a, const SchemaForm& b, int32_t depth);
  bool are_disjoint(const SchemaForms& a, const SchemaForms& b, int32_t depth);

  const SchemaJson& root_;
  const bool is_best_effort_;
  const SchemaLimits limits_;
  std::optional<Error> error_;
  std::vector<LeftOutKeyword> left_out_;
  std::set<std::pair<const SchemaJson*, std::string>> left_out_of_;  // the same, by schema
  std::unordered_map<const SchemaJson*, Place> places_;
  std::vector<std::unique_ptr<SchemaJson>> made_;  // schemas that keywords imply
  std::unordered_map<const SchemaJson*, const SchemaJson*> origins_;  // of these, in the document
  std::unordered_map<const SchemaJson*, Schemas> dependencies_;
  int64_t num_nodes_ = 0;
  int64_t num_properties_ = 0;
  int64_t num_enum_values_ = 0;
  int64_t work_ = 0;
  int32_t depth_ = 0;
};

}  // namespace sluice
