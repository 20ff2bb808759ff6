// SPDX-License-Identifier: Apache-2.0
// The cost of a request, for answers and the log.
#pragma once

#include <cstdint>

#include "engine/core/engine_state.h"

namespace sluice {

class JsonWriter;
class LogLine;

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // part of completion_tokens
  bool has_prediction = false;  // the client sent one; its counts are set
  int64_t accepted_prediction_tokens = 0;
  int64_t rejected_prediction_tokens = 0;
  RequestTimings timings;  // the longest of any choice; preemptions of all choices
};

void write_timings(JsonWriter& json, const RequestTimings& timings);
void log_usage(const Usage& usage, LogLine& line);

}  // namespace sluice
