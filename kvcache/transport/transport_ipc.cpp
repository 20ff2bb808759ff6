// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_ipc.h"

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/hex.h"
#include "kvcache/transport/shm_ring.h"
#include "kvcache/transport/transport_ipc_link.h"
#include "kvcache/transport/transport_sessions.h"
#include "kvcache/transport/transport_shm.h"

namespace sluice {
namespace {

using kernels::MemoryLoan;

static_assert(sizeof(MemoryLoan) == 88);  // as a sender says it

tl::unexpected<Error> refuse(const std::string& why) {
  return make_error(ErrorCode::kUnavailable, why);
}

class IpcLinks final : public DeviceLinks {
 public:
  explicit IpcLinks(kernels::DeviceMemory& device) : device_(device) {}

  [[nodiscard]] std::string_view kind() const override { return "cuda_ipc"; }

  [[nodiscard]] size_t offer_bytes() const override { return sizeof(MemoryLoan); }

  Expected<std::unique_ptr<DeviceLink>> offer(std::span<const std::byte> payloads,
                                              std::span<std::byte> offer) override {
    if (payloads.empty()) return refuse("this worker has no memory to send from");
    SLUICE_TRY(const MemoryLoan loan, device_.lend(payloads.data()));
    if (loan.bytes < payloads.size()) return refuse("payloads lie in several allocations");
    CHECK_EQ(offer.size(), sizeof(loan));
    std::memcpy(offer.data(), &loan, sizeof(loan));
    return std::make_unique<IpcSender>(payloads);
  }

  Expected<std::unique_ptr<DeviceLink>> accept(std::span<const std::byte> offer) override {
    MemoryLoan loan;
    CHECK_EQ(offer.size(), sizeof(loan));
    std::memcpy(&loan, offer.data(), sizeof(loan));
    SLUICE_TRY(const std::byte* const lent, device_.borrow(loan));
    return std::make_unique<IpcReceiver>(device_, std::span(lent, loan.bytes));
  }

 private:
  kernels::DeviceMemory& device_;
};

// Connections of shared memory whose addresses end with the listener's device: a device that cannot
// be accessed makes an invalid address.
class IpcStreams final : public KvStreamMaker {
 public:
  IpcStreams(std::unique_ptr<KvStreamMaker> streams, const kernels::DeviceMemory& device)
      : streams_(std::move(streams)), device_(device) {}

  [[nodiscard]] std::string_view kind() const override { return "cuda_ipc"; }

  [[nodiscard]] std::string address() const override {
    const kernels::DeviceId id = device_.id();
    std::array<uint8_t, sizeof(id)> bytes;
    std::memcpy(bytes.data(), id.data(), sizeof(id));
    return streams_->address() + ":" + to_hex(bytes);
  }

  [[nodiscard]] bool is_address(std::string_view address) const override {
    const size_t colon = address.rfind(':');
    if (colon == std::string_view::npos) return false;
    std::array<uint8_t, sizeof(kernels::DeviceId)> bytes;
    if (!from_hex(address.substr(colon + 1), bytes)) return false;
    kernels::DeviceId id;
    std::memcpy(id.data(), bytes.data(), sizeof(id));
    return streams_->is_address(address.substr(0, colon)) && device_.reaches(id);
  }

  [[nodiscard]] int32_t num_streams() const override { return streams_->num_streams(); }

  [[nodiscard]] int listener() const override { return streams_->listener(); }

  std::unique_ptr<KvStream> accept() override { return streams_->accept(); }

  std::unique_ptr<KvStream> dial(const std::string& address) override {
    return streams_->dial(address.substr(0, address.rfind(':')));
  }

 private:
  const std::unique_ptr<KvStreamMaker> streams_;
  const kernels::DeviceMemory& device_;
};

}  // namespace

Expected<std::unique_ptr<KvTransport>> make_ipc_transport(KvTransportOptions options) {
  if (options.device == nullptr || options.device->is_host()) {
    return make_error(ErrorCode::kUnavailable, "KV transport cuda_ipc: the KV is not a GPU's");
  }
  // CUDA's handles name processes, which pid namespaces number each for itself.
  SLUICE_TRY(const std::string place, place_of_process({"net", "user", "pid"}));
  options.ring_bytes = kShmLeastRingBytes;  // headers alone
  SLUICE_TRY(auto streams, make_shm_streams_at("cuda_ipc:" + place, options));
  auto maker = std::make_unique<IpcStreams>(std::move(streams), *options.device);
  auto links = std::make_unique<IpcLinks>(*options.device);
  return make_session_transport(std::move(maker), std::move(links), std::move(options));
}

}  // namespace sluice
