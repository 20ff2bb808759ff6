// SPDX-License-Identifier: Apache-2.0
// Why KV is computed here that a request wanted to have moved.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// A metric has to_string() as its label. The front end decides the first four, the
// engine the others.
enum class HandoffFallback : uint8_t {
  kNoHandoff,      // this worker has no peers, or no part in such a handoff
  kForeignBlob,    // what the request carries is no offer of a worker like this one
  kWrongPrompt,    // the offer is for another prompt
  kScoresPrompt,   // log-probabilities of the prompt are wanted, which moved KV does not give
  kNoAnswer,       // the prefill worker answered no claim
  kRefused,        // it refused
  kPeerGone,       // it is dead, or not the process that it was
  kPrefillFailed,  // its request ended without a first token
  kTooSlow,        // blocks stopped coming, or took longer than computing them would
  kSpoiled,        // more than one part did not agree with its sum
  kPreempted,      // the room for the blocks was taken back
  kDraining,       // this worker is about to end
  kFirstToken,     // computed here, the first token is not the one that came
};
inline constexpr size_t kNumHandoffFallbacks = 13;

constexpr std::string_view to_string(HandoffFallback reason) {
  switch (reason) {
    case HandoffFallback::kNoHandoff:
      return "no_handoff";
    case HandoffFallback::kForeignBlob:
      return "foreign_blob";
    case HandoffFallback::kWrongPrompt:
      return "wrong_prompt";
    case HandoffFallback::kScoresPrompt:
      return "scores_prompt";
    case HandoffFallback::kNoAnswer:
      return "no_answer";
    case HandoffFallback::kRefused:
      return "refused";
    case HandoffFallback::kPeerGone:
      return "peer_gone";
    case HandoffFallback::kPrefillFailed:
      return "prefill_failed";
    case HandoffFallback::kTooSlow:
      return "too_slow";
    case HandoffFallback::kSpoiled:
      return "spoiled";
    case HandoffFallback::kPreempted:
      return "preempted";
    case HandoffFallback::kDraining:
      return "draining";
    case HandoffFallback::kFirstToken:
      return "first_token";
  }
  return "";
}

}  // namespace sluice
