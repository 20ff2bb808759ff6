// SPDX-License-Identifier: Apache-2.0
#include "server/tools/literal_list.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// The number of parts that a list is cut into: a compromise between the nesting of many items and
// the copies of what follows a part.
constexpr size_t kNumParts = 8;

class ListWriter {
 public:
  ListWriter(const Json& items,
             const std::vector<bool>& required,
             std::string_view separator,
             TagWriter& writer)
      : items_(items), required_(required), separator_(separator), writer_(writer) {}

  [[nodiscard]] bool has_required(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      if (required_[i]) return true;
    }
    return false;
  }

  // At least one of the items from `begin` to `end` (not empty), and all that are required: a
  // choice of the part that holds the first one.
  [[nodiscard]] Expected<Json> some_of(size_t begin, size_t end) const {
    if (end - begin == 1) return copy_of(begin);
    const size_t part_size = (end - begin + kNumParts - 1) / kNumParts;
    Json choices = Json::array();
    for (size_t part = begin; part < end; part += part_size) {
      const size_t part_end = std::min(part + part_size, end);
      SLUICE_TRY(Json first, some_of(part, part_end));
      Json choice = Json::array({std::move(first)});
      SLUICE_TRY_VOID(add_rest(part_end, end, choice));
      choices.push_back(TagWriter::sequence(std::move(choice)));
      if (has_required(part, part_end)) break;
    }
    return TagWriter::choice(std::move(choices));
  }

 private:
  [[nodiscard]] Expected<Json> copy_of(size_t index) const {
    SLUICE_TRY_VOID(writer_.spend(items_[index]));
    return items_[index];
  }

  // Items that follow one that is present.
  [[nodiscard]] Expected<void> add_rest(size_t begin, size_t end, Json& elements) const {
    for (size_t i = begin; i < end; ++i) {
      SLUICE_TRY(Json item, copy_of(i));
      Json part = Json::array();
      writer_.add_text(separator_, part);
      part.push_back(std::move(item));
      if (required_[i]) {
        elements.push_back(TagWriter::sequence(std::move(part)));
      } else {
        writer_.add_optional(std::move(part), elements);
      }
    }
    return {};
  }

  const Json& items_;
  const std::vector<bool>& required_;
  const std::string_view separator_;
  TagWriter& writer_;
};

}  // namespace

Expected<void> add_list(const Json& items,
                        const std::vector<bool>& required,
                        std::string_view separator,
                        TagWriter& writer,
                        Json& elements) {
  if (items.empty()) return {};
  const ListWriter list(items, required, separator, writer);
  SLUICE_TRY(Json found, list.some_of(0, items.size()));
  Json some = Json::array({std::move(found)});
  if (list.has_required(0, items.size())) {
    elements.push_back(TagWriter::sequence(std::move(some)));
  } else {
    writer.add_optional(std::move(some), elements);
  }
  return {};
}

}  // namespace sluice
