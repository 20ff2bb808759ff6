// SPDX-License-Identifier: Apache-2.0
// Reasons for computing KV here that a request wanted to have moved.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// A metric uses to_string() as its label. The front end decides the first four, the engine the
// others.
enum class HandoffFallback : uint8_t {
  kNoHandoff,      // this worker has no peers, or no part in such a handoff
  kForeignBlob,    // the request carries no offer of a compatible worker
  kWrongPrompt,    // the offer is for another prompt
  kScoresPrompt,   // log-probabilities of the prompt are wanted, which moved KV does not give
  kNoAnswer,       // the prefill worker answered no claim
  kRefused,        // the prefill worker refused
  kPeerGone,       // the prefill worker died or was replaced
  kPrefillFailed,  // prefill ended without a first token
  kTooSlow,        // blocks stopped, or took longer than computing them would
  kSpoiled,        // more than one part failed its checksum
  kPreempted,      // the room for the blocks was taken back
  kDraining,       // this worker is shutting down
  kEvicted,        // what this worker had of the prompt was evicted before the rest arrived
  kDeadline,       // the request waited for its blocks until its deadline, which ends it
  kFirstToken,     // the first token computed here differs from the received one
};
inline constexpr size_t kNumHandoffFallbacks = 15;

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
    case HandoffFallback::kEvicted:
      return "evicted";
    case HandoffFallback::kDeadline:
      return "deadline";
    case HandoffFallback::kFirstToken:
      return "first_token";
  }
  return "";
}

}  // namespace sluice
