// SPDX-License-Identifier: Apache-2.0
// Metrics outside the engine: of requests as clients send them, and of the program.
#pragma once

#include <cstdint>
#include <string>

#include "server/front/metric_families.h"
#include "server/front/request_histograms.h"

namespace sluice {

// The program and how it runs.
struct ProgramInfo {
  std::string backend;                // "cpu:avx512"
  int64_t certificate_expiry_s = -1;  // since the Unix epoch; -1: no TLS
};

void add_requests(Families& out, const RequestHistograms& requests);

// Under the names of Prometheus' own clients; what the kernel does not say is left out.
void add_program(Families& out, const ProgramInfo& program);

}  // namespace sluice
