// SPDX-License-Identifier: Apache-2.0
// Control messages of KV transfers and Hellos as they come from a peer: whatever the bytes are,
// they are refused, or are within the bounds of kv_messages.h and encode to what decodes to the
// same.
#include <kv_control.pb.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "server/grpc/kv_codec.h"
#include "server/grpc/kv_handshake.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

void check_bounds(const KvMessage& message) {
  if (const auto* claim = std::get_if<KvClaim>(&message)) {
    CHECK_LE(claim->first_blocks.size(), kMaxKvGroups);
    CHECK_LE(claim->trace.size(), kMaxKvText);
  }
  if (const auto* credit = std::get_if<KvCredit>(&message)) {
    CHECK_LE(credit->slots.size(), kMaxKvCreditSlots);
  }
  if (const auto* renew = std::get_if<KvRenew>(&message)) {
    CHECK_LE(renew->refs.size(), kMaxKvRenewals);
  }
  if (const auto* refusal = std::get_if<KvRefuse>(&message)) {
    CHECK(to_string(refusal->reason) != "invalid");
  }
}

}  // namespace

static int kv_control_input(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  kv::v1::Envelope envelope;
  if (envelope.ParseFromString(bytes)) {
    if (const auto message = decode_kv_message(envelope)) {
      check_bounds(*message);
      kv::v1::Envelope again;
      encode_kv_message(*message, again);
      CHECK_LE(again.ByteSizeLong(), kMaxKvMessageBytes);
      CHECK(decode_kv_message(again) == *message);
    }
    if (envelope.has_hello()) {
      const auto proven = verify_kv_hello(envelope.hello(), KvSide::kCaller, "", KvNonce{});
      CHECK(!proven || proven->version == kKvProtocolVersion);
      CHECK(!verify_kv_hello(envelope.hello(), KvSide::kCaller, "a secret", KvNonce{}));
    }
  }
  if (const auto hello = decode_kv_hello(bytes)) {
    CHECK_LE(hello->layout.groups.size(), kMaxKvGroups);
    CHECK_LE(hello->transports.size(), kMaxKvTransports);
    CHECK(decode_kv_hello(encode_kv_hello(*hello)) == *hello);
  }
  return 0;
}

const sluice::fuzz::Target kv_control_target("kv_control_fuzz", kv_control_input);
