// SPDX-License-Identifier: Apache-2.0
// The endpoints of a Kubernetes service: its EndpointSlices, listed and then watched through the
// API server with the pod's service account, which needs `get`, `list` and `watch` of
// endpointslices.discovery.k8s.io in that namespace.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/router/address_source.h"

namespace sluice {

// "namespace/service" or "namespace/service:port". kInvalidArgument: it is neither, or the process
// is in no cluster (KUBERNETES_SERVICE_HOST and _PORT name the API server; an URL in
// SLUICE_KUBERNETES_API is taken instead, as are other files in SLUICE_KUBERNETES_ACCOUNT).
Expected<std::unique_ptr<AddressSource>> watch_service(const std::string& item);

// What the slices of a service say, as lists and events tell it. A value without I/O.
class EndpointSlices {
 public:
  // The port for those slices; 0: the slices' first one.
  explicit EndpointSlices(int32_t port) : port_(port) {}

  // An EndpointSliceList: all that there is. kDataLoss: it is none.
  Expected<void> take_list(std::string_view json);
  // A line of a watch. kDataLoss: it is none, or says that the list is too old: list again.
  Expected<void> take_event(std::string_view json);

  // Of endpoints that are ready and not about to end; "address:port" each, ascending.
  [[nodiscard]] std::vector<std::string> addresses() const;

  // Where a watch begins.
  [[nodiscard]] const std::string& version() const { return version_; }

 private:
  int32_t port_;
  std::string version_;
  std::map<std::string, std::vector<std::string>> by_slice_;
};

}  // namespace sluice
