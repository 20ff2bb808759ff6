// SPDX-License-Identifier: Apache-2.0
// A place that says where workers are.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice {

// Gets all addresses of a source, "host:port" each, ascending, whenever they have changed. Any
// thread, one call at a time.
using AddressSink = std::function<void(std::vector<std::string>)>;

// One item of --workers that is not an address itself.
class AddressSource {
 public:
  virtual ~AddressSource() = default;  // returns when the sink is not called any more
  // Hands over from here on, whenever the addresses have changed.
  virtual void begin(AddressSink sink) = 0;
};

}  // namespace sluice
