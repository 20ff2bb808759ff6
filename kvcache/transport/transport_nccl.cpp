// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_nccl.h"

#include <cstring>
#include <utility>

#include "kvcache/transport/transport_nccl_link.h"
#include "kvcache/transport/transport_sessions.h"
#include "kvcache/transport/transport_tcp.h"

namespace sluice {
namespace {

// What a sender offers is NCCL's id of a communicator.
class NcclLinks final : public DeviceLinks {
 public:
  NcclLinks(const kernels::NcclLibrary& library, kernels::DeviceMemory& device)
      : library_(library), device_(device) {}

  [[nodiscard]] std::string_view kind() const override { return "nccl"; }

  [[nodiscard]] size_t offer_bytes() const override { return sizeof(kernels::NcclId); }

  Expected<std::unique_ptr<DeviceLink>> offer(std::span<const std::byte> /*payloads*/,
                                              std::span<std::byte> offer) override {
    kernels::NcclId id;
    if (library_.get_unique_id(&id) != kernels::kNcclSuccess) {
      return make_error(ErrorCode::kUnavailable, "NCCL makes no id");
    }
    CHECK_EQ(offer.size(), sizeof(id));
    std::memcpy(offer.data(), id.bytes.data(), sizeof(id));
    return std::make_unique<NcclLink>(library_, device_, id, 0);
  }

  Expected<std::unique_ptr<DeviceLink>> accept(std::span<const std::byte> offer) override {
    kernels::NcclId id;
    CHECK_EQ(offer.size(), sizeof(id));
    std::memcpy(id.bytes.data(), offer.data(), sizeof(id));
    return std::make_unique<NcclLink>(library_, device_, id, 1);
  }

 private:
  const kernels::NcclLibrary library_;
  kernels::DeviceMemory& device_;
};

}  // namespace

Expected<std::unique_ptr<KvTransport>> make_nccl_transport(KvTransportOptions options) {
  if (options.device == nullptr || options.device->is_host()) {
    return make_error(ErrorCode::kUnavailable, "KV transport nccl: the KV is not a GPU's");
  }
  SLUICE_TRY(const auto library, kernels::NcclLibrary::open(options.nccl_library));
  SLUICE_TRY(auto maker, make_tcp_streams(options));
  auto links = std::make_unique<NcclLinks>(library, *options.device);
  return make_session_transport(std::move(maker), std::move(links), std::move(options));
}

}  // namespace sluice
