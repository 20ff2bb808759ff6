// SPDX-License-Identifier: Apache-2.0
// A source of workers' addresses.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice {

// Gets all addresses of a source, "host:port" each, ascending, after every change. Any thread, one
// call at a time.
using AddressSink = std::function<void(std::vector<std::string>)>;

// An item of --workers that is not itself an address.
class AddressSource {
 public:
  virtual ~AddressSource() = default;  // returns when the sink is no longer called
  // Calls the sink from here on, after every change of the addresses.
  virtual void begin(AddressSink sink) = 0;
};

}  // namespace sluice
