// SPDX-License-Identifier: Apache-2.0
// KV between GPUs of two workers of one machine by CUDA IPC (transport_device.h): the sender lends
// the memory that its payloads lie in, and the receiver copies from there into its own slots. No
// GPU has run it: tests run it on the shim's devices, in one process and in two.
//
// Connections are those of shared memory (transport_shm.h), between processes of one user on one
// machine and in one pid namespace: "cuda_ipc:<boot id>:<pid namespace>:<name>:<UUID>" is an
// address, with the sender's GPU, which the receiver has to reach. No process writes another one's
// memory: a sender that was stopped and goes on can spoil nothing that has meanwhile become
// somebody else's. A payload has arrived when the receiver has said that it was copied and the
// sender that it had not changed by then; a sender that gave the payload up says no such thing.
//
// CUDA leaves undefined what a copy gives if its source was released or its source's process died.
// Such copies are of payloads that nobody waits for any more; but if one is an error of the
// receiver's GPU, the receiver ends with it.
#pragma once

#include <memory>

#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Makes the transport like make_kv_transport(). kUnsupported: as for make_shm_streams().
Expected<std::unique_ptr<KvTransport>> make_ipc_transport(KvTransportOptions options);

}  // namespace sluice
