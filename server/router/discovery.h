// SPDX-License-Identifier: Apache-2.0
// Finds a router's workers: named one by one, by a DNS name, or in the EndpointSlices of a
// Kubernetes service. Its own threads repeat the look-up; each result replaces the one before.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/router/address_source.h"

namespace sluice {

class Discovery {
 public:
  // `items`: host:port, dns:name:port (asked again every 5 s), k8s:namespace/service:port (watched;
  // a missing port is that of the slices). kInvalidArgument names the item.
  static Expected<std::unique_ptr<Discovery>> create(const std::vector<std::string>& items,
                                                     AddressSink sink);
  virtual ~Discovery() = default;  // returns when the sink is no longer called

  // The sink is called from here on, at once with the addresses of --workers itself.
  virtual void begin() = 0;
};

// Returns the present addresses of a name: "address:port" each, ascending. An empty list: none.
std::vector<std::string> resolve_name(const std::string& name, int32_t port);

}  // namespace sluice
