// SPDX-License-Identifier: Apache-2.0
// The operators of the CUDA backend; stub.cpp stands in for them in builds without CUDA.
#pragma once

#include "kernels/operators.h"
#include "kernels/peer_rows.h"

namespace sluice::kernels::cuda {

// The device-dependent parts of kernels/gemm.h, attention.h and sampling.h.
bool has_activations(WeightFormat weight, ActivationFormat activations);
bool has_float_rows(WeightFormat weight);
int64_t workspace_bytes(int32_t num_rows, const LargestMatrices& largest);
int32_t most_head_dim();
int64_t attention_workspace_bytes(const AttentionLimits& limits);
int64_t latent_workspace_bytes(const AttentionLimits& limits);
int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits);
int64_t sampling_workspace_bytes(int32_t vocab_size, int64_t max_rows);

void gather_peers(const ExecContext& ctx, const GatherPeersArgs& args);
void join_peer_parts(const ExecContext& ctx, const JoinPeerPartsArgs& args);
// Both devices are open_device()'s.
bool open_window(DeviceMemory& memory, std::span<std::byte> window, DeviceMemory& with);

// NVTX ranges of the calling thread; only trace.h uses them.
void begin_range(const char* name);
void end_range();

#define SLUICE_OPERATOR(op, Args) void op(const ExecContext& ctx, const Args& args);
SLUICE_OPERATORS(SLUICE_OPERATOR)
#undef SLUICE_OPERATOR

}  // namespace sluice::kernels::cuda
