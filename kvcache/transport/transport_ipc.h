// SPDX-License-Identifier: Apache-2.0
// KV between GPUs of two workers of one machine by CUDA IPC (transport_device.h): the sender
// exports the memory that holds its payloads, and the receiver copies from there into its own
// slots. Tests run it on the shim's devices, in one process and in two.
//
// Connections are those of shared memory (transport_shm.h), between processes of one user on one
// machine and in one pid namespace: "cuda_ipc:<place of the process>:<name>:<UUID>" is an address,
// with the sender's GPU, which the receiver must be able to access. No process writes another
// process's memory: a sender that was stopped and resumed cannot corrupt memory that has a new
// owner since. A payload has arrived when the receiver has reported the copy and the sender that
// the payload was unchanged until then; a sender that gave the payload up does not confirm.
//
// A sender that ends in order waits for its receivers. One that is killed cannot, and copying from
// memory that its owner has freed is undefined in CUDA (cudaIpcOpenMemHandle()): the bytes go to no
// request, but a GPU that faults ends the receiver with all of its requests. No run has shown what
// it does. So this is for workers that end together, and chosen by name alone: --kv-transport auto
// takes shared memory.
#pragma once

#include <memory>

#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Makes the transport like make_kv_transport(). kUnsupported: as for make_shm_streams().
Expected<std::unique_ptr<KvTransport>> make_ipc_transport(KvTransportOptions options);

}  // namespace sluice
