// SPDX-License-Identifier: Apache-2.0
// The protocol half of a generation: how one client is told what the engine made for it. HTTP and
// gRPC implement it; everything that decides what is told (stop strings, choices, counts) is
// Generation's. Lives on the generation's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/api/usage.h"
#include "server/parse/pieces.h"

namespace sluice {

class Generation;
class IoWorker;
struct GenerationRequest;

// What is new of one choice: at most one of these a token, and one with its end.
struct ChoiceNews {
  size_t choice_idx = 0;
  std::span<const Piece> pieces;                     // in order
  FinishReason finish_reason = FinishReason::kNone;  // kNone: it goes on
  std::string_view matched_stop;                     // the stop string that ended it, if one did
  TokenId stop_token = kInvalidToken;                // the stop token that did; end tokens apart
  bool has_called = false;                           // at least one of its calls has ended
  bool is_named = false;                             // the request named the function to call
  int64_t num_tokens = 0;                            // of the choice so far
  int64_t num_cached = 0;                            // prompt tokens that were not computed anew
  std::string_view kv_params;  // of its end, for who goes on with its KV: JSON; empty: none
};

// OpenAI's word for how a choice has ended; empty while it goes on. A call that the request named
// ends with "stop", others with "tool_calls".
std::string_view finish_name(const ChoiceNews& news);

class Answer {
 public:
  virtual ~Answer() = default;

  // The thread of this answer, whose sink the engine is given.
  [[nodiscard]] virtual IoWorker& worker() = 0;

  // What log lines call the request: its client's name for it, or the answer's own. Once prepared.
  [[nodiscard]] virtual const std::string& request_id() const = 0;

  // Before anything else. `request` outlives the answer's other calls, its `requests` do not.
  virtual void prepare(const GenerationRequest& request) = 0;
  // All choices are with the engine. From now on the client's leaving cancels the generation.
  virtual void attach(std::shared_ptr<Generation> generation) = 0;

  // The next tokens of a choice's prompt, from its second on; where asked for, before its tokens.
  virtual void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) = 0;
  // A token of a choice; tell() follows.
  virtual void add_token(size_t choice_idx, const TokenOutput& output) = 0;
  // `usage` of the whole request so far.
  virtual void tell(const ChoiceNews& news, const Usage& usage) = 0;
  // The news of a step are through.
  virtual void flush() = 0;

  // One of these three is the last call. `returned`: the choices to answer with, in order.
  virtual void finish(std::span<const size_t> returned, const Usage& usage) = 0;
  virtual void fail(const Error& error) = 0;
  virtual void client_left() = 0;
};

}  // namespace sluice
