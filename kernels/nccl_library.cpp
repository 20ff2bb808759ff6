// SPDX-License-Identifier: Apache-2.0
#include "kernels/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace sluice::kernels {

Expected<NcclLibrary> NcclLibrary::open(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return make_error(ErrorCode::kUnavailable, "NCCL: " + std::string(dlerror()));
  }
  NcclLibrary library;
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    void* const found = dlsym(handle, symbol);
    if (found == nullptr) missing = symbol;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(library.get_version, "ncclGetVersion");
  find(library.error_string, "ncclGetErrorString");
  find(library.last_error, "ncclGetLastError");
  find(library.comm_init_all, "ncclCommInitAll");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.comm_init_rank_config, "ncclCommInitRankConfig");
  find(library.comm_destroy, "ncclCommDestroy");
  find(library.comm_abort, "ncclCommAbort");
  find(library.comm_get_async_error, "ncclCommGetAsyncError");
  find(library.all_gather, "ncclAllGather");
  find(library.send, "ncclSend");
  find(library.receive, "ncclRecv");
  dlclose(handle);  // NODELETE: the functions found stay valid
  if (!missing.empty()) {
    return make_error(ErrorCode::kUnavailable, "NCCL: " + name + " has no " + missing);
  }
  return library;
}

}  // namespace sluice::kernels
