// SPDX-License-Identifier: Apache-2.0
// KV between devices of two workers: by NCCL's point-to-point transfers, or by copies from memory
// that one process lends another (CUDA IPC). Tests run it against a library with NCCL's interface,
// and against the shim's devices.
//
// A session has one connection, which checks its peer like that of the other transports, and on
// which everything but payloads travels: the offer of a link (transport_device_link.h), then the
// headers of frames. Connection and link live and end together; the receiver dials again, and a new
// pair is made. A sender puts nothing into the link before the receiver has said that its end is
// there too, and then the header of each payload on the connection and the payload into the link.
// The receiver takes every payload whose header it reads, in that order: those for which no slot is
// posted go to memory that is never read.
//
// An attempt that is aborted while one of its payloads is in the link waits for that payload for a
// short time, then ends the pair: NCCL gives up no single payload, and a peer may be stopped. A
// session that is closed, or a connection that is lost, ends the pair at once.
#pragma once

#include <memory>

#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

// `links`: of options.device. kResourceExhausted: there is no memory for payloads without a
// receiver.
Expected<std::unique_ptr<KvTransport>> make_device_transport(std::unique_ptr<DeviceLinks> links,
                                                             std::unique_ptr<KvStreamMaker> maker,
                                                             KvTransportOptions options);

}  // namespace sluice
