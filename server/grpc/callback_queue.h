// SPDX-License-Identifier: Apache-2.0
// The queue on whose threads gRPC runs the callbacks of all channels.
#pragma once

namespace sluice {

// Keeps the queue for as long as the process lives. Any thread, before a channel is made whose
// calls have callbacks. gRPC 1.51 would end the queue with the last such channel, even with work in
// it, which aborts the process or never returns.
void keep_callback_queue();

}  // namespace sluice
