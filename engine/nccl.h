// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs: a Communicator over NCCL, whose library is opened at run time where there is one.
// It gathers only: NCCL's own sums add in an order that depends on the message. No GPU has run it;
// tests run its host side against a library with the same interface, and engines on several devices
// of the shim with another Communicator.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "engine/core/status.h"
#include "engine/parallel.h"

namespace sluice {

// Names a group of ranks. One of them makes it, the others get it by other means.
struct NcclId {
  std::array<char, 128> bytes;
};

struct NcclGroup;

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

class Nccl {
 public:
  // kUnavailable: what is missing, the library or a function of it.
  static Expected<std::shared_ptr<const Nccl>> open(const std::string& library = kNcclLibrary);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  [[nodiscard]] Expected<NcclId> make_id() const;

  // As ConnectRank (parallel.h), on threads or in processes of their own. fail() never waits: on a
  // thread of its own it ends what the group's ranks have on their streams, but not a call of
  // all_gather() that the library itself holds up, as it may the first until every rank has come:
  // that one is aborted once the library lets go. `group`: of the ranks in this process, which fail
  // together; null: this one alone, and NCCL tells others where it notices, else each has to be
  // told. What was recorded must be gone before the destructor of a rank that has failed.
  [[nodiscard]] static Expected<std::unique_ptr<Communicator>> connect(
      const std::shared_ptr<const Nccl>& nccl,
      const NcclId& id,
      const DeviceRank& rank,
      std::shared_ptr<NcclGroup> group = nullptr);

 private:
  friend class NcclRank;
  Nccl() = default;

  struct Functions;
  void* library_ = nullptr;
  std::unique_ptr<const Functions> functions_;
};

// Ranks inside one process, which fail together.
Expected<ConnectRank> make_nccl_group(const std::string& library = kNcclLibrary);

}  // namespace sluice
