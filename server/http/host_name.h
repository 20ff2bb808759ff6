// SPDX-License-Identifier: Apache-2.0
// Names of servers as browsers send them, in Host and Origin.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The host and port of "host:port"; IPv6 addresses are in brackets there. Equal hosts have equal
// texts: lower case, without brackets, zone, or a dot at the end.
struct Authority {
  std::string host;
  std::string port;  // empty: none was given

  bool operator==(const Authority&) const = default;
};

Authority parse_authority(std::string_view text);

// Returns where a page of this Origin came from, without the port that its scheme implies. Nothing:
// the origin is opaque ("null": a file, a frame in a sandbox), or the text is none.
std::optional<Authority> authority_of_origin(std::string_view origin);

// The rest take an Authority's host.

// Tells whether it is an address, which no name server can point elsewhere.
bool is_address(const std::string& host);

// Tells whether it is this machine, by address or by a name that every browser takes for it.
bool is_this_machine(const std::string& host);

// Tells whether public name servers cannot have the name: one label, as between containers, or
// under an end that is kept for private networks.
bool is_private_name(std::string_view host);

}  // namespace sluice
