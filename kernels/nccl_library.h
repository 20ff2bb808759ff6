// SPDX-License-Identifier: Apache-2.0
// NCCL, opened by name at run time where there is one: its functions as this program calls them,
// and nothing else. Communicators of ranks (engine/nccl.h) and of pairs of workers
// (kvcache/transport_nccl_link.h) are made from it.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "engine/core/status.h"

namespace sluice::kernels {

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// NCCL's interface, as its manual has it since 2.18.
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclInt8 = 0;
using NcclComm = void*;  // ncclComm_t

struct NcclId {  // ncclUniqueId
  std::array<char, 128> bytes = {};
};

// ncclConfig_t as 2.18 has it; later ones read as much as `size` says.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN: the library's choice, of all numbers here
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

struct NcclLibrary {
  // kUnavailable: what is missing, the library or a function of it. It stays open: threads of CUDA
  // may still be in its callbacks when the last communicator has gone.
  static Expected<NcclLibrary> open(const std::string& name);

  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;
  // One call for all ranks: NCCL gives up on the others where one fails.
  NcclResult (*comm_init_all)(NcclComm* comms, int size, const int* devices) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(
      NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config) = nullptr;
  NcclResult (*comm_destroy)(NcclComm comm) = nullptr;
  NcclResult (*comm_abort)(NcclComm comm) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*all_gather)(
      const void* part, void* parts, size_t count, int type, NcclComm comm, void* stream) = nullptr;
  NcclResult (*send)(
      const void* from, size_t count, int type, int peer, NcclComm comm, void* stream) = nullptr;
  NcclResult (*receive)(void* to, size_t count, int type, int peer, NcclComm comm, void* stream) =
      nullptr;
};

}  // namespace sluice::kernels
