// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_ipc.h"
#include "kvcache/transport/transport_nccl.h"
#include "kvcache/transport/transport_sessions.h"
#include "kvcache/transport/transport_shm.h"
#include "kvcache/transport/transport_tcp.h"

namespace sluice {
namespace {

using Make = Expected<std::unique_ptr<KvTransport>> (*)(KvTransportOptions options);

template <Expected<std::unique_ptr<KvStreamMaker>> (*make_streams)(const KvTransportOptions&)>
Expected<std::unique_ptr<KvTransport>> over_streams(KvTransportOptions options) {
  SLUICE_TRY(auto maker, make_streams(options));
  return make_session_transport(std::move(maker), nullptr, std::move(options));
}

struct Entry {
  std::string_view kind;
  Make make;
  bool is_for_devices;
};

// The fastest first.
constexpr std::array<Entry, 4> kTransports = {{
    {"cuda_ipc", make_ipc_transport, true},
    {"nccl", make_nccl_transport, true},
    {"shm", over_streams<make_shm_streams>, false},
    {"tcp", over_streams<make_tcp_streams>, false},
}};

}  // namespace

std::vector<std::string_view> kv_transport_kinds() {
  std::vector<std::string_view> kinds;
  for (const Entry& entry : kTransports) {
    if (!entry.is_for_devices) kinds.push_back(entry.kind);
  }
  return kinds;
}

bool is_kv_device_transport(std::string_view kind) {
  return std::ranges::any_of(kTransports, [kind](const Entry& entry) {
    return entry.is_for_devices && entry.kind == kind;
  });
}

Expected<std::unique_ptr<KvTransport>> make_kv_transport(std::string_view kind,
                                                         KvTransportOptions options) {
  for (const Entry& entry : kTransports) {
    if (entry.kind == kind) return entry.make(std::move(options));
  }
  return make_error(ErrorCode::kInvalidArgument, "no KV transport " + std::string(kind));
}

}  // namespace sluice
