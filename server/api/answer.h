// SPDX-License-Identifier: Apache-2.0
// The protocol half of a generation: sends one client what the engine generated for it. HTTP and
// gRPC implement it; Generation decides what is sent (stop strings, choices, counts). Lives on the
// generation's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/front/usage.h"
#include "server/tools/pieces.h"

namespace sluice {

class Generation;
class IoWorker;
struct GenerationRequest;

// What is new of one choice: at most one of these for each token, and one with its end.
struct ChoiceDelta {
  size_t choice_idx = 0;
  std::span<const Piece> pieces;                     // in order
  FinishReason finish_reason = FinishReason::kNone;  // kNone: it continues
  std::string_view matched_stop;                     // the stop string that ended it, if one did
  TokenId stop_token = kInvalidToken;                // the stop token that did, unless it is an end
                                                     // token
  bool has_called = false;                           // at least one of its calls has ended
  bool is_named = false;                             // the request named the function to call
  int64_t num_tokens = 0;                            // of the choice so far
  int64_t num_cached = 0;                            // prompt tokens that came from the cache
  std::string_view kv_params;  // at the end: JSON for the worker that continues with its KV; empty:
                               // none
};

// Returns OpenAI's word for how a choice has ended; empty while it continues. A call that the
// request named ends with "stop", others with "tool_calls".
std::string_view finish_name(const ChoiceDelta& delta);

class Answer {
 public:
  virtual ~Answer() = default;

  // Returns the worker of this answer's thread, the sink that the engine is given.
  [[nodiscard]] virtual IoWorker& worker() = 0;

  // Returns the request's name in log lines: the client's, or the answer's own. Valid once
  // prepared.
  [[nodiscard]] virtual const std::string& request_id() const = 0;

  // Called first. `request` outlives the answer's other calls, its `requests` do not.
  virtual void prepare(const GenerationRequest& request) = 0;
  // The engine has all choices. From now on a client that leaves cancels the generation.
  virtual void attach(std::shared_ptr<Generation> generation) = 0;

  // Takes the next tokens of a choice's prompt, from its second on, before its generated tokens;
  // called only if the request asked for them.
  virtual void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) = 0;
  // Takes a token of a choice; add_delta() follows.
  virtual void add_token(size_t choice_idx, const TokenOutput& output) = 0;
  // Takes what is new of a choice. `usage`: of the whole request so far.
  virtual void add_delta(const ChoiceDelta& delta, const Usage& usage) = 0;
  // Called after the last delta of a step.
  virtual void flush() = 0;

  // One of these three is the last call. `returned`: the choices to answer with, in order.
  virtual void finish(std::span<const size_t> returned, const Usage& usage) = 0;
  // Returns false if the request is read again, by another answer.
  virtual bool fail(const Error& error) = 0;
  virtual void client_left() = 0;
};

}  // namespace sluice
