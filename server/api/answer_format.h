// SPDX-License-Identifier: Apache-2.0
// One API's wire form of a generation: the body of a whole answer, or the bytes of its events.
// HttpAnswer owns one instance per answer and sends its output; a format knows nothing of
// connections. Lives on the answer's I/O thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/api/answer.h"
#include "server/front/usage.h"

namespace sluice {

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // The answer's name on the wire.
  [[nodiscard]] virtual const std::string& id() const = 0;

  // Called first. `request` outlives the format's other calls, its `requests` do not.
  virtual void prepare(const GenerationRequest& request) = 0;

  // Take the tokens like Answer's functions of these names.
  virtual void add_prompt(size_t choice_idx, std::span<const PromptLogprob> scored) = 0;
  virtual void add_token(size_t choice_idx, const TokenOutput& output) = 0;

  // Make an answer in one body: keep() for all deltas, then whole(), once. `returned`: the choices
  // to answer with, in order.
  virtual void keep(const ChoiceDelta& delta) = 0;
  virtual std::string whole(std::span<const size_t> returned, const Usage& usage) = 0;

  // Make a stream: each appends events to `out`, or nothing. An end or an error is last, once.
  virtual void append_events(const ChoiceDelta& delta, const Usage& usage, std::string& out) = 0;
  virtual void append_end(const Usage& usage, std::string& out) = 0;
  virtual void append_error(const Error& error, std::string& out) = 0;

  // Keeps a silent stream alive.
  virtual void append_ping(std::string& out) { out += ": ping\n\n"; }
};

}  // namespace sluice
