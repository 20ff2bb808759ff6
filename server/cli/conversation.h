// SPDX-License-Identifier: Apache-2.0
// The conversation of `sluice chat` so far, and its next answer: template, tokens and text on an
// engine in this process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/cli/output_queue.h"
#include "server/prompt/chat_template.h"

namespace sluice {

struct AnswerFigures {
  int64_t num_tokens = 0;
  double first_s = 0;       // from the request to the first token
  double rate = 0;          // tokens a second after the first; 0: there is no second one
  bool was_stopped = false;
  bool was_cut = false;     // at max_tokens or the context's end
};

// Used on the thread that made it. Engine and template outlive it, and the engine is stopped first:
// the conversation is the sink of its requests.
class Conversation {
 public:
  // `interrupted`: a signal handler sets it; it ends the answer under way, and is cleared.
  Conversation(Engine& engine,
               const ChatTemplate& chat_template,
               SamplingParams sampling,
               std::string system,
               std::atomic<bool>& interrupted);

  // Answers `question`, piece by piece to `show`. After an error the question is forgotten.
  using Show = std::function<void(std::string_view)>;
  Expected<AnswerFigures> ask(const std::string& question, const Show& show);
  // Answers the last question again, with another seed. kInvalidArgument: there is none.
  Expected<AnswerFigures> ask_again(const Show& show);

  // Sets the system message from the next answer on; empty: none.
  void set_system(std::string text) { system_ = std::move(text); }

  [[nodiscard]] const std::string& system() const { return system_; }

  void clear() { turns_.clear(); }

  SamplingParams& sampling() { return sampling_; }

  // Returns a JSON array like a request's `messages`.
  [[nodiscard]] std::string messages_json() const;

 private:
  struct Message {
    std::string_view role;  // "user", "assistant", "system"
    std::string content;
  };

  [[nodiscard]] std::vector<Message> messages() const;
  Expected<std::vector<TokenId>> encode_messages() const;
  Expected<AnswerFigures> answer(const Show& show);
  Expected<AnswerFigures> stream(RequestId id,
                                 std::chrono::steady_clock::time_point submitted,
                                 const Show& show,
                                 std::string& text);

  Engine& engine_;
  const ChatTemplate& template_;
  SamplingParams sampling_;
  std::string system_;
  std::atomic<bool>& interrupted_;
  uint64_t num_retries_ = 0;  // earlier answers to the last question
  std::vector<Message> turns_;  // messages of user and assistant
  OutputQueue outputs_;
};

}  // namespace sluice
