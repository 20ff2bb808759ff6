// SPDX-License-Identifier: Apache-2.0
// A ring in shared memory whose other side writes anywhere at any time: no more is written or read
// than the ring has, memory beside what was asked for stays as it was, and frames out of it land in
// slots that wait for them or nowhere. The input is a list of steps of the two sides.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_frame.h"
#include "kvcache/transport/shm_ring.h"
#include "kvcache/transport/transport_session.h"
#include "kvcache/transport/transport_stream.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

constexpr uint64_t kBytes = kShmLeastRingBytes;
constexpr size_t kSegmentBytes = 4096 + kBytes;
constexpr size_t kSlotBytes = 8192;
constexpr uint64_t kEpoch = 5;

// A segment with the honest side's mapping, the hostile side's, and one of the bare memory.
struct Segment {
  Segment() {
    const int file = *ShmRing::make_file(kBytes);
    honest = std::move(*ShmRing::map(file, kBytes));
    hostile = std::move(*ShmRing::map(file, kBytes));
    memory = static_cast<std::byte*>(
        mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
  }

  ~Segment() { munmap(memory, kSegmentBytes); }

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void scribble(fuzz::Input& input) {
    const size_t at = input.take<uint32_t>() % kSegmentBytes;
    // Most of them in the page of positions.
    const auto value = input.take<uint64_t>();
    std::byte* const to = memory + (at % 4 == 0 ? at : at % 192);
    std::memcpy(to, &value, std::min<size_t>(sizeof(value), memory + kSegmentBytes - to));
  }

  std::unique_ptr<ShmRing> honest;
  std::unique_ptr<ShmRing> hostile;
  std::byte* memory = nullptr;
};

class RingStream final : public KvStream {
 public:
  explicit RingStream(ShmRing& ring) : ring_(ring) {}

  bool watch(int, uint64_t) override { return true; }

  std::optional<size_t> write(std::span<const iovec>) override { return 0; }

  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) override {
    bool wakes = false;
    const auto count = ring_.read(out, sum, wakes);
    if (count) CHECK_LE(*count, out.size());
    return count;
  }

 private:
  ShmRing& ring_;
};

// A receiver's session with slots in one piece of memory.
class Owner final : public KvSessionOwner {
 public:
  void run_commands() override {}

  void complete(const KvCompletion& completion) override {
    CHECK(completion.frame.payload_bytes <= kSlotBytes);
    CHECK(posted_.erase(completion.frame.slot) == 1);
  }

  bool report_once(const KvCompletion&) override { return ++num_reported_ < 100; }

  void release_one() override {}

  KvAtomicCounts& atomic_counts() override { return counts_; }

  void warn(const std::string&) override {}

  void post(KvSessionState& session, uint32_t slot) {
    session.post({.ref = {}, .slot = slot, .generation = 0, .memory = memory_});
    posted_.insert(slot);
  }

 private:
  KvAtomicCounts counts_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kSlotBytes);
  std::set<uint32_t> posted_;
  size_t num_reported_ = 0;
};

KvSessionOptions receiver_options() {
  KvSessionOptions options;
  options.address = "a";  // a receiver's
  options.peer_epoch = kEpoch;
  options.layout = {.groups = {{.num_layers = 4, .num_heads = 2, .head_bytes = 64}},
                    .slot_bytes = kSlotBytes};
  return options;
}

// A frame with a right header sum, and some of its payload.
std::vector<std::byte> frame_of(fuzz::Input& input) {
  KvFrame frame;
  frame.kind = static_cast<KvFrameKind>(input.take<uint8_t>() % 8);
  frame.slot = input.take<uint8_t>() % 4;
  frame.num_layers = input.take<uint8_t>() % 5;
  frame.num_heads = input.take<uint8_t>() % 3;
  frame.num_blocks = input.take<uint8_t>();
  frame.payload_bytes = uint64_t{64} * frame.num_layers * frame.num_heads * frame.num_blocks;
  if (input.take<uint8_t>() % 8 == 0) frame.payload_bytes = input.take<uint64_t>();
  frame.epoch = kEpoch;
  const std::vector<std::byte> payload(std::min<uint64_t>(frame.payload_bytes, 2 * kSlotBytes));
  if (input.take<uint8_t>() % 2 == 0) frame.payload_sum = kernels::kv_checksum(payload);
  std::vector<std::byte> bytes(kKvFrameBytes);
  encode_kv_frame(frame, std::span(bytes).first<kKvFrameBytes>());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

// The honest side reads what the other one has written.
void receive(fuzz::Input& input) {
  Segment segment;
  Owner owner;
  std::array<std::byte, 4096> scratch{};
  KvSessionState session(receiver_options(), 1, owner, {});
  session.add_dialled(std::make_unique<StreamConnection>(
      1, std::make_unique<RingStream>(*segment.honest), true, scratch));
  for (int steps = 0; !input.is_over() && steps < 200; ++steps) {
    bool wakes = false;
    switch (input.take<uint8_t>() % 4) {
      case 0:
        segment.scribble(input);
        break;
      case 1:
        (void)segment.hostile->write(frame_of(input), wakes);
        break;
      case 2:
        owner.post(session, input.take<uint8_t>() % 4);
        break;
      default:
        if (session.connections().empty()) return;
        session.connections().front()->may_read = true;
        (void)session.advance({}, {});
    }
  }
}

// The honest side writes what the other one reads.
void send(fuzz::Input& input) {
  Segment segment;
  std::vector<std::byte> bytes(2 * kBytes, std::byte{7});
  for (int steps = 0; !input.is_over() && steps < 200; ++steps) {
    bool wakes = false;
    const size_t count = input.take<uint16_t>() * size_t{3} % bytes.size();
    switch (input.take<uint8_t>() % 4) {
      case 0:
        segment.scribble(input);
        break;
      case 1: {
        const auto written = segment.honest->write(std::span(bytes).first(count), wakes);
        if (!written) return;
        CHECK_LE(*written, std::min<size_t>(count, kBytes));
        break;
      }
      case 2: {
        const std::span<const std::byte> parts[] = {std::span(bytes).first(count / 2),
                                                    std::span(bytes).first(count - count / 2)};
        kernels::KvChecksum sum;
        const auto copied = segment.honest->copy(96, parts, sum);
        if (!copied) return;
        CHECK(!*copied || count + 96 <= kBytes);
        if (*copied) segment.honest->publish(std::span(bytes).first(96), wakes);
        break;
      }
      default:
        (void)segment.hostile->read(std::span(bytes).first(count), nullptr, wakes);
    }
  }
}

}  // namespace

static int shm_ring_input(const uint8_t* data, size_t size) {
  fuzz::Input input({data, size});
  if (input.take<uint8_t>() % 2 == 0) {
    receive(input);
  } else {
    send(input);
  }
  return 0;
}

const sluice::fuzz::Target shm_ring_target("shm_ring_fuzz", shm_ring_input);
