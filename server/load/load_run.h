// SPDX-License-Identifier: Apache-2.0
// Sends the requests of a plan to one server and records the outcome: one thread, one event loop.
// Starts follow the plan whatever the server does; with a limit on concurrency a request waits for
// its turn, and its record shows how long.
// its turn, and its record shows for how long.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/core/status.h"
#include "server/http/client/stream.h"
#include "server/load/dataset.h"
#include "server/load/record.h"
#include "server/load/request_format.h"

namespace sluice::load {

struct Progress {
  double elapsed_s = 0;
  size_t num_started = 0;
  size_t num_active = 0;
  size_t num_completed = 0;
  size_t num_failed = 0;
  size_t num_planned = 0;
  int64_t num_chunks = 0;  // of completed requests
};

struct RunOptions {
  size_t max_concurrency = 0;  // 0: no limit
  double timeout_s = 600;      // without a byte in either direction
  bool keep_text = false;
  const std::atomic<bool>* stop = nullptr;           // set by a signal handler; may be null
  std::function<void(const Progress&)> on_progress;  // a few times a second; may be empty
};

struct RunResult {
  std::vector<Record> records;  // ordered by intended start
  double duration_s = 0;        // to the end of the last request
  double cpu_s = 0;             // of the client's thread
  bool is_interrupted = false;
};

// The server of a run; the caller has resolved its name and decided the certificate policy.
struct Server {
  client::ServerAddress address;
  client::Verification verification = client::Verification::kCertificate;
};

// `arrivals`: seconds, ascending, one for each sample of `dataset` to send.
Expected<RunResult> run_load(const Server& server,
                             const RequestFormat& format,
                             const Dataset& dataset,
                             const std::vector<double>& arrivals,
                             const RunOptions& options);

// Sends one request outside the measurement. kUnavailable says why no answer has status 200.
Expected<std::string> fetch(const Server& server, const std::string& request, double timeout_s);

}  // namespace sluice::load
