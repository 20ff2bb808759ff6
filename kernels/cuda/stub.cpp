// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA backend in programs without its objects. Device::create refuses kCuda
// there, so reaching an operator is a bug.
#include "engine/core/status.h"
#include "kernels/cuda/cuda_operators.h"
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

int64_t workspace_bytes(int32_t, const LargestMatrices&) {
  not_built("cuda workspace_bytes: not built");
}

int64_t sampling_workspace_bytes(int32_t, int64_t) {
  not_built("cuda sampling_workspace_bytes: not built");
}

int64_t attention_workspace_bytes(const AttentionLimits&) {
  not_built("cuda attention_workspace_bytes: not built");
}

void linear(const ExecContext&, const LinearArgs&) { not_built("cuda linear: not built"); }

void quantize_activations(const ExecContext&, const QuantizeArgs&) {
  not_built("cuda quantize_activations: not built");
}

void rms_norm(const ExecContext&, const RmsNormArgs&) { not_built("cuda rms_norm: not built"); }

void attention(const ExecContext&, const AttentionArgs&) { not_built("cuda attention: not built"); }

void rope_write_kv(const ExecContext&, const RopeWriteKvArgs&) {
  not_built("cuda rope_write_kv: not built");
}

void embedding(const ExecContext&, const EmbeddingArgs&) { not_built("cuda embedding: not built"); }

void gate_mul(const ExecContext&, const GateMulArgs&) { not_built("cuda gate_mul: not built"); }

void add_rows(const ExecContext&, const AddRowsArgs&) { not_built("cuda add_rows: not built"); }

void scale_rows(const ExecContext&, const ScaleRowsArgs&) {
  not_built("cuda scale_rows: not built");
}

void head_norm(const ExecContext&, const HeadNormArgs&) { not_built("cuda head_norm: not built"); }

void moe_route(const ExecContext&, const MoeRouteArgs&) { not_built("cuda moe_route: not built"); }

void place_rows(const ExecContext&, const PlaceRowsArgs&) {
  not_built("cuda place_rows: not built");
}

void linear_experts(const ExecContext&, const LinearExpertsArgs&) {
  not_built("cuda linear_experts: not built");
}

void moe_combine(const ExecContext&, const MoeCombineArgs&) {
  not_built("cuda moe_combine: not built");
}

void gather_rows(const ExecContext&, const GatherRowsArgs&) {
  not_built("cuda gather_rows: not built");
}

void select_columns(const ExecContext&, const SelectColumnsArgs&) {
  not_built("cuda select_columns: not built");
}

void join_parts(const ExecContext&, const JoinPartsArgs&) {
  not_built("cuda join_parts: not built");
}

void join_expert_parts(const ExecContext&, const JoinExpertPartsArgs&) {
  not_built("cuda join_expert_parts: not built");
}

void row_magnitudes(const ExecContext&, const RowMagnitudesArgs&) {
  not_built("cuda row_magnitudes: not built");
}

void sample(const ExecContext&, const SampleArgs&) { not_built("cuda sample: not built"); }

void take_tokens(const ExecContext&, const TakeTokensArgs&) {
  not_built("cuda take_tokens: not built");
}

void place_following(const ExecContext&, const PlaceFollowingArgs&) {
  not_built("cuda place_following: not built");
}

void gather_kv_blocks(const ExecContext&, const KvBlocksArgs&) {
  not_built("cuda gather_kv_blocks: not built");
}

void scatter_kv_blocks(const ExecContext&, const KvBlocksArgs&) {
  not_built("cuda scatter_kv_blocks: not built");
}

}  // namespace sluice::kernels::cuda
