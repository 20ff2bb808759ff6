// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as --speculative-config: an error names the flag in one line, and what is taken
// is in range for the proposers that are made of it, which are asked for drafts.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/spec/spec_config.h"
#include "engine/spec/speculator.h"
#include "tests/fuzz/target.h"

static int spec_config_input(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto config = sluice::parse_spec_config(text);
  if (!config) {
    CHECK(config.error().message.starts_with("speculative-config: "));
    CHECK_EQ(config.error().message.find('\n'), std::string::npos);
    return 0;
  }
  CHECK(text.empty() || config->has_method());
  for (int32_t num_running = 1; num_running < 100; num_running += 7) {
    CHECK_GE(config->max_tokens(num_running), 0);
    CHECK_LE(config->max_tokens(num_running), sluice::kMaxDraftTokens);
  }
  config->suffix_max_cached_requests = 0;  // without the memory that answers take
  sluice::Speculator speculator(*config, 8);
  const sluice::DraftSurvival survival;
  const std::vector<sluice::TokenId> prompt = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2};
  sluice::TokenLog log(prompt, 100);
  speculator.begin({.id = sluice::RequestId{1},
                    .log = log,
                    .num_prompt_tokens = static_cast<int32_t>(prompt.size()),
                    .prediction = prompt});
  sluice::Draft draft;
  for (int step = 0; step < 20; ++step) {
    speculator.propose(sluice::RequestId{1}, config->max_tokens(1), survival, draft);
    CHECK_LE(draft.size, config->max_tokens(1));
    const std::vector<sluice::TokenId> committed = {static_cast<sluice::TokenId>(3 - step % 3)};
    log.append(committed);
  }
  speculator.end(sluice::RequestId{1});
  return 0;
}

const sluice::fuzz::Target spec_config_target("spec_config_fuzz", spec_config_input);
