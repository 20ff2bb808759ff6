// SPDX-License-Identifier: Apache-2.0
// Converts control messages of KV transfers between their plain form (engine/handoff/kv_messages.h)
// and protobuf's. Decoding refuses fields outside the bounds given there; unknown fields are
// ignored.
#pragma once

#include <optional>
#include <string>

#include "engine/core/status.h"
#include "engine/handoff/kv_messages.h"

namespace sluice::kv::v1 {
class Envelope;
class Load;
}  // namespace sluice::kv::v1

namespace sluice {

void encode_kv_message(const KvMessage& message, kv::v1::Envelope& out);

// kInvalidArgument: a field out of its bounds, or no message about transfers.
Expected<KvMessage> decode_kv_message(const kv::v1::Envelope& envelope);

void encode_kv_load(const KvLoad& load, kv::v1::Load& out);

// Returns a Hello as bytes, because they are signed.
std::string encode_kv_hello(const KvHello& hello);
Expected<KvHello> decode_kv_hello(const std::string& bytes);

}  // namespace sluice
