// SPDX-License-Identifier: Apache-2.0
#include "server/router/kv_event_feed.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/json/json_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// Refuses values nested deeper than a message, because their reader would follow them by recursion,
// and more of them than a tree may have.
class BoundedSax final : public Json::json_sax_t {
 public:
  bool null() override { return count(); }

  bool boolean(bool) override { return count(); }

  bool number_integer(Json::number_integer_t) override { return count(); }

  bool number_unsigned(Json::number_unsigned_t) override { return count(); }

  bool number_float(Json::number_float_t, const std::string&) override { return count(); }

  bool string(std::string&) override { return count(); }

  bool binary(Json::binary_t&) override { return count(); }

  bool key(std::string&) override { return count(); }

  bool start_object(std::size_t) override { return ++depth_ <= kMostDepth && count(); }

  bool end_object() override { return --depth_ >= 0; }

  bool start_array(std::size_t) override { return ++depth_ <= kMostDepth && count(); }

  bool end_array() override { return --depth_ >= 0; }

  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  static constexpr int kMostDepth = 8;

  bool count() { return ++num_values_ <= kMaxJsonValues; }

  int depth_ = 0;
  int64_t num_values_ = 0;  // and keys
};

Json read_message(std::span<const uint8_t> message) {
  BoundedSax sax;
  const auto format = Json::input_format_t::msgpack;
  if (!Json::sax_parse(message.begin(), message.end(), &sax, format)) return {};
  return Json::from_msgpack(message.begin(), message.end(), true, false);
}

// The members of an event, in either of its two forms.
struct Fields {
  std::string type;
  const Json* hashes = nullptr;
  const Json* parent = nullptr;
  const Json* token_ids = nullptr;
  const Json* block_size = nullptr;
  const Json* adapter = nullptr;
  const Json* medium = nullptr;
  const Json* extra_keys = nullptr;
  const Json* group = nullptr;
};

const Json* at(const Json& array, size_t place) {
  return place < array.size() ? &array[place] : nullptr;
}

const Json* at(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::optional<Fields> fields_of(const Json& event) {
  Fields fields;
  if (event.is_object()) {
    const Json* const type = at(event, "type");
    if (type == nullptr || !type->is_string()) return std::nullopt;
    fields.type = type->get<std::string>();
    fields.hashes = at(event, "block_hashes");
    fields.parent = at(event, "parent_block_hash");
    fields.token_ids = at(event, "token_ids");
    fields.block_size = at(event, "block_size");
    fields.adapter = at(event, "lora_id");
    fields.medium = at(event, "medium");
    fields.extra_keys = at(event, "extra_keys");
    fields.group = at(event, "group_idx");
    return fields;
  }
  if (!event.is_array() || event.empty() || !event[0].is_string()) return std::nullopt;
  fields.type = event[0].get<std::string>();
  fields.hashes = at(event, 1);
  if (fields.type == "BlockRemoved") {
    fields.medium = at(event, 2);
    return fields;
  }
  fields.parent = at(event, 2);
  fields.token_ids = at(event, 3);
  fields.block_size = at(event, 4);
  fields.adapter = at(event, 5);
  fields.medium = at(event, 6);
  fields.extra_keys = at(event, 8);
  return fields;
}

bool is_text(const Json* value, const char* text) {
  return value != nullptr && value->is_string() && value->get_ref<const std::string&>() == text;
}

// Tells whether the event concerns attention's cache: the first group of layers, on the GPU.
bool counts(const Fields& fields) {
  const bool is_first = fields.group == nullptr || *fields.group == 0;
  return is_first && is_text(fields.medium, "GPU");
}

std::optional<std::vector<uint64_t>> numbers_in(const Json* array) {
  if (array == nullptr || !array->is_array()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const Json& item : *array) {
    if (!item.is_number_integer()) return std::nullopt;
    numbers.push_back(item.get<uint64_t>());
  }
  return numbers;
}

// Returns the root for [tenant's salt, adapter, media] of the first block; nothing: all 0, or
// media, which no prompt here has.
std::optional<uint64_t> root_of(const Fields& fields) {
  if (fields.extra_keys == nullptr || fields.extra_keys->is_null()) return chain_root(0, 0);
  const Json& keys = *fields.extra_keys;
  if (!keys.is_array() || keys.empty()) return std::nullopt;
  const auto first = numbers_in(&keys[0]);
  constexpr size_t kKeys = 3;
  if (!first || first->size() != kKeys || (*first)[2] != 0) return std::nullopt;
  return chain_root((*first)[0], static_cast<int32_t>((*first)[1]));
}

}  // namespace

struct KvEventFeed::Reader {
  KvEventFeed& feed;
  KnownPrefixes& index;

  // Returns false if the event is broken.
  bool take(const Json& event) {
    const auto fields = fields_of(event);
    if (!fields) return false;
    if (fields->type == "AllBlocksCleared") {
      index.clear();
      feed.own_hashes_.clear();
      return true;
    }
    if (fields->type == "BlockRemoved") return remove(*fields);
    return fields->type != "BlockStored" || store(*fields);  // later events may be valid
  }

  bool remove(const Fields& fields) {
    const auto hashes = numbers_in(fields.hashes);
    if (!hashes) return false;
    if (!counts(fields)) return true;
    for (const uint64_t hash : *hashes) {
      const auto found = feed.own_hashes_.find(hash);
      if (found == feed.own_hashes_.end()) continue;
      index.remove(found->second);
      feed.own_hashes_.erase(found);
    }
    return true;
  }

  bool store(const Fields& fields) {
    const auto hashes = numbers_in(fields.hashes);
    const auto tokens = numbers_in(fields.token_ids);
    const bool has_size = fields.block_size != nullptr && fields.block_size->is_number_integer();
    const auto block_size = has_size ? fields.block_size->get<int64_t>() : 0;
    constexpr int64_t kMostTokens = 4096;  // in a block
    if (!hashes || !tokens || block_size < 1 || block_size > kMostTokens) return false;
    const auto size = static_cast<size_t>(block_size);
    if (tokens->size() != hashes->size() * size) return false;
    if (!counts(fields)) return true;
    std::optional<uint64_t> own;
    if (fields.parent == nullptr || fields.parent->is_null()) {
      own = root_of(fields);
    } else if (fields.parent->is_number_integer()) {
      const auto found = feed.own_hashes_.find(fields.parent->get<uint64_t>());
      if (found != feed.own_hashes_.end()) own = found->second;
    } else {
      return false;
    }
    if (!own) return true;  // its parent is not known
    for (size_t i = 0; i < hashes->size(); ++i) {
      own = chain_next(*own, std::span(*tokens).subspan(i * size, size));
      index.add(std::span(&*own, 1));
      feed.own_hashes_[(*hashes)[i]] = *own;
      feed.forget_excess(index);
    }
    return true;
  }
};

// Hashes of blocks that the index has forgotten are kept up to a quarter of its capacity. Each walk
// over all leaves a fifth of the room, so that few stored blocks cause one.
void KvEventFeed::forget_excess(const KnownPrefixes& index) {
  constexpr size_t kLeast = 1024;
  const size_t most = std::max(kLeast, index.capacity() + index.capacity() / 4);
  if (own_hashes_.size() <= most) return;
  std::erase_if(own_hashes_, [&index](const auto& entry) {
    return index.num_known(std::span(&entry.second, 1)) == 0;
  });
  // Many hashes of one block: of no cache.
  if (own_hashes_.size() > most - most / 5) own_hashes_.clear();
}

KvEventFeed::Verdict KvEventFeed::take(int64_t number,
                                       std::span<const uint8_t> message,
                                       KnownPrefixes& index) {
  const bool has_gap = last_number_ && (*last_number_ == INT64_MAX || number != *last_number_ + 1);
  if (has_gap) reset(index);
  last_number_ = number;
  const Json batch = read_message(message);
  const Json* const events = batch.is_array() ? at(batch, size_t{1}) : nullptr;
  bool is_whole = events != nullptr && events->is_array();
  if (is_whole) {
    Reader reader{*this, index};
    for (const Json& event : *events) is_whole = is_whole && reader.take(event);
  }
  if (!is_whole) {
    reset(index);
    return Verdict::kBroken;
  }
  return has_gap ? Verdict::kGap : Verdict::kApplied;
}

void KvEventFeed::reset(KnownPrefixes& index) {
  last_number_.reset();
  own_hashes_.clear();
  index.clear();
}

}  // namespace sluice
