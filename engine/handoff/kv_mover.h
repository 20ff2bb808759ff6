// SPDX-License-Identifier: Apache-2.0
// Moves blocks and landing slots for the two sides of a handoff: knows where a block's bytes are
// stored, and copies them from there to memory that a transport reads, and back. The cache may be
// the host's, whose blocks the transport reads in place (host_mover.h), or a device's, whose blocks
// are gathered and scattered beside the steps (device_mover.h).
//
// Engine thread only, and no call waits. Completions are those of KvTransport, with the same
// meaning for blocks and slots: after kSent no block of the frame is read, after kArrived the slot
// has the payload until the next poll(), and after kWriterGone and kClosed no block and no slot of
// the attempt or session is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/handoff/slot_plan.h"
#include "kvcache/store/kv_storage.h"
#include "kvcache/transport/kv_transports.h"

namespace sluice {

class KvMover {
 public:
  // The backend of the cache's memory.
  struct Backend {
    DeviceType type = DeviceType::kCpu;  // whose operators read and write it
    std::string nccl_library = kernels::kNcclLibrary;
  };

  struct Options {
    Backend backend;
    KvSlotPlan slots;
  };

  virtual ~KvMover() = default;  // ends the transports first
  KvMover(const KvMover&) = delete;
  KvMover& operator=(const KvMover&) = delete;

  // Returns the number of landing slots; 0: nothing is fetched.
  [[nodiscard]] int32_t num_slots() const { return slots_.num_landing; }

  // open() and use() are those of KvTransports.
  virtual Expected<void> open(size_t transport, const KvSessionOptions& options) {
    return transports_->open(transport, options);
  }

  bool use(KvSession session, size_t transport) { return transports_->use(session, transport); }

  // Sends a kData frame like KvTransport::send(). Its payload are these blocks of its group, whole
  // and in order: steps launched before compute them, and they keep it until the completion.
  [[nodiscard]] virtual bool send(KvSession session,
                                  const KvFrame& frame,
                                  std::span<const BlockId> blocks) = 0;

  [[nodiscard]] bool send_nak(KvSession session, const KvFrame& frame) {
    return transports_->send(session, frame, {});
  }

  // Posts a landing slot, like KvTransport::post().
  [[nodiscard]] virtual bool post(KvSession session,
                                  const KvTransferRef& ref,
                                  uint32_t slot,
                                  uint32_t generation) = 0;

  // Copies whole blocks of a group, from byte `at` on, out of a slot that arrived since the last
  // poll() into blocks of the caller's. Steps that are launched from now on see them.
  virtual void copy_in(uint32_t slot,
                       int64_t at,
                       int32_t group,
                       std::span<const BlockId> blocks) = 0;

  virtual void abort(KvSession session, const KvTransferRef& ref) {
    transports_->abort(session, ref);
  }

  virtual void close(KvSession session) { transports_->close(session); }

  virtual void poll(std::vector<KvCompletion>& out) { transports_->poll(out); }

  // Tells whether to poll() soon, because the end of an operation does not wake the engine.
  [[nodiscard]] virtual bool is_busy() const { return false; }

  [[nodiscard]] const KvTransports& transports() const { return *transports_; }

 protected:
  KvMover(const Options& options, std::unique_ptr<KvTransports> transports)
      : slots_(options.slots), transports_(std::move(transports)) {}

  const KvSlotPlan slots_;
  std::unique_ptr<KvTransports> transports_;
};

}  // namespace sluice
