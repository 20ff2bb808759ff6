// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs: a Communicator over NCCL, whose library is opened at run time where there is one.
// It gathers only: NCCL's own sums add in an order that depends on the message. No GPU has run it;
// tests run its host side against a library with the same interface.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/core/status.h"
#include "engine/parallel.h"

namespace sluice {

// Names a group of ranks. One of them makes it, the others get it by other means.
struct NcclId {
  std::array<char, 128> bytes;
};

class Nccl {
 public:
  // kUnavailable: what is missing, the library or a function of it.
  static Expected<std::shared_ptr<const Nccl>> open(const std::string& library = "libnccl.so.2");
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  [[nodiscard]] Expected<NcclId> make_id() const;

  struct Rank {
    int32_t rank = 0;
    int32_t size = 1;
    // Device memory for two calls: the ranks' parts in order, each at most 1 / (2 size) of it.
    std::span<std::byte> received;
    void* stream = nullptr;  // a cudaStream_t of the rank's device, the thread's current one
  };

  // Every rank of the group calls it, on threads or in processes of their own; returns when all
  // have. all_gather() then takes device memory and is in order with the stream: it may return
  // before the parts are there, and what the stream runs afterwards may read them. fail() never
  // waits: it ends what this rank has on its stream, but not a call of all_gather() that the
  // library itself holds up, as it may the first until every rank has come. That one is aborted
  // once the library lets go. NCCL tells other ranks of a lost one where it notices, else each has
  // to be told.
  [[nodiscard]] static Expected<std::unique_ptr<Communicator>> connect(
      const std::shared_ptr<const Nccl>& nccl, const NcclId& id, const Rank& rank);

 private:
  friend class NcclRank;
  Nccl() = default;

  struct Functions;
  void* library_ = nullptr;
  std::unique_ptr<const Functions> functions_;
};

}  // namespace sluice
