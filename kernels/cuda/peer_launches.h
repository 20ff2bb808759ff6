// SPDX-License-Identifier: Apache-2.0
// Launches of kernels/peer_rows.h, with launch.h's rules for arguments.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/peer_rows.h"

namespace sluice::kernels::cuda {

void launch_gather_peers(Stream stream, const GatherPeersArgs& args);
// `args.join.then` is not read.
void launch_join_peer_parts(Stream stream, const JoinPeerPartsArgs& args);

}  // namespace sluice::kernels::cuda
