// SPDX-License-Identifier: Apache-2.0
// Arbitrary JSON as what a body says of handoffs: what is refused names its field in one line, and
// what is taken resolves, for each role, to a spec that the engine may have or to a reason. What is
// a fetch of an offer can be written and read again.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "server/front/kv_params.h"
#include "server/json/json_reader.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

const std::vector<TokenId> kPromptIds = {5, 6, 7, 8, 9};

void check_spec(const HandoffSpec& spec) {
  const bool fetches = spec.kind == HandoffKind::kFetch;
  CHECK(fetches || spec.peer.empty());
  CHECK_LE(spec.peer.size(), 1024U);
  CHECK(spec.mode == HandoffMode::kSerial || spec.transfer != TransferId{});
  CHECK_EQ(spec.result.has_value(), fetches && spec.mode == HandoffMode::kSerial);
  if (!spec.result) return;
  CHECK_EQ(static_cast<size_t>(spec.result->num_prompt_tokens), kPromptIds.size());
  CHECK_GE(spec.result->num_blocks, 0);
  CHECK_GE(spec.result->first_token, 0);
}

void check_resolved(const NamedHandoff& named) {
  const std::optional<HandoffInfo> none;
  const std::optional<HandoffInfo> some = HandoffInfo{1, "p", 9001};
  for (const HandoffRole role : {HandoffRole::kBoth, HandoffRole::kPrefill, HandoffRole::kDecode}) {
    for (const auto* info : {&none, &some}) {
      for (const bool scores : {false, true}) {
        const ResolvedHandoff resolved = resolve_handoff(named, kPromptIds, scores, {role, *info});
        CHECK_NE(resolved.spec.has_value(), resolved.fallback.has_value());
        CHECK(info->has_value() || !resolved.spec);
        if (resolved.spec) check_spec(*resolved.spec);
      }
    }
  }
}

void check_written(const NamedHandoff& named) {
  if (!named.spec.result || named.spec.peer.find(':') != named.spec.peer.rfind(':')) return;
  const HandoffOffer offer = {named.spec.transfer, named.spec.peer_epoch, 1, *named.spec.result};
  const HandoffInfo info = {named.spec.peer_epoch, "host", 7};
  const auto parsed = parse_json(
      R"({"kv_transfer_params":)" + offer_json(offer, info, "fp", named.prompt_digest, 1) + "}", 8);
  CHECK(parsed.has_value());
  const auto again = read_kv_params(*parsed);
  CHECK(again.has_value() && again->handoffs.size() == 1);
  const HandoffSpec& spec = again->handoffs.front().spec;
  CHECK(spec.transfer == named.spec.transfer && spec.peer_epoch == named.spec.peer_epoch);
  CHECK(spec.result->key == named.spec.result->key);
  CHECK_EQ(spec.result->seed, named.spec.result->seed);
  CHECK_EQ(spec.result->check, named.spec.result->check);
  CHECK_EQ(again->handoffs.front().prompt_digest, named.prompt_digest);
}

}  // namespace
}  // namespace sluice

static int kv_params_input(const uint8_t* data, size_t size) {
  const auto body =
      sluice::parse_json(std::string_view(reinterpret_cast<const char*>(data), size), 16);
  if (!body || !body->is_object()) return 0;
  const auto params = sluice::read_kv_params(*body);
  if (!params) {
    CHECK(!params.error().param.empty());
    CHECK_EQ(params.error().message.find('\n'), std::string::npos);
    return 0;
  }
  CHECK(params->is_list || params->handoffs.size() <= 1);
  for (const sluice::NamedHandoff& named : params->handoffs) {
    sluice::check_resolved(named);
    sluice::check_written(named);
  }
  return 0;
}

const sluice::fuzz::Target kv_params_target("kv_params_fuzz", kv_params_input);
