// SPDX-License-Identifier: Apache-2.0
#include "server/router/chooser.h"

#include <algorithm>
#include <vector>

#include "engine/core/status.h"

namespace sluice {
namespace {

// Cost of a running request for later requests, in tokens of a prompt.
constexpr int64_t kTokensPerActive = 32;
constexpr int64_t kGuardPercent = 20;

int64_t load_of(const Candidate& candidate) {
  return candidate.queued_tokens + kTokensPerActive * candidate.num_active;
}

int64_t cost_of(const Candidate& candidate, int64_t num_tokens) {
  return std::max<int64_t>(num_tokens - candidate.cached_tokens, 0) + load_of(candidate);
}

}  // namespace

bool is_prompt_better_elsewhere(const Candidate& answers,
                                const Candidate& prefills,
                                int64_t num_tokens,
                                int64_t least_tokens) {
  return num_tokens - answers.cached_tokens >= least_tokens &&
         cost_of(prefills, num_tokens) <= cost_of(answers, num_tokens);
}

size_t least_loaded(std::span<const Candidate> candidates) {
  CHECK(!candidates.empty());
  const auto least = std::ranges::min_element(candidates, {}, load_of);
  return static_cast<size_t>(least - candidates.begin());
}

size_t choose_worker(std::span<const Candidate> candidates,
                     int64_t num_tokens,
                     const std::function<uint64_t()>& random) {
  CHECK(!candidates.empty());
  int64_t best = cost_of(candidates.front(), num_tokens);
  bool is_cached = false;
  for (const Candidate& candidate : candidates) {
    best = std::min(best, cost_of(candidate, num_tokens));
    is_cached = is_cached || candidate.cached_tokens > 0;
  }
  std::vector<size_t> good;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int64_t surplus = cost_of(candidates[i], num_tokens) - best;
    if (!is_cached || 100 * surplus <= kGuardPercent * best) good.push_back(i);
  }
  const size_t first = random() % good.size();
  if (good.size() == 1) return good[first];
  const size_t second = (first + 1 + random() % (good.size() - 1)) % good.size();
  const auto less = [&](size_t a, size_t b) {
    const int64_t load_a = load_of(candidates[a]);
    const int64_t load_b = load_of(candidates[b]);
    if (load_a != load_b) return load_a < load_b;
    return candidates[a].cached_tokens > candidates[b].cached_tokens;
  };
  return less(good[second], good[first]) ? good[second] : good[first];
}

}  // namespace sluice
