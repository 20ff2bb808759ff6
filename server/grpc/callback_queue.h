// SPDX-License-Identifier: Apache-2.0
// The queue on whose threads gRPC runs the callbacks of all channels.
#pragma once

namespace sluice {

// Any thread, before a channel is made whose calls have callbacks. gRPC 1.51 ends that queue with
// the last such channel, also while something is in it, which aborts the process or never returns:
// this keeps it for as long as the process lives.
void keep_callback_queue();

}  // namespace sluice
