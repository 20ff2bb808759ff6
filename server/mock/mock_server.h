// SPDX-License-Identifier: Apache-2.0
// A completion server without a model: tokens are sent at scripted times, so that a client's
// figures can be compared with the truth, or as fast as sockets allow if the script has no delays.
// It can also fail in each way that a client must recognize. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice::mock {

enum class MockFault : uint8_t {
  kNone,
  kNoAnswer,     // closes when the request has arrived
  kDie,          // closes between two events, in the middle of the stream
  kHang,         // stops in the middle of the stream and stays silent
  kHalfFrame,    // closes in the middle of an event
  kTruncate,     // ends the answer in order, in the middle of the stream
  kBadJson,      // an event in the middle is no JSON
  kErrorEvent,   // an event in the middle is an error object
  kRateLimit,    // status 429 with Retry-After: 7
  kServerError,  // status 500
  kNotHttp,      // answers in another protocol
};

// Parses a fault's name on the command line: "half-frame".
Expected<MockFault> parse_mock_fault(std::string_view name);

struct MockScript {
  double ttft_s = 0;
  double itl_s = 0;              // between two events; 0: as fast as the socket takes them
  int32_t tokens_per_event = 1;  // counted like usage
  int32_t events_per_write = 1;  // sent with one system call; their times are the first one's
  int32_t slots = 0;             // requests served at a time, the rest wait in order; 0: all
  double stall_at_s = 0;         // from the first request on: nothing is sent for stall_for_s,
  double stall_for_s = 0;        //   and what was due in that time is sent at its end
  MockFault fault = MockFault::kNone;
  int32_t fault_every = 1;  // the fault hits every fault_every-th request
  bool reports_usage = true;
};

class MockServer {
 public:
  static constexpr int kRetryAfterSeconds = 7;

  // Listens on `host`; port 0 takes a free one.
  static Expected<std::unique_ptr<MockServer>> create(const std::string& host,
                                                      uint16_t port,
                                                      const MockScript& script);
  ~MockServer();

  [[nodiscard]] uint16_t port() const;

  void run();   // until stop()
  void stop();  // any thread, not a signal handler

 private:
  struct Impl;
  explicit MockServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::mock
