// SPDX-License-Identifier: Apache-2.0
// NCCL, opened by name at run time if there is one: the functions that this program calls. They
// make the communicators of ranks of one process (engine/parallel/nccl.h) or of several
// (engine/parallel/nccl_node.h), and of pairs of workers (kvcache/transport/transport_nccl_link.h).
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "engine/core/status.h"

namespace sluice::kernels {

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// NCCL's interface, unchanged since 2.18 by its manual.
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclInt8 = 0;
using NcclComm = void*;  // ncclComm_t

struct NcclId {  // ncclUniqueId
  std::array<char, 128> bytes = {};
};

// ncclConfig_t of 2.18; later versions read only `size` bytes of it.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN, in every field: the library's choice
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

struct NcclLibrary {
  // Error: kUnavailable, naming the missing library or function. The library stays open: CUDA's
  // threads may still be in its callbacks when the last communicator is gone.
  static Expected<NcclLibrary> open(const std::string& name);

  NcclResult (*get_version)(int* version) = nullptr;  // 23007 is 2.30.7
  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;
  // Makes the communicators of all ranks in one call: NCCL gives up on the others where one fails.
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
