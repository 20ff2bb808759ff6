// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_reader.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/json/json_fields.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

enum class Writer : uint8_t { kClient, kModel };

// Builds the tree itself: nlohmann's own builder looks a key up for each insertion into an ordered
// object, which is quadratic, and keeps one of two equal keys.
class TreeBuilder {
 public:
  TreeBuilder(Json& root, int32_t max_depth, Writer writer)
      : root_(root), max_depth_(max_depth), writer_(writer) {}

  bool null() { return add(nullptr); }

  bool boolean(bool value) { return add(value); }

  bool number_integer(Json::number_integer_t value) { return add(value); }

  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }

  bool number_float(Json::number_float_t value, const std::string& text) {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    if (writer_ == Writer::kModel && is_integer) return fail("An integer has over 64 bits.");
    return add(value);
  }

  bool string(std::string& value) { return add(std::move(value)); }

  bool binary(Json::binary_t&) { return fail("Binary values are not JSON."); }

  bool start_object(size_t) { return open(Json::object()); }

  bool end_object() { return close(); }

  bool start_array(size_t) { return open(Json::array()); }

  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    const auto [known, is_new] = level.keys.emplace(name, level.keys.size());
    if (!is_new && writer_ == Writer::kClient) {
      return fail("Duplicate key '" + show_text(name) + "' in an object.");
    }
    level.index = known->second;
    if (static_cast<int64_t>(level.keys.size()) > kMaxJsonMembers) {
      return fail("An object may have at most " + std::to_string(kMaxJsonMembers) + " members.");
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) {
    // Drops the library's tag: "[json.exception.parse_error.101] ".
    std::string_view text = error.what();
    if (const size_t end = text.find("] "); end != std::string_view::npos) {
      text.remove_prefix(end + 2);
    }
    return fail("The request body is not valid JSON (byte " + std::to_string(position) +
                "): " + shorten(text));
  }

  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  struct Level {
    Json* node;
    std::string key;
    size_t index = 0;                    // the key's place among the members
    std::map<std::string, size_t> keys;  // ordered: hashes could be made to collide
  };

  static std::string shorten(std::string_view text) {
    constexpr size_t kMaxShown = 160;
    return to_valid_utf8(text.substr(0, kMaxShown));
  }

  bool fail(std::string message) {
    if (message_.empty()) message_ = std::move(message);
    return false;
  }

  // Counts a value; false: there are too many.
  bool count() {
    if (++num_values_ <= kMaxJsonValues) return true;
    return fail("JSON may have at most " + std::to_string(kMaxJsonValues) + " values.");
  }

  Json* place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.node->is_array()) {
      auto& array = level.node->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    // key() has already found equal keys.
    auto& members = static_cast<Json::object_t::Container&>(level.node->get_ref<Json::object_t&>());
    if (level.index < members.size()) {
      members[level.index].second = std::move(value);
      return &members[level.index].second;
    }
    return &append_member(*level.node, std::move(level.key), std::move(value));
  }

  template <typename Value>
  bool add(Value&& value) {
    if (!count()) return false;
    place(Json(std::forward<Value>(value)));
    return true;
  }

  bool open(Json container) {
    if (static_cast<int32_t>(levels_.size()) >= max_depth_) {
      return fail("JSON may be nested at most " + std::to_string(max_depth_) + " deep.");
    }
    if (!count()) return false;
    Json* node = place(std::move(container));
    levels_.push_back(Level{node, {}, 0, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  Json& root_;
  int32_t max_depth_;
  Writer writer_;
  int64_t num_values_ = 0;
  std::vector<Level> levels_;
  std::string message_;
};

Expected<Json> parse(std::string_view text, int32_t max_depth, Writer writer) {
  Json root;
  TreeBuilder builder(root, max_depth, writer);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return make_error(ErrorCode::kInvalidArgument, builder.message());
  }
  return root;
}

}  // namespace

Expected<Json> parse_json(std::string_view body, int32_t max_depth) {
  return parse(body, max_depth, Writer::kClient);
}

Expected<Json> parse_body(std::string_view body, int32_t max_depth) {
  SLUICE_TRY(Json parsed, parse_json(body, max_depth));
  if (parsed.is_object()) return parsed;
  return make_error(ErrorCode::kInvalidArgument, "The request body must be a JSON object.");
}

Expected<Json> parse_written_json(std::string_view text, int32_t max_depth) {
  return parse(text, max_depth, Writer::kModel);
}

}  // namespace sluice
