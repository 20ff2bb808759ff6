// SPDX-License-Identifier: Apache-2.0
// A KvTransport over byte streams: frames are sent one after the other on each of a session's
// streams. A KvStreamMaker provides the streams (sockets, a ring in shared memory); sessions,
// slots, checks of all input, and the thread are here, once for all of them.
//
// The dialler's first frame is HELLO with the session's token. A peer gets no byte before it, and
// has five seconds for it, in which the session may still be opened: the peer may hear of it first.
// At most 64 peers wait. After HELLO a receiver sends only NAK, and a sender only DATA and END.
#pragma once

#include <memory>

#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {

Expected<std::unique_ptr<KvTransport>> make_stream_transport(std::unique_ptr<KvStreamMaker> maker,
                                                             KvTransportOptions options);

}  // namespace sluice
