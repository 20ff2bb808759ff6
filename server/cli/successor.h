// SPDX-License-Identifier: Apache-2.0
// Hot restart: another process of the same command line, which gets the listening socket. Both take
// connections from the one backlog until the old process drains, so none is refused or lost.
#pragma once

#include <sys/types.h>

#include <string>

#include "engine/core/status.h"

namespace sluice {

// What keeps another process from running beside this one.
struct ServingProcess {
  bool has_gpu = false;  // whose memory this one has filled
  bool is_node = false;  // one of several that share a model (--nnodes)
};

// Returns why another process cannot take over from this one: it would end with this one, has no
// room beside it, or could not compute. Empty: it can.
std::string takeover_obstacle(const ServingProcess& process);

// Starts the program that is now at this one's path; it listens on `descriptor`.
Expected<pid_t> start_successor(int descriptor);

// Returns the socket that was handed over to this process; -1: none.
int inherited_listener();
// Tells the old process that it may drain, because this one serves now.
void relieve_predecessor();
// Tells the service manager that started this one (systemd's NOTIFY_SOCKET), if there is one, that
// another process of the service is now its main one.
void announce_main_process(pid_t process);

}  // namespace sluice
