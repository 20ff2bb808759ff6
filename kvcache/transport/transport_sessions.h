// SPDX-License-Identifier: Apache-2.0
// The transport of every kind: one thread that accepts and dials the connections of its sessions
// (transport_session.h) and advances them. A KvStreamMaker provides the streams (sockets, rings in
// shared memory), and DeviceLinks the paths of payloads between devices.
//
// The dialler's first frame is HELLO with the session's token. Until then a peer gets no byte. It
// has five seconds, in which the session may still be opened, since the peer may learn of the
// session before this side does. At most 64 peers wait at once. After HELLO a receiver sends only
// NAK, and a sender only DATA and END; between devices both also send the frames of their link.
#pragma once

#include <memory>

#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

// `links`: of options.device, or null: payloads are the host's memory and travel in the streams.
// kResourceExhausted: there are no descriptors, or no memory for payloads without a slot.
Expected<std::unique_ptr<KvTransport>> make_session_transport(std::unique_ptr<KvStreamMaker> maker,
                                                              std::unique_ptr<DeviceLinks> links,
                                                              KvTransportOptions options);

}  // namespace sluice
