// SPDX-License-Identifier: Apache-2.0
// The bytes of generation responses: whole objects and server-sent events of both APIs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.h"
#include "server/api/parameters.h"
#include "server/api/usage.h"

namespace sluice {

// One choice, whole or the piece of an event.
struct ChoiceText {
  size_t index = 0;
  std::string_view text;
  std::string_view logprobs;                        // JSON; empty: null
  std::string_view finish_reason;                   // empty: null
  std::string_view stop_reason;                     // JSON; empty: null
  const std::vector<TokenId>* token_ids = nullptr;  // when asked for
  std::string_view prompt_logprobs = {};            // JSON, when asked for
};

// "chatcmpl-" or "cmpl-" and 128 random bits.
std::string response_id(Endpoint endpoint);

// Identity of a response, the same in each of its events.
class ResponseFormat {
 public:
  ResponseFormat(Endpoint endpoint,
                 std::string_view id,
                 int64_t created,
                 std::string_view model,
                 std::string_view system_fingerprint);

  [[nodiscard]] std::string whole(std::span<const ChoiceText> choices,
                                  std::span<const std::vector<TokenId>* const> prompt_token_ids,
                                  const Usage& usage) const;

  // Appends one event. `usage` null: none; `wants_usage`: then "usage":null is written.
  void append_role_event(std::string& out,
                         size_t index,
                         bool wants_usage,
                         const Usage* usage) const;
  void append_event(std::string& out,
                    const ChoiceText& choice,
                    bool wants_usage,
                    const Usage* usage) const;
  void append_usage_event(std::string& out, const Usage& usage) const;

 private:
  Endpoint endpoint_;
  std::string whole_head_;  // `{"id":...,"system_fingerprint":...,"choices":[`
  std::string event_head_;  // the same behind "data: "
};

inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace sluice
