// SPDX-License-Identifier: Apache-2.0
// Chooses the worker for a request: a function of the known state of the candidates, and of random
// bits; no clock, thread or I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace sluice {

struct Candidate {
  int64_t cached_tokens = 0;  // the request's tokens known to be cached
  int64_t queued_tokens = 0;  // tokens of prompts that wait in front of it
  int64_t num_active = 0;     // requests that it runs
};

// Returns the less loaded of two random candidates if nothing is cached anywhere. Otherwise the
// tokens to compute before the first token count, cached ones less; of the candidates within a
// fifth of the best it is again the less loaded of two random ones, so that a prefix that all
// requests share does not send all of them to one worker.
//
// `num_tokens`: the request's. `random`: returns any 64 bits. At least one candidate.
size_t choose_worker(std::span<const Candidate> candidates,
                     int64_t num_tokens,
                     const std::function<uint64_t()>& random);

// Returns the candidate with the least to do. At least one candidate.
size_t least_loaded(std::span<const Candidate> candidates);

// Tells whether another worker should compute the prompt for the answering one: there is enough to
// compute, and it finishes as early. A worker that decodes is slowed down by prompts, so its
// running requests count against it.
//
// `least_tokens`: minimum for the answering worker to compute; fewer are not worth a transfer.
bool is_prompt_better_elsewhere(const Candidate& answers,
                                const Candidate& prefills,
                                int64_t num_tokens,
                                int64_t least_tokens);

}  // namespace sluice
