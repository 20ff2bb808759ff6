// SPDX-License-Identifier: Apache-2.0
// Where a router's workers are: named one by one, behind a DNS name, or in the EndpointSlices of a
// Kubernetes service. Threads of its own ask again; what they find is handed over whole.
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
  // the port is that of the slices where it is left out). kInvalidArgument names the item.
  static Expected<std::unique_ptr<Discovery>> create(const std::vector<std::string>& items,
                                                     AddressSink sink);
  virtual ~Discovery() = default;  // returns when the sink is not called any more

  // The sink is called from here on, with those that are named one by one at once.
  virtual void begin() = 0;
};

// What a name stands for now: "address:port" each, ascending. An empty list: nothing.
std::vector<std::string> resolve_name(const std::string& name, int32_t port);

}  // namespace sluice
