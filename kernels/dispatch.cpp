// SPDX-License-Identifier: Apache-2.0
// Each operator of operators.h on each device.
#include <string>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/launch.h"
#include "kernels/row_steps.h"
#include "kernels/trace.h"

namespace sluice::kernels {
namespace {

template <typename Args>
using Op = void (*)(const ExecContext&, const Args&);

template <typename Args>
void dispatch(
    const ExecContext& ctx, const char* name, const Args& args, Op<Args> on_cpu, Op<Args> on_cuda) {
  switch (ctx.device) {
    case DeviceType::kCpu:
      return on_cpu(ctx, args);
    case DeviceType::kCuda: {
      const TraceRange range(ctx.device, name);
      return on_cuda(ctx, args);
    }
  }
  SLUICE_UNREACHABLE("device without operators");
}

}  // namespace

#define SLUICE_OPERATOR(op, Args)                      \
  void op(const ExecContext& ctx, const Args& args) {  \
    dispatch<Args>(ctx, #op, args, cpu::op, cuda::op); \
  }

SLUICE_OPERATORS(SLUICE_OPERATOR)
#undef SLUICE_OPERATOR

namespace {

void run_step(const ExecContext& ctx, const HeadNormArgs& args) { head_norm(ctx, args); }

void run_step(const ExecContext& ctx, const HeadSquaresArgs& args) { head_squares(ctx, args); }

void run_step(const ExecContext& ctx, const JoinedNormArgs& args) { joined_norm(ctx, args); }

void run_step(const ExecContext& ctx, const GatedSquaresArgs& args) { gated_squares(ctx, args); }

void run_step(const ExecContext& ctx, const GroupNormArgs& args) { group_norm(ctx, args); }

void run_step(const ExecContext& ctx, const AddRowsArgs& args) { add_rows(ctx, args); }

void run_step(const ExecContext& ctx, const ScaleRowsArgs& args) { scale_rows(ctx, args); }

void run_step(const ExecContext& ctx, const RmsNormArgs& args) { rms_norm(ctx, args); }

void run_step(const ExecContext& ctx, const QuantizeArgs& args) { quantize_activations(ctx, args); }

void run_step(const ExecContext& ctx, const GateMulArgs& args) { gate_mul(ctx, args); }

void run_step(const ExecContext& ctx, const RopeWriteKvArgs& args) { rope_write_kv(ctx, args); }

}  // namespace

int64_t attention_workspace_bytes(const AttentionLimits& limits) {
  return limits.device == DeviceType::kCuda ? cuda::attention_workspace_bytes(limits)
                                            : cpu::attention_workspace_bytes(limits);
}

int64_t latent_workspace_bytes(const AttentionLimits& limits, int32_t rope_dim) {
  return limits.device == DeviceType::kCuda ? cuda::latent_workspace_bytes(limits)
                                            : cpu::latent_workspace_bytes(limits, rope_dim);
}

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits) {
  return limits.device == DeviceType::kCuda ? cuda::choose_keys_workspace_bytes(limits)
                                            : cpu::choose_keys_workspace_bytes(limits);
}

void attention_ahead(const ExecContext& ctx, const AttentionAheadArgs& args) {
  if (ctx.device == DeviceType::kCpu) cpu::attention_ahead(ctx, args);
}

void gather_peers(const ExecContext& ctx, const GatherPeersArgs& args) {
  CHECK(ctx.device == DeviceType::kCuda);
  const TraceRange range(ctx.device, "gather_peers");
  cuda::gather_peers(ctx, args);
}

void join_peer_parts(const ExecContext& ctx, const JoinPeerPartsArgs& args) {
  CHECK(ctx.device == DeviceType::kCuda);
  const TraceRange range(ctx.device, "join_peer_parts");
  cuda::join_peer_parts(ctx, args);
}

bool open_window(DeviceMemory& memory, std::span<std::byte> window, DeviceMemory& with) {
  return !memory.is_host() && !with.is_host() && cuda::open_window(memory, window, with);
}

int64_t workspace_bytes(DeviceType device, int32_t num_rows, const LargestMatrices& largest) {
  return device == DeviceType::kCuda ? cuda::workspace_bytes(num_rows, largest) : 0;
}

int64_t device_sampling_workspace_bytes(DeviceType device, int32_t vocab_size, int64_t max_rows) {
  return device == DeviceType::kCuda ? cuda::sampling_workspace_bytes(vocab_size, max_rows) : 0;
}

Expected<void> check_activations(DeviceType device,
                                 WeightFormat weight,
                                 ActivationFormat activations) {
  const bool on_cpu = device == DeviceType::kCpu;
  if (on_cpu ? cpu::has_activations(weight, activations)
             : cuda::has_activations(weight, activations)) {
    return {};
  }
  const std::string type = "weights of type " + std::string(format_info(weight).name);
  if (on_cpu) {
    return make_error(ErrorCode::kUnsupported, type + " have no such kernel on the CPU");
  }
  if (layout_of(weight).is_e4m3()) {
    return make_error(ErrorCode::kUnsupported,
                      type + (is_e4m3(activations)
                                  ? " take a GPU of compute capability 9.0 (Hopper); --device cpu "
                                    "runs it"
                                  : " take --activation-bits 8 on a GPU (Hopper); those whose "
                                    "inputs are not quantized run with --device cpu"),
                      "device");
  }
  return make_error(ErrorCode::kUnsupported,
                    type +
                        " take activations of 8 or 16 bits on the CUDA backend: "
                        "--activation-bits 8 or 16; with others, --device cpu runs it",
                    "device");
}

Expected<void> check_float_rows(DeviceType device, WeightFormat weight) {
  if (device == DeviceType::kCpu) {
    return check_activations(device, weight, ActivationFormat::kFloat);
  }
  if (cuda::has_float_rows(weight)) return {};
  return make_error(ErrorCode::kUnsupported,
                    "weights of type " + std::string(format_info(weight).name) +
                        " take no rows of floats on the CUDA backend; --device cpu runs it",
                    "device");
}

Expected<void> check_attention(DeviceType device, int32_t head_dim, int32_t value_dim) {
  if (device == DeviceType::kCpu) return {};
  if (value_dim > head_dim) {
    return make_error(ErrorCode::kUnsupported,
                      "found heads of " + std::to_string(head_dim) + " for keys and " +
                          std::to_string(value_dim) +
                          " for values, expected values no wider than keys, as the CUDA backend "
                          "has them; --device cpu runs them",
                      "device");
  }
  const int32_t most = cuda::most_head_dim();
  if (head_dim <= most) return {};
  return make_error(ErrorCode::kUnsupported,
                    "found heads of " + std::to_string(head_dim) + ", expected at most " +
                        std::to_string(most) +
                        ", which the CUDA backend has on this GPU; --device cpu runs them",
                    "device");
}

Expected<void> check_latent_attention(DeviceType device, int32_t latent_dim, int32_t rope_dim) {
  const bool fits = latent_dim <= cuda::kMaxLatentDim && rope_dim <= cuda::kMaxLatentRope;
  if (latent_dim % 32 == 0 && (device == DeviceType::kCpu || fits)) return {};
  std::string found = "found latents of " + std::to_string(latent_dim) + " + " +
                      std::to_string(rope_dim) + " elements, expected ";
  if (latent_dim % 32 != 0) {
    return make_error(ErrorCode::kUnsupported, found + "a multiple of 32 before the rotated part");
  }
  return make_error(ErrorCode::kUnsupported,
                    found + "at most " + std::to_string(cuda::kMaxLatentDim) + " + " +
                        std::to_string(cuda::kMaxLatentRope) +
                        ", which the CUDA backend has; --device cpu runs them",
                    "device");
}

Expected<void> check_indexer(DeviceType device, int32_t num_heads, int32_t dim) {
  const bool fits = num_heads <= cuda::kMaxIndexHeads && dim <= cuda::kMaxIndexDim;
  if (device == DeviceType::kCpu || fits) return {};
  return make_error(ErrorCode::kUnsupported,
                    "found an indexer of " + std::to_string(num_heads) + " heads of " +
                        std::to_string(dim) + ", expected at most " +
                        std::to_string(cuda::kMaxIndexHeads) + " of " +
                        std::to_string(cuda::kMaxIndexDim) +
                        ", which the CUDA backend has; --device cpu runs it",
                    "device");
}

void run_row_steps(const ExecContext& ctx, const RowSteps& steps) {
  for (const RowStep& step : steps.all()) {
    std::visit([&](const auto& args) { run_step(ctx, args); }, step);
  }
}

}  // namespace sluice::kernels
