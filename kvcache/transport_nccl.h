// SPDX-License-Identifier: Apache-2.0
// KV between GPUs of two workers over NCCL's point-to-point transfers. No two GPUs have met by it:
// tests run it against a library with the same interface.
//
// A session has one connection over TCP, which knows who may speak as that of the other transports
// does, and on which everything but payloads travels: what makes the communicator, then the headers
// of frames. Connection and communicator (transport_nccl_link.h) live and end together; the
// receiver dials again, and a new pair is made. A sender puts nothing into the communicator before
// the receiver has said that its end is there too, and then the header of each payload on the
// connection and the payload into the communicator. The receiver takes every payload that it reads
// a header of, in that order: those for which no slot is posted go to memory that nobody reads.
//
// NCCL does not notice a peer that is gone, nor gives single payloads up. An attempt that is
// aborted while one of its payloads is in the communicator waits for that payload for a short time,
// then ends the pair; a session that is closed, or a connection that is lost, ends it at once.
// NCCL opens ports of its own, whose traffic is neither authenticated nor encrypted.
#pragma once

#include <memory>

#include "kvcache/kv_transport.h"

namespace sluice {

// Makes the transport; errors are those of make_kv_transport().
Expected<std::unique_ptr<KvTransport>> make_nccl_transport(KvTransportOptions options);

}  // namespace sluice
