// SPDX-License-Identifier: Apache-2.0
// The outcome of one request. Times are seconds from the start of the run; the intended start was
// fixed before the run, so a latency counted from it includes the wait in the client.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::load {

enum class ErrorKind : uint8_t {
  kNone,
  kConnect,      // no connection, or no address
  kTls,          // handshake or certificate
  kTimeout,      // no byte for --timeout-s
  kNoAnswer,     // closed before the first byte of an answer
  kDied,         // closed in the middle of an answer
  kHalfFrame,    // closed inside an event
  kTruncated,    // ended in order, without finish_reason and [DONE]
  kBadHttp,      // not HTTP/1.1
  kNoToken,      // complete, without a token
  kBadJson,      // an event, or an answer, that is no JSON object
  kServerError,  // an error object inside a stream
  kRateLimited,  // status 429
  kHttpStatus,   // another status that is not 200
  kInterrupted,  // by the user
};

std::string_view to_string(ErrorKind kind);

inline constexpr double kNever = -1;

struct Record {
  int32_t sample = 0;             // index in the data set
  int32_t turn = 0;               // index in its conversation
  double intended = 0;            // start by the schedule
  double sent = kNever;           // start of the exchange, connecting included
  double first_chunk = kNever;    // first event with a choice
  double first_token = kNever;    // first event with text
  double last_token = kNever;     // last event with a choice
  double end = kNever;            // end of the answer, or of the attempt
  std::vector<float> gaps;        // seconds between events with text
  int32_t requested_tokens = 0;   // max_tokens
  int32_t planned_input_len = 0;  // tokens, by the data set; 0: unknown
  int64_t prompt_tokens = -1;     // from usage; -1: not given
  int64_t completion_tokens = -1;
  int64_t cached_tokens = -1;
  int32_t num_text_chunks = 0;
  bool has_vectors = false;  // the answer is of /v1/embeddings
  bool is_finished = false;  // a finish_reason came
  bool is_done = false;      // [DONE] came
  int32_t status = 0;        // HTTP; 0: none came
  ErrorKind error = ErrorKind::kNone;
  std::string error_message;
  double retry_after = kNever;  // seconds, with kRateLimited, if given
  std::string text;             // JSON-escaped; only if requested

  [[nodiscard]] bool is_ok() const { return error == ErrorKind::kNone; }

  [[nodiscard]] int64_t output_len() const {
    return completion_tokens >= 0 ? completion_tokens : num_text_chunks;
  }

  [[nodiscard]] int64_t input_len() const {
    return prompt_tokens >= 0 ? prompt_tokens : planned_input_len;
  }

  // A stream whose tokens have no text (an end token alone, by usage) counts from its first event.
  [[nodiscard]] double ttft() const {
    return (first_token >= 0 ? first_token : first_chunk >= 0 ? first_chunk : end) - sent;
  }

  [[nodiscard]] double latency() const { return (last_token >= 0 ? last_token : end) - sent; }

  [[nodiscard]] double queue_time() const { return sent - intended; }
};

}  // namespace sluice::load
