// SPDX-License-Identifier: Apache-2.0
#include "server/front/kv_params.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/core/hex.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"
#include "server/keys/digest.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr int64_t kMaxPort = 65535;
constexpr size_t kMaxTextBytes = 512;  // addresses, names of engines and transfers
constexpr size_t kMaxHandoffs = 4096;  // one for each prompt or choice
constexpr const char* kTransfer = "kv_transfer_params";

// A member of `object`, called `place` in messages; empty: absent or null.
Expected<std::string> read_text(const Json& object, const char* name, const std::string& place) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return std::string();
  if (value->is_string() && value->get_ref<const std::string&>().size() <= kMaxTextBytes) {
    return value->get<std::string>();
  }
  return invalid(place + name + " must be a string of at most " + std::to_string(kMaxTextBytes) +
                     " bytes, got " + show_value(*value) + ".",
                 kTransfer);
}

Expected<bool> read_flag(const Json& object, const char* name) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  return invalid("kv_transfer_params." + std::string(name) + " must be a boolean, got " +
                     show_value(*value) + ".",
                 kTransfer);
}

template <size_t kBytes>
Expected<void> read_hex(const Json& object, const char* name, std::array<uint8_t, kBytes>& out) {
  const Json* value = find_field(object, name);
  const bool is_good =
      value != nullptr && value->is_string() && from_hex(value->get_ref<const std::string&>(), out);
  if (is_good) return {};
  return invalid("kv_transfer_params.sluice." + std::string(name) + " must be " +
                     std::to_string(2 * kBytes) + " hexadecimal digits.",
                 kTransfer);
}

Expected<uint64_t> read_hex_number(const Json& object, const char* name) {
  std::array<uint8_t, sizeof(uint64_t)> bytes{};
  SLUICE_TRY_VOID(read_hex(object, name, bytes));
  uint64_t number = 0;
  for (const uint8_t byte : bytes) number = number << 8 | byte;
  return number;
}

std::string hex_number(uint64_t number) {
  std::array<uint8_t, sizeof number> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return to_hex(bytes);
}

Expected<int32_t> read_count(const Json& object, const char* name, int64_t min) {
  const Json* value = find_field(object, name);
  auto count = to_integer(value != nullptr ? *value : Json(),
                          "kv_transfer_params.sluice." + std::string(name),
                          min,
                          std::numeric_limits<int32_t>::max());
  if (count) return static_cast<int32_t>(*count);
  return invalid(count.error().message, kTransfer);
}

// The object that offer_json() writes.
Expected<NamedHandoff> read_offer(const Json& object) {
  const std::string place = "kv_transfer_params.sluice.";
  NamedHandoff out;
  out.spec.kind = HandoffKind::kFetch;
  const Json* version = find_field(object, "v");
  if (version == nullptr || !version->is_number_integer()) {
    return invalid(place + "v must be an integer.", kTransfer);
  }
  out.is_foreign = *version != kVersion;
  if (out.is_foreign) return out;
  HandoffResult& result = out.spec.result.emplace();
  SLUICE_TRY_VOID(read_hex(object, "transfer_id", out.spec.transfer));
  SLUICE_TRY(out.spec.peer_epoch, read_hex_number(object, "epoch"));
  SLUICE_TRY(out.spec.peer, read_text(object, "addr", place));
  SLUICE_TRY(out.spec.peer_fingerprint, read_text(object, "fingerprint", place));
  SLUICE_TRY_VOID(read_hex(object, "key", result.key));
  SLUICE_TRY(result.num_prompt_tokens, read_count(object, "tokens", 1));
  SLUICE_TRY(result.num_blocks, read_count(object, "blocks", 0));
  SLUICE_TRY(result.seed, read_hex_number(object, "seed"));
  SLUICE_TRY(result.first_token, read_count(object, "first_token", 0));
  SLUICE_TRY(result.check, read_hex_number(object, "check"));
  std::array<uint8_t, 16> digest{};
  SLUICE_TRY_VOID(read_hex(object, "prompt_digest", digest));
  out.prompt_digest = to_hex(digest);
  return out;
}

// GET /query names an engine "epoch@host:port", and routers send that name back. An engine named by
// another scheme is at the address where the router asked for its name.
std::string mooncake_peer(const std::string& engine_id, std::string_view address) {
  const size_t at = engine_id.rfind('@');
  if (at != std::string::npos) return engine_id.substr(at + 1);
  if (const size_t scheme = address.find("://"); scheme != std::string_view::npos) {
    address.remove_prefix(scheme + 3);
  }
  return std::string(address.substr(0, address.find('/')));
}

Expected<std::optional<NamedHandoff>> read_transfer(const Json& object) {
  const std::string place = "kv_transfer_params.";
  if (!object.is_object()) {
    return invalid("kv_transfer_params must be an object, got " + show_value(object) + ".",
                   kTransfer);
  }
  SLUICE_TRY(const bool offers, read_flag(object, "do_remote_decode"));
  SLUICE_TRY(const bool fetches, read_flag(object, "do_remote_prefill"));
  SLUICE_TRY(const std::string transfer, read_text(object, "transfer_id", place));
  SLUICE_TRY(const std::string engine_id, read_text(object, "remote_engine_id", place));
  SLUICE_TRY(const std::string address, read_text(object, "remote_bootstrap_addr", place));
  if (offers && fetches) {
    return invalid("kv_transfer_params cannot have both do_remote_decode and do_remote_prefill.",
                   kTransfer);
  }
  if (!offers && !fetches) return std::optional<NamedHandoff>();
  NamedHandoff out;
  const Json* own = find_field(object, "sluice");
  if (own != nullptr && !own->is_object()) {
    return invalid("kv_transfer_params.sluice must be an object.", kTransfer);
  }
  if (fetches && own != nullptr) {
    SLUICE_TRY(out, read_offer(*own));
    return std::optional<NamedHandoff>(std::move(out));
  }
  out.spec.kind = offers ? HandoffKind::kOffer : HandoffKind::kFetch;
  out.is_foreign = fetches;
  if (transfer.empty()) return std::optional<NamedHandoff>(std::move(out));
  out.spec.mode = HandoffMode::kConcurrent;
  out.spec.transfer = transfer_id_of(std::array<std::string, 2>{"transfer_id", transfer});
  if (fetches) out.spec.peer = mooncake_peer(engine_id, address);
  out.is_foreign = fetches && out.spec.peer.empty();
  return std::optional<NamedHandoff>(std::move(out));
}

Expected<NamedHandoff> read_bootstrap(const Json& host, const Json& port, const Json& room) {
  if (!host.is_null() &&
      (!host.is_string() || host.get_ref<const std::string&>().size() > kMaxTextBytes)) {
    return invalid("bootstrap_host must be a string of at most " + std::to_string(kMaxTextBytes) +
                       " bytes, got " + show_value(host) + ".",
                   "bootstrap_host");
  }
  NamedHandoff out;
  out.is_bootstrap = true;
  out.spec.kind = HandoffKind::kFetch;
  out.spec.mode = HandoffMode::kConcurrent;
  SLUICE_TRY(const int64_t number,
             to_integer(room, "bootstrap_room", 0, std::numeric_limits<int64_t>::max()));
  int64_t where = 0;
  if (!port.is_null()) {
    SLUICE_TRY(where, to_integer(port, "bootstrap_port", 1, kMaxPort));
  }
  const std::string name = host.is_null() ? std::string() : host.get<std::string>();
  out.is_foreign = name.empty() || where == 0;
  out.spec.peer = name + ":" + std::to_string(where);
  out.spec.transfer = transfer_id_of(
      std::array<std::string, 3>{name, std::to_string(where), std::to_string(number)});
  return out;
}

// Item i of a field that is one value for all or a list of one for each.
Expected<Json> item_of(const Json& value, const char* name, size_t i, size_t count) {
  if (!value.is_array()) return value;
  if (value.size() == count) return value[i];
  return invalid(std::string(name) + " must have as many items as bootstrap_room, " +
                     std::to_string(count) + ", got " + std::to_string(value.size()) + ".",
                 name);
}

Expected<void> read_rooms(const Json& body, KvParams& out) {
  const auto field = [&](const char* name) {
    const Json* found = find_field(body, name);
    return found != nullptr ? *found : Json();
  };
  const Json host = field("bootstrap_host");
  const Json port = field("bootstrap_port");
  const Json rooms = field("bootstrap_room");
  if (rooms.is_null()) return {};  // a server of its own: no other one knows of this request
  out.is_list = rooms.is_array();
  const size_t count = out.is_list ? rooms.size() : 1;
  if (count > kMaxHandoffs) {
    return invalid("bootstrap_room may have at most " + std::to_string(kMaxHandoffs) + " items.",
                   "bootstrap_room");
  }
  for (size_t i = 0; i < count; ++i) {
    SLUICE_TRY(const Json one_host, item_of(host, "bootstrap_host", i, count));
    SLUICE_TRY(const Json one_port, item_of(port, "bootstrap_port", i, count));
    SLUICE_TRY(NamedHandoff named,
               read_bootstrap(one_host, one_port, out.is_list ? rooms[i] : rooms));
    out.handoffs.push_back(std::move(named));
  }
  return {};
}

bool is_own_address(const std::string& peer, const std::optional<HandoffInfo>& info) {
  return info && peer == info->host + ":" + std::to_string(info->port);
}

}  // namespace

Expected<KvParams> read_kv_params(const Json& body) {
  KvParams out;
  SLUICE_TRY_VOID(read_rooms(body, out));
  const Json* transfer = find_field(body, kTransfer);
  if (transfer == nullptr) return out;
  SLUICE_TRY(std::optional<NamedHandoff> named, read_transfer(*transfer));
  if (!named) return out;
  if (!out.handoffs.empty()) {
    return invalid("kv_transfer_params and bootstrap_room cannot be used together.", kTransfer);
  }
  out.handoffs.push_back(std::move(*named));
  return out;
}

ResolvedHandoff resolve_handoff(const NamedHandoff& named,
                                std::span<const TokenId> prompt,
                                bool scores_prompt,
                                const HandoffPart& part) {
  ResolvedHandoff out;
  HandoffSpec spec = named.spec;
  if (named.is_bootstrap) {
    const bool is_prefill =
        part.role == HandoffRole::kPrefill ||
        (part.role == HandoffRole::kBoth && is_own_address(spec.peer, part.info));
    out.makes_one_token = is_prefill;
    spec.kind = is_prefill ? HandoffKind::kOffer : HandoffKind::kFetch;
    if (is_prefill) spec.peer.clear();
  }
  if (spec.kind == HandoffKind::kFetch) {
    const bool is_for_prompt =
        !spec.result || (static_cast<size_t>(spec.result->num_prompt_tokens) == prompt.size() &&
                         named.prompt_digest == prompt_digest(prompt));
    if (named.is_foreign) {
      out.fallback = HandoffFallback::kForeignBlob;
    } else if (!is_for_prompt) {
      out.fallback = HandoffFallback::kWrongPrompt;
    } else if (spec.result) {
      out.seed = spec.result->seed;
    }
    if (!out.fallback && scores_prompt) out.fallback = HandoffFallback::kScoresPrompt;
  }
  const HandoffRole against =
      spec.kind == HandoffKind::kFetch ? HandoffRole::kPrefill : HandoffRole::kDecode;
  if (!out.fallback && (!part.info || part.role == against)) {
    out.fallback = HandoffFallback::kNoHandoff;
  }
  if (!out.fallback) out.spec = std::move(spec);
  return out;
}

TransferId transfer_id_of(std::span<const std::string> texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += text + '\0';
  const Digest digest = digest_of(bytes);
  TransferId id{};
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::string prompt_digest(std::span<const TokenId> prompt) {
  std::string bytes;
  bytes.reserve(prompt.size() * sizeof(uint32_t));
  for (const TokenId id : prompt) {
    const auto value = static_cast<uint32_t>(id);
    for (const int shift : {0, 8, 16, 24}) bytes += static_cast<char>(value >> shift & 0xFF);
  }
  const Digest digest = digest_of(bytes);
  return to_hex(std::span(digest).first(16));
}

std::string offer_json(const HandoffOffer& offer,
                       const HandoffInfo& info,
                       std::string_view fingerprint,
                       std::string_view digest,
                       int32_t tensor_parallel_size) {
  std::string out;
  JsonWriter json(out);
  const HandoffResult& result = offer.result;
  json.open_object();
  json.key("do_remote_prefill").boolean(true).key("do_remote_decode").boolean(false);
  // vLLM's names, for routers and dashboards that look for them. Nothing here reads them back.
  json.key("remote_engine_id").string(hex_number(offer.epoch));
  json.key("remote_request_id").string(to_hex(offer.transfer));
  json.key("remote_host").string(info.host).key("remote_port").integer(info.port);
  json.key("remote_block_ids").open_array();
  for (int32_t group = 0; group < offer.num_groups; ++group) json.open_array().close_array();
  json.close_array().key("remote_num_tokens").integer(result.num_prompt_tokens);
  json.key("tp_size").integer(tensor_parallel_size);
  json.key("dcp_size").integer(1).key("pp_size").integer(1);
  json.key("sluice").open_object().key("v").integer(kVersion);
  json.key("transfer_id").string(to_hex(offer.transfer));
  json.key("epoch").string(hex_number(offer.epoch));
  json.key("addr").string(info.host + ":" + std::to_string(info.port));
  json.key("fingerprint").string(fingerprint);
  json.key("tokens").integer(result.num_prompt_tokens);
  json.key("blocks").integer(result.num_blocks);
  json.key("key").string(to_hex(result.key));
  json.key("prompt_digest").string(digest);
  json.key("seed").string(hex_number(result.seed));
  json.key("first_token").integer(result.first_token);
  json.key("check").string(hex_number(result.check));
  json.close_object().close_object();
  return out;
}

}  // namespace sluice
