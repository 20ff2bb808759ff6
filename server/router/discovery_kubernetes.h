// SPDX-License-Identifier: Apache-2.0
// The endpoints of a Kubernetes service: its EndpointSlices, listed and then watched through the
// API server with the pod's service account, which needs `list` and `watch` of
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

// `item`: "namespace/service" or "namespace/service:port". kInvalidArgument: it is neither, or the
// process is in no cluster (KUBERNETES_SERVICE_HOST and _PORT name the API server; a URL in
// SLUICE_KUBERNETES_API overrides them, and SLUICE_KUBERNETES_ACCOUNT the account's folder).
Expected<std::unique_ptr<AddressSource>> watch_service(const std::string& item);

// The state of a service's slices, from lists and events. A value without I/O.
class EndpointSlices {
 public:
  // `port`: of all endpoints; 0: the first port of each slice.
  explicit EndpointSlices(int32_t port) : port_(port) {}

  // Takes an EndpointSliceList: all slices. kDataLoss: the text is not one.
  Expected<void> take_list(std::string_view json);
  // Takes an event of a watch. kDataLoss: it is not one, or reports that the list is too old: list
  // again.
  Expected<void> take_event(std::string_view json);

  // Returns the endpoints that are ready and not about to end: "address:port" each, ascending.
  [[nodiscard]] std::vector<std::string> addresses() const;

  // Returns the version at which a watch begins.
  [[nodiscard]] const std::string& version() const { return version_; }

 private:
  int32_t port_;
  std::string version_;
  std::map<std::string, std::vector<std::string>> by_slice_;
};

}  // namespace sluice
