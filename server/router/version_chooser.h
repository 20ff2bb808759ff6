// SPDX-License-Identifier: Apache-2.0
// Chooses the version of the model that a new request goes to, where a router's workers have
// several: a function of what is ready; no clock, thread or I/O. A version is a fingerprint, since
// only workers of the same one can continue each other's streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct Config;

struct VersionReadiness {
  std::string fingerprint;
  int64_t created = 0;    // when its first worker started; newer versions have larger ones
  int64_t num_ready = 0;  // workers that may get requests
};

// What --route-min-ready and --route-share ask for.
struct RouteRule {
  int64_t min_count = 0;                 // workers; 0: min_percent counts
  int64_t min_percent = 50;              // of the ready workers of all versions without a share
  std::map<std::string, double> shares;  // by fingerprint, each in [0, 1], together at most 1

  // kInvalidArgument: names the knob and what it takes.
  static Expected<RouteRule> read(const Config& config);
};

// Returns the share of new requests that each version gets: in sum 1, or 0 if none may get any.
//
// Versions with a share in the rule get it while they are ready. The rest goes to the newest other
// version with enough ready workers; failing that, to the other version with the most ready
// workers, the newest if several have; failing that, to the versions with shares, in proportion.
std::vector<double> shares_of_requests(std::span<const VersionReadiness> versions,
                                       const RouteRule& rule);

// Returns the index of the version at `point` in [0, 1) when their shares are laid side by side;
// shares.size() if all are 0.
size_t version_at(std::span<const double> shares, double point);

// Returns the point of the n-th request: any run of requests is spread evenly, so that of 100 in a
// row a share of 0.1 gets 10, give or take one.
double point_of_request(uint64_t n);

}  // namespace sluice
