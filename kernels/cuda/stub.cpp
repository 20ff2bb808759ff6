// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA backend in programs without its objects. Device::create refuses kCuda
// there, so reaching an operator is a bug.
#include "engine/core/status.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/open_device.h"

namespace sluice::kernels::cuda {
namespace {

[[noreturn]] void not_built(const char* op) { SLUICE_UNREACHABLE(op); }

}  // namespace

Expected<OpenedDevice> open_device(int) {
  return make_error(
      ErrorCode::kUnsupported, "device 'cuda' is not in this build; it has: cpu", "device");
}

void begin_range(const char*) { not_built("cuda begin_range: not built"); }

void end_range() { not_built("cuda end_range: not built"); }

bool has_activations(WeightFormat, ActivationFormat) { return false; }

bool has_float_rows(WeightFormat) { return false; }

int32_t most_head_dim() { return kMaxAttentionHeadDim; }

int64_t workspace_bytes(int32_t, const LargestMatrices&) {
  not_built("cuda workspace_bytes: not built");
}

int64_t sampling_workspace_bytes(int32_t, int64_t) {
  not_built("cuda sampling_workspace_bytes: not built");
}

int64_t attention_workspace_bytes(const AttentionLimits&) {
  not_built("cuda attention_workspace_bytes: not built");
}

int64_t latent_workspace_bytes(const AttentionLimits&) {
  not_built("cuda latent_workspace_bytes: not built");
}

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits&) {
  not_built("cuda choose_keys_workspace_bytes: not built");
}

void gather_peers(const ExecContext&, const GatherPeersArgs&) {
  not_built("cuda gather_peers: not built");
}

void join_peer_parts(const ExecContext&, const JoinPeerPartsArgs&) {
  not_built("cuda join_peer_parts: not built");
}

bool open_window(DeviceMemory&, std::span<std::byte>, DeviceMemory&) {
  not_built("cuda open_window: not built");
}

#define SLUICE_OPERATOR(op, Args) \
  void op(const ExecContext&, const Args&) { not_built("cuda " #op ": not built"); }
SLUICE_OPERATORS(SLUICE_OPERATOR)
#undef SLUICE_OPERATOR

}  // namespace sluice::kernels::cuda
