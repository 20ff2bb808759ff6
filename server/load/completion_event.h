// SPDX-License-Identifier: Apache-2.0
// The members of one JSON object of a completion stream (or of a whole answer) that a load test
// needs, read in one pass: at a million tokens a second, a tree per token would cost most.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::load {

struct CompletionEvent {
  bool has_choices = false;    // at least one choice
  std::string_view text;       // new text of the choice, JSON-escaped, without the quotes
  bool has_vectors = false;    // `data` has at least one object: an answer of /v1/embeddings
  bool has_text = false;       // text, reasoning or a tool call that is not empty
  bool is_finished = false;    // a finish_reason that is not null or empty
  bool has_error = false;      // a member "error" other than null, false, "", {} and []
  std::string_view error;      // its message, or the whole value
  int64_t prompt_tokens = -1;  // of usage; -1: not given
  int64_t completion_tokens = -1;
  int64_t cached_tokens = -1;
};

// Returns false if `json` is not one valid JSON object (RFC 8259; nesting at most 64 deep; UTF-8 is
// not checked). Views in `event` point into `json`.
[[nodiscard]] bool read_completion_event(std::string_view json, CompletionEvent& event);

}  // namespace sluice::load
