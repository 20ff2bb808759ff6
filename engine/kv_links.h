// SPDX-License-Identifier: Apache-2.0
// What the KV of a prompt takes from one place of this machine to another by each transport, beside
// what the machine itself allows, measured in turns in one run: a plain socket copy over loopback,
// and memcpy. Both ends are in this process, a thread of each transport on its core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// The default is a prompt of 4096 tokens of a model of 24 layers with 2 KV heads of 64 in bfloat16.
struct KvLinkOptions {
  int32_t num_tokens = 4096;
  int32_t num_layers = 24;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  int64_t slot_bytes = int64_t{2} << 20;
  int64_t buffer_bytes = int64_t{64} << 20;  // of all slots
  int32_t num_connections = 2;
  int32_t rounds = 11;
};

struct KvLinkFigure {
  std::string name;         // "socket copy", "memcpy", or a transport
  std::string limit;        // which of these is its limit; empty: it is one
  double seconds = 0;       // of a transfer, the median
  double cpu_seconds = 0;   // of all threads of both ends, likewise
  double share = 0;         // of the limit's speed
  int32_t num_frames = 0;   // of a transfer
  int32_t num_credits = 0;  // messages that give slots, of a transfer
  int32_t num_messages =
      0;  // on the control channel: these, Claim, Accept, Final, Release, Released
};

struct KvLinkFigures {
  int64_t num_bytes = 0;  // of a transfer
  std::vector<KvLinkFigure> links;
};

// kInvalidArgument: sizes of which no frame can be made.
Expected<KvLinkFigures> measure_kv_links(const KvLinkOptions& options);

}  // namespace sluice
