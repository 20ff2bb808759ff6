// SPDX-License-Identifier: Apache-2.0
// Frames through shared memory (transport_stream.h), between processes of one user on one machine.
// The receiver dials the sender's unix socket, which has a random name, and passes a ring that it
// made (shm_ring.h) and two eventfds; what it says itself goes through the socket, whose end is the
// end of both. Addresses are "shm:<boot id>:<name>": one of another boot or machine is none here.
#pragma once

#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kvcache/kv_stream.h"
#include "kvcache/kv_transport.h"

namespace sluice {

// options.listen is not used. kUnsupported: the machine has no boot id, or no unix sockets.
Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams(const KvTransportOptions& options);

// Likewise, where addresses are "<place>:<name>", and one of another place is none.
Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams_at(const std::string& place,
                                                             const KvTransportOptions& options);

// Another one after each start of the machine. kUnsupported: there is none.
Expected<std::string> machine_boot_id();

}  // namespace sluice
