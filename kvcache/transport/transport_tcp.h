// SPDX-License-Identifier: Apache-2.0
// Frames over TCP (transport_stream.h). Addresses are numbers: "127.0.0.1:4711", "[::1]:4711";
// names are not looked up here. Traffic is not encrypted, and a reader of the network reads the
// session's token: if the network is not trusted, TLS or a private network below is needed.
#pragma once

#include <memory>

#include "engine/core/status.h"
#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Listens at options.listen. kInvalidArgument: not an address, or not one of this machine.
Expected<std::unique_ptr<KvStreamMaker>> make_tcp_streams(const KvTransportOptions& options);

}  // namespace sluice
