// SPDX-License-Identifier: Apache-2.0
// The header of everything that travels on a data connection between workers: 96 bytes,
// little-endian, then the payload of DATA frames. Offsets and sizes of the fields:
//     0  magic, 4          28  slot, 4                42  layer count, 2     56  payload bytes, 8
//     4  version, 2        32  slot generation, 4     44  head first, 2      64  payload sum, 8
//     6  kind, 2           36  group, 2               46  head count, 2      72  sequence, 8
//     8  transfer, 16      38  flags, 2               48  block first, 4     80  sender epoch, 8
//    24  attempt, 4        40  layer first, 2         52  block count, 4     88  header sum, 8
// The header sum is kv_checksum() of the 88 bytes before it, the payload sum that of the payload.
// Neither is a secret: they find faults, not forgers. Between devices nothing is summed; by CUDA
// IPC the payload's sum is instead the byte of the sender's lent memory where the payload begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "kvcache/transport/kv_transfer_ref.h"

namespace sluice {

inline constexpr size_t kKvFrameBytes = 96;
inline constexpr uint64_t kKvMostSlotBytes = uint64_t{1} << 30;

using KvSessionToken = std::array<uint8_t, 16>;

enum class KvFrameKind : uint16_t {
  kData = 1,   // a payload for one landing slot
  kEnd = 2,    // the sender has given this attempt up: no payload of it follows
  kNak = 3,    // the receiver asks for the piece once more, in this slot of a new generation
  kHello = 4,  // the first frame of a connection: its transfer is the session's token
  // Kinds between devices alone (transport_device.h).
  kReady = 5,  // the receiver's end of the connection's link is there
  kRead = 6,   // the receiver has read the payload of the sender's frame with this sequence
  kKept = 7,   // the sender's answer to kRead: the payload was unchanged until then
};

struct KvFrame {
  KvFrameKind kind = KvFrameKind::kData;
  KvTransferRef ref;
  uint32_t slot = 0;  // the receiver's slot
  uint32_t slot_generation = 0;
  // The part of the prompt's KV: blocks of a group, counted from the prompt's first block, in
  // layers counted inside the group and KV heads counted over the whole model. The payload goes
  // block by block, each block in the order of kv_piece.h.
  uint16_t group = 0;
  uint16_t flags = 0;  // none are defined: 0
  uint16_t first_layer = 0;
  uint16_t num_layers = 0;
  uint16_t first_head = 0;
  uint16_t num_heads = 0;
  uint32_t first_block = 0;
  uint32_t num_blocks = 0;
  uint64_t payload_bytes = 0;
  uint64_t payload_sum = 0;
  uint64_t sequence = 0;  // counts the sender's frames in one session, from 1
  uint64_t epoch = 0;     // names the sender's process

  friend bool operator==(const KvFrame&, const KvFrame&) = default;
};

// The sizes that both sides of a session agreed on; frames are checked against them.
struct KvFrameLayout {
  struct Group {
    uint16_t num_layers = 0;
    uint16_t num_heads = 0;   // KV heads of the model; 1 where a group has none
    uint32_t head_bytes = 0;  // one block of one layer and one head: all planes and scales
  };

  std::vector<Group> groups;
  uint64_t slot_bytes = 0;  // the most bytes of a payload
};

// Whether frames can be checked against it: at least one group, nothing of size 0, a slot of at
// most kKvMostSlotBytes.
bool is_kv_layout(const KvFrameLayout& layout);

// The bytes of the pieces that a DATA or NAK frame names; nullopt where they are not in the layout.
std::optional<uint64_t> kv_frame_piece_bytes(const KvFrame& frame, const KvFrameLayout& layout);

void encode_kv_frame(const KvFrame& frame, std::span<std::byte, kKvFrameBytes> out);

// Fails with kDataLoss for another magic, version or kind, or a wrong header sum. The values of the
// fields are not checked.
Expected<KvFrame> decode_kv_frame(std::span<const std::byte, kKvFrameBytes> bytes);

// Fails with kDataLoss where no peer with this layout and epoch sends such a frame; called before a
// byte of its payload is read. The pieces of DATA and NAK frames must be in the layout and fit in a
// slot, and a DATA frame must have as many bytes; other frames have no payload.
Expected<void> check_kv_frame(const KvFrame& frame, const KvFrameLayout& layout, uint64_t epoch);

}  // namespace sluice
