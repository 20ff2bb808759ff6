// SPDX-License-Identifier: Apache-2.0
// Drafts beside a target shared by several shim devices: rank 0 judges them, all ranks place their
// rows, and answers are those of one device without drafts.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/draft_requests.h"
#include "tests/engine/cuda/shim_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::drafting_config;
using testing::expect_same;
using testing::spec_of;
using testing::sum;

Config shared(const std::string& spec) {
  Config config = drafting_config(spec);
  config.tensor_parallel_size = 2;
  return config;
}

class CudaRankDrafts : public ::testing::Test {
 protected:
  // One device's answers without drafts, which each request predicts.
  static void SetUpTestSuite() {
    requests_ = testing::draft_requests(testing::is_short() ? 3 : 6);
    const std::unique_ptr<Engine> engine = testing::start_ranks(drafting_config(""));
    ASSERT_NE(engine, nullptr);
    answers_ = testing::run_together(*engine, requests_);
    testing::predict(requests_, answers_);
  }

  // Checks the answers and returns the draft counts.
  static DraftStats drafts_of(const Config& config) {
    const std::unique_ptr<Engine> engine = testing::start_ranks(config);
    if (engine == nullptr) return {};
    expect_same(answers_, testing::run_together(*engine, requests_), config.speculative_config);
    testing::settle(*engine);
    EXPECT_EQ(engine->stats().num_blocks_used, 0) << config.speculative_config;
    return engine->stats().drafts;
  }

  inline static std::vector<ValidRequest> requests_;
  inline static std::vector<Collected> answers_;

  const testing::ShimDevices devices_{2};
};

TEST_F(CudaRankDrafts, OfProposersChangeNoAnswerAndAbortsEndOnce) {
  const std::unique_ptr<Engine> engine = testing::start_ranks(shared(testing::replay_spec("0.3")));
  ASSERT_NE(engine, nullptr);
  testing::expect_aborts_end_once(*engine, requests_, answers_, testing::is_full() ? 9 : 2);
  EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 0U);
}

TEST_F(CudaRankDrafts, OfPreemptedRequestsChangeNoAnswer) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  Config config = shared(testing::replay_spec("0"));
  config.enforce_eager = true;
  config.debug_preempt_every = 4;
  EXPECT_GT(sum(drafts_of(config).num_accepted_tokens), 0U);
}

// The model runs only on rank 0's device and is the target itself: it is always right.
TEST_F(CudaRankDrafts, OfAModelChangeNoAnswer) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const DraftStats drafts = drafts_of(shared(spec_of("draft_model", testing::kTinyLlama)));
  EXPECT_GT(sum(drafts.num_draft_tokens), 3U);
  EXPECT_EQ(sum(drafts.num_accepted_tokens) + drafts.num_padded_rows, sum(drafts.num_draft_tokens));
}

// A head reads states of the target, and rank 0 has all of them.
TEST_F(CudaRankDrafts, OfAHeadChangeNoAnswer) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  Config config = shared(spec_of("eagle3", testing::eagle_head("mapped")));
  config.max_num_batched_tokens = 16;
  EXPECT_GT(sum(drafts_of(config).num_drafts), 0U);
}

}  // namespace
}  // namespace sluice
