// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/device_mover.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace sluice {
namespace {

using kernels::DeviceBuffer;
using Done = KvCompletion::Kind;

// Pieces of one size of a block of memory, and which of them are free.
class Ring {
 public:
  Ring() = default;

  Ring(DeviceBuffer memory, int64_t slot_bytes)
      : memory_(std::move(memory)), slot_bytes_(static_cast<size_t>(slot_bytes)) {
    for (size_t i = memory_.size() / slot_bytes_; i-- > 0;) free_.push_back(i);
  }

  // Nothing: none is free.
  std::optional<size_t> take() {
    if (free_.empty()) return std::nullopt;
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void give_back(size_t slot) { free_.push_back(slot); }

  [[nodiscard]] std::span<std::byte> memory() const { return memory_.span(); }

  [[nodiscard]] std::span<std::byte> memory_of(size_t slot) const {
    return memory_.span().subspan(slot * slot_bytes_, slot_bytes_);
  }

 private:
  DeviceBuffer memory_;
  size_t slot_bytes_ = 1;
  std::vector<size_t> free_;
};

// Whose a copy is.
struct Owner {
  KvSession session = 0;
  KvTransferRef ref;
};

// A frame on its way out.
struct Outgoing {
  Owner owner;
  KvFrame frame;
  std::vector<BlockId> blocks;
  std::optional<size_t> slot;                    // once it is gathered
  bool is_direct = false;                        // the same: the transport reads that slot
  std::unique_ptr<kernels::DeviceEvent> staged;  // the transport may read it
  bool is_dropped = false;
};

// A slot that the transport has filled, on its way to the device.
struct Incoming {
  KvCompletion arrived;
  std::optional<size_t> slot;  // once it is copied
  std::unique_ptr<kernels::DeviceEvent> copied;
  bool is_dropped = false;
};

// What the transport has, or the transport is over: a frame's slot by what names the frame.
struct Sent {
  Owner owner;
  uint32_t slot = 0;
  uint32_t generation = 0;
  size_t staging = 0;
};

// A slot on the device that blocks are taken from.
struct Scattering {
  size_t slot = 0;
  std::unique_ptr<kernels::DeviceEvent> done;
};

struct Posted {
  Owner owner;
  size_t staging = 0;
};

class DeviceMover final : public KvMover {
 public:
  DeviceMover(const Options& options, KvStorage& storage, std::unique_ptr<KvTransports> transports)
      : KvMover(options, std::move(transports)),
        storage_(storage),
        type_(options.backend.type),
        memory_(storage.memory()),
        out_(memory_.make_queue()),
        up_(memory_.make_queue()),
        in_(memory_.make_queue()) {}

  ~DeviceMover() override { transports_.reset(); }

  Expected<void> allocate();

  Expected<void> open(size_t transport, const KvSessionOptions& options) override {
    KvSessionOptions with_payloads = options;
    with_payloads.payloads = out_ring_.memory();
    return KvMover::open(transport, with_payloads);
  }

  bool send(KvSession session, const KvFrame& frame, std::span<const BlockId> blocks) override;
  bool post(KvSession session,
            const KvTransferRef& ref,
            uint32_t slot,
            uint32_t generation) override;
  void copy_in(uint32_t slot, int64_t at, int32_t group, std::span<const BlockId> blocks) override;
  void abort(KvSession session, const KvTransferRef& ref) override;
  void close(KvSession session) override;
  void poll(std::vector<KvCompletion>& out) override;

  [[nodiscard]] bool is_busy() const override {
    const bool copies_out = !outgoing_.empty() && outgoing_.front().slot;
    const bool copies_in = !incoming_.empty() && incoming_.front().slot;
    return copies_out || copies_in || !arrived_.empty() || !scattering_.empty();
  }

 private:
  Expected<Ring> ring(int32_t num_slots, const char* purpose) const;
  [[nodiscard]] kernels::ExecContext context(const kernels::DeviceQueue& queue) const;
  void drop(KvSession session, const KvTransferRef* ref);
  void gather_waiting();
  void hand_over(std::vector<KvCompletion>& out);
  void copy_waiting();
  void report_arrived(std::vector<KvCompletion>& out);
  void take(const KvCompletion& completion, std::vector<KvCompletion>& out);
  void free_sent(const KvCompletion& completion);
  void free_posted(const KvCompletion& completion);
  [[nodiscard]] bool is_copied(const KvCompletion& end) const;

  KvStorage& storage_;
  const DeviceType type_;
  kernels::DeviceMemory& memory_;
  DeviceBuffer pinned_out_;  // beside the slots of out_ring_; none where all transports are direct
  DeviceBuffer pinned_in_;   // landing slots; the same
  Ring out_ring_;
  Ring in_ring_;
  // After the steps: gathers, and copies to the host.
  const std::unique_ptr<kernels::DeviceQueue> out_;
  const std::unique_ptr<kernels::DeviceQueue> up_;  // copies to the device
  const std::unique_ptr<kernels::DeviceQueue> in_;  // in front of steps: scatters
  std::deque<Outgoing> outgoing_;                   // in the order of out_
  std::vector<Sent> sent_;                          // that the transport has
  std::deque<Incoming> incoming_;                   // in the order of up_
  std::map<uint32_t, Posted> posted_;               // by landing slot, of direct transports
  std::map<uint32_t, size_t> arrived_;              // by landing slot: since the last poll()
  std::vector<Scattering> scattering_;
  std::vector<KvCompletion> held_;  // ends that wait for copies
  std::vector<KvCompletion> fresh_;
};

Expected<Ring> DeviceMover::ring(int32_t num_slots, const char* purpose) const {
  SLUICE_TRY(DeviceBuffer buffer,
             DeviceBuffer::allocate(memory_, num_slots * slots_.slot_bytes, purpose));
  return Ring(std::move(buffer), slots_.slot_bytes);
}

Expected<void> DeviceMover::allocate() {
  SLUICE_TRY(out_ring_, ring(slots_.num_device_out, "slots of KV that leaves"));
  SLUICE_TRY(in_ring_, ring(slots_.num_device_in, "slots of KV that arrives"));
  memory_.wait();  // the rings are zeroed before other queues than the steps' write them
  if (!slots_.is_staged) return {};
  SLUICE_TRY(
      pinned_out_,
      DeviceBuffer::allocate_pinned(
          memory_, slots_.num_device_out * slots_.slot_bytes, "pinned slots of KV that leaves"));
  SLUICE_TRY(pinned_in_,
             DeviceBuffer::allocate_pinned(
                 memory_, slots_.num_landing * slots_.slot_bytes, "pinned landing slots"));
  return {};
}

kernels::ExecContext DeviceMover::context(const kernels::DeviceQueue& queue) const {
  kernels::ExecContext made;
  made.device = type_;
  made.stream = queue.stream();
  return made;
}

// --- Out -------------------------------------------------------------------------------------

bool DeviceMover::send(KvSession session, const KvFrame& frame, std::span<const BlockId> blocks) {
  Outgoing outgoing;
  outgoing.owner = {session, frame.ref};
  outgoing.frame = frame;
  outgoing.blocks.assign(blocks.begin(), blocks.end());
  outgoing_.push_back(std::move(outgoing));
  gather_waiting();
  return true;
}

void DeviceMover::gather_waiting() {
  for (Outgoing& outgoing : outgoing_) {
    if (outgoing.slot) continue;
    outgoing.slot = out_ring_.take();
    if (!outgoing.slot) return;
    const auto bytes = static_cast<int64_t>(outgoing.frame.payload_bytes);
    std::byte* const slot = out_ring_.memory_of(*outgoing.slot).data();
    memory_.enter();
    out_->follow();
    storage_.gather(context(*out_), outgoing.frame.group, outgoing.blocks, slot);
    outgoing.is_direct = transports_->moves_device_memory(outgoing.owner.session);
    if (!outgoing.is_direct) {
      const auto at = static_cast<int64_t>(*outgoing.slot) * slots_.slot_bytes;
      out_->download(pinned_out_.data() + at, slot, bytes);
    }
    outgoing.staged = out_->make_event();
    outgoing.staged->record();
  }
}

// What is staged, in order.
void DeviceMover::hand_over(std::vector<KvCompletion>& out) {
  while (!outgoing_.empty() && outgoing_.front().slot && outgoing_.front().staged->is_done()) {
    const Outgoing outgoing = std::move(outgoing_.front());
    outgoing_.pop_front();
    const auto bytes = static_cast<size_t>(outgoing.frame.payload_bytes);
    const std::span<const std::byte> pinned = pinned_out_.span();
    const std::span<const std::byte> payload =
        outgoing.is_direct
            ? out_ring_.memory_of(*outgoing.slot).first(bytes)
            : pinned.subspan(*outgoing.slot * static_cast<size_t>(slots_.slot_bytes), bytes);
    const KvSession session = outgoing.owner.session;
    const bool is_sent =
        !outgoing.is_dropped && transports_->send(session, outgoing.frame, {payload});
    if (is_sent) {
      sent_.push_back(
          {outgoing.owner, outgoing.frame.slot, outgoing.frame.slot_generation, *outgoing.slot});
      continue;
    }
    out_ring_.give_back(*outgoing.slot);
    // Too many are queued there: the frame is dropped, and the peer asks again.
    if (!outgoing.is_dropped) out.push_back({Done::kSent, outgoing.owner.session, outgoing.frame});
  }
}

void DeviceMover::free_sent(const KvCompletion& completion) {
  std::erase_if(sent_, [&](const Sent& sent) {
    if (sent.owner.session != completion.session) return false;
    const bool is_it = completion.kind == Done::kClosed ||
                       (sent.owner.ref == completion.frame.ref &&
                        (completion.kind == Done::kWriterGone ||
                         (sent.slot == completion.frame.slot &&
                          sent.generation == completion.frame.slot_generation)));
    if (is_it) out_ring_.give_back(sent.staging);
    return is_it;
  });
}

// --- In --------------------------------------------------------------------------------------

bool DeviceMover::post(KvSession session,
                       const KvTransferRef& ref,
                       uint32_t slot,
                       uint32_t generation) {
  const auto bytes = static_cast<size_t>(slots_.slot_bytes);
  if (!transports_->moves_device_memory(session)) {
    return transports_->post(
        session, {ref, slot, generation, pinned_in_.span().subspan(slot * bytes, bytes)});
  }
  auto found = posted_.find(slot);
  if (found == posted_.end()) {
    const std::optional<size_t> staging = in_ring_.take();
    if (!staging) return false;
    found = posted_.emplace(slot, Posted{{}, *staging}).first;
  }
  found->second.owner = {session, ref};
  const std::span<std::byte> memory = in_ring_.memory_of(found->second.staging);
  if (transports_->post(session, {ref, slot, generation, memory})) return true;
  in_ring_.give_back(found->second.staging);
  posted_.erase(found);
  return false;
}

void DeviceMover::free_posted(const KvCompletion& completion) {
  std::erase_if(posted_, [&](const auto& entry) {
    const Owner& owner = entry.second.owner;
    const bool is_it = owner.session == completion.session &&
                       (completion.kind == Done::kClosed || owner.ref == completion.frame.ref);
    if (is_it) in_ring_.give_back(entry.second.staging);
    return is_it;
  });
}

void DeviceMover::copy_waiting() {
  for (Incoming& incoming : incoming_) {
    if (incoming.slot) continue;
    incoming.slot = in_ring_.take();
    if (!incoming.slot) return;
    const KvFrame& frame = incoming.arrived.frame;
    memory_.enter();
    up_->upload(in_ring_.memory_of(*incoming.slot).data(),
                pinned_in_.data() + frame.slot * slots_.slot_bytes,
                static_cast<int64_t>(frame.payload_bytes));
    incoming.copied = up_->make_event();
    incoming.copied->record();
  }
}

void DeviceMover::report_arrived(std::vector<KvCompletion>& out) {
  while (!incoming_.empty() && incoming_.front().slot && incoming_.front().copied->is_done()) {
    const Incoming incoming = std::move(incoming_.front());
    incoming_.pop_front();
    if (incoming.is_dropped) {
      in_ring_.give_back(*incoming.slot);
      continue;
    }
    arrived_[incoming.arrived.frame.slot] = *incoming.slot;
    out.push_back(incoming.arrived);
  }
}

// A step may still write the blocks, for the request that had them until now.
void DeviceMover::copy_in(uint32_t slot,
                          int64_t at,
                          int32_t group,
                          std::span<const BlockId> blocks) {
  const size_t staging = arrived_.at(slot);
  memory_.enter();
  in_->follow();
  storage_.scatter(context(*in_), group, blocks, in_ring_.memory_of(staging).data() + at);
  in_->lead();
  auto found = std::ranges::find(scattering_, staging, &Scattering::slot);
  if (found == scattering_.end()) {
    scattering_.push_back({staging, in_->make_event()});
    found = std::prev(scattering_.end());
  }
  found->done->record();
}

// --- Ends ------------------------------------------------------------------------------------

// Drops the attempt's copies (without `ref`, the session's): those under way end without an owner.
void DeviceMover::drop(KvSession session, const KvTransferRef* ref) {
  const auto is_meant = [&](const KvSession other, const KvTransferRef& other_ref) {
    return other == session && (ref == nullptr || other_ref == *ref);
  };
  for (Outgoing& outgoing : outgoing_) {
    outgoing.is_dropped =
        outgoing.is_dropped || is_meant(outgoing.owner.session, outgoing.owner.ref);
  }
  for (Incoming& incoming : incoming_) {
    incoming.is_dropped =
        incoming.is_dropped || is_meant(incoming.arrived.session, incoming.arrived.frame.ref);
  }
  std::erase_if(outgoing_, [](const Outgoing& one) { return one.is_dropped && !one.slot; });
  std::erase_if(incoming_, [](const Incoming& one) { return one.is_dropped && !one.slot; });
}

void DeviceMover::abort(KvSession session, const KvTransferRef& ref) {
  drop(session, &ref);
  KvMover::abort(session, ref);
}

void DeviceMover::close(KvSession session) {
  drop(session, nullptr);
  KvMover::close(session);
}

bool DeviceMover::is_copied(const KvCompletion& end) const {
  const auto is_meant = [&](KvSession session, const KvTransferRef& ref) {
    return session == end.session && (end.kind == Done::kClosed || ref == end.frame.ref);
  };
  return std::ranges::none_of(outgoing_,
                              [&](const Outgoing& one) {
                                return one.is_dropped && is_meant(one.owner.session, one.owner.ref);
                              }) &&
         std::ranges::none_of(incoming_, [&](const Incoming& one) {
           return one.is_dropped && is_meant(one.arrived.session, one.arrived.frame.ref);
         });
}

void DeviceMover::take(const KvCompletion& completion, std::vector<KvCompletion>& out) {
  switch (completion.kind) {
    case Done::kArrived:
      if (const auto found = posted_.find(completion.frame.slot); found != posted_.end()) {
        arrived_[completion.frame.slot] = found->second.staging;
        posted_.erase(found);
        out.push_back(completion);
      } else {
        incoming_.push_back({.arrived = completion, .slot = {}, .copied = {}});
      }
      break;
    case Done::kWriterGone:
    case Done::kClosed:
      free_sent(completion);
      free_posted(completion);
      // The transport may have reported what is dropped now before it learned of the end.
      drop(completion.session, completion.kind == Done::kClosed ? nullptr : &completion.frame.ref);
      held_.push_back(completion);
      break;
    case Done::kSent:
      free_sent(completion);
      out.push_back(completion);
      break;
    case Done::kSpoiled:
    case Done::kNak:
    case Done::kEnded:
      out.push_back(completion);
      break;
  }
}

void DeviceMover::poll(std::vector<KvCompletion>& out) {
  out.clear();
  // What arrived before the last call and was not taken in is of no use to anybody.
  for (const auto& [slot, staging] : arrived_) {
    if (std::ranges::find(scattering_, staging, &Scattering::slot) == scattering_.end()) {
      in_ring_.give_back(staging);
    }
  }
  arrived_.clear();
  std::erase_if(scattering_, [this](Scattering& scattering) {
    if (!scattering.done->is_done()) return false;
    in_ring_.give_back(scattering.slot);
    return true;
  });
  transports_->poll(fresh_);
  for (const KvCompletion& completion : fresh_) take(completion, out);
  hand_over(out);
  gather_waiting();
  copy_waiting();
  report_arrived(out);
  std::erase_if(held_, [&](const KvCompletion& end) {
    if (!is_copied(end)) return false;
    out.push_back(end);
    return true;
  });
}

}  // namespace

Expected<std::unique_ptr<KvMover>> make_device_mover(const KvMover::Options& options,
                                                     KvStorage& storage,
                                                     std::unique_ptr<KvTransports> transports) {
  auto mover = std::make_unique<DeviceMover>(options, storage, std::move(transports));
  SLUICE_TRY_VOID(mover->allocate());
  return mover;
}

}  // namespace sluice
