// SPDX-License-Identifier: Apache-2.0
// Frames through shared memory (transport_stream.h), between processes of one user on one machine.
// The receiver dials the sender's unix socket, which has a random name, and passes a ring that it
// made (shm_ring.h) and two eventfds; it sends its own frames through the socket, whose end ends
// both. Addresses are "shm:<place of the process>:<name>", in namespaces of the network, which has
// the names of sockets, and of users; one of another place is not an address here.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kvcache/transport/kv_stream.h"
#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Ignores options.listen. kUnsupported: the machine has no boot id, or no unix sockets.
Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams(const KvTransportOptions& options);

// Makes streams with addresses "<place>:<name>"; one of another place is not an address here.
Expected<std::unique_ptr<KvStreamMaker>> make_shm_streams_at(const std::string& place,
                                                             const KvTransportOptions& options);

// Returns "<boot id>:<namespace>:...:<user>", with these namespaces of /proc/self/ns in their
// order; 0: the machine does not have the kind. kUnsupported: the machine has no boot id.
Expected<std::string> place_of_process(std::initializer_list<const char*> namespaces);

}  // namespace sluice
