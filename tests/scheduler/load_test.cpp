// SPDX-License-Identifier: Apache-2.0
// Shares of tenants under load, on a simulated clock.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/scheduler/load_sim.h"

namespace sluice {
namespace {

LoadOptions options() {
  LoadOptions o;
  o.scheduler = {
      .max_num_seqs = 64,
      .max_num_batched_tokens = 512,
      .step_target_ms = 50,
      .max_num_queued_reqs = 1024 + static_cast<int32_t>(Admission::extra_requests(1024)),
      .max_model_len = 1024};
  o.admission = {.max_requests = 1024};
  return o;
}

TEST(Load, ATenantWithAHundredTimesTheRequestsDoesNotDoubleAnothersTimeToFirstToken) {
  LoadOptions o = options();
  o.seconds = 1200;
  const LoadClient quiet{.tenant = TenantId(1), .requests_per_s = 0.5};
  LoadClient loud = quiet;
  loud.tenant = TenantId(2);
  loud.requests_per_s = 50;
  const LoadResult alone = run_load(o, {quiet})[0];
  const auto both = run_load(o, {quiet, loud});
  ASSERT_GT(alone.first_token_ms.size(), 500U);
  EXPECT_EQ(both[0].num_refused, 0);
  EXPECT_GT(both[1].num_refused, both[1].num_arrived / 2);  // far more than can be served
  EXPECT_LT(both[0].percentile_ms(0.99), 2 * alone.percentile_ms(0.99))
      << alone.percentile_ms(0.5) << " " << both[0].percentile_ms(0.5);
  RecordProperty("alone_p99_ms", static_cast<int>(alone.percentile_ms(0.99)));
  RecordProperty("both_p99_ms", static_cast<int>(both[0].percentile_ms(0.99)));
}

TEST(Load, TenantsWhoBothAskForMoreThanThereIsGetTheSame) {
  LoadOptions o = options();
  o.seconds = 300;
  const LoadClient few{.tenant = TenantId(1), .requests_per_s = 20};
  const LoadClient many{.tenant = TenantId(2), .requests_per_s = 100};
  const auto results = run_load(o, {few, many});
  EXPECT_NEAR(
      static_cast<double>(results[0].num_finished) / static_cast<double>(results[1].num_finished),
      1,
      0.05);
}

TEST(Load, UnderTenTimesTheLoadNoWorkIsLostAndEveryRefusalsTimeHolds) {
  LoadOptions o = options();
  o.seconds = 300;
  o.admission = {.max_requests = 64};
  LoadClient client{.requests_per_s = 15};
  const double saturation = static_cast<double>(run_load(o, {client})[0].num_finished);
  client.requests_per_s = 120;
  client.comes_back = true;
  const LoadResult overload = run_load(o, {client})[0];
  EXPECT_GT(static_cast<double>(overload.num_finished), 0.95 * saturation);
  EXPECT_EQ(overload.num_broken, 0);
  EXPECT_GT(overload.num_returned, 100);
  // Only the first moments, when the speed of the queue was not known.
  EXPECT_LT(overload.num_without_time, overload.num_refused / 20);
}

struct AnswersCase {
  const char* name;
  double mean_answer;  // 0: always max_tokens
  int32_t max_tokens;
};

// The cache holds twenty whole requests, or all the prompts that may run.
TEST(Load, AdmissionLeavesRoomForTheAnswersToComeAndWastesNone) {
  for (const AnswersCase& c : {AnswersCase{"fixed", 0, 256}, AnswersCase{"open", 200, 900}}) {
    LoadOptions o = options();
    o.num_blocks = 400;
    o.seconds = 600;
    const LoadClient client{.requests_per_s = 40,
                            .num_prompt = 64,
                            .num_output = c.max_tokens,
                            .mean_answer = c.mean_answer};
    const LoadResult ahead = run_load(o, {client})[0];
    o.scheduler.leave_room_for_answers = false;
    const LoadResult blind = run_load(o, {client})[0];
    SCOPED_TRACE(c.name);
    EXPECT_GT(blind.num_preempted, 1000);
    EXPECT_LT(ahead.num_preempted, blind.num_preempted / 20);
    EXPECT_LT(ahead.num_lost_tokens, blind.num_lost_tokens / 20);
    EXPECT_GT(static_cast<double>(ahead.num_generated),
              0.98 * static_cast<double>(blind.num_generated));
  }
}

TEST(Load, WhoWouldWaitTooLongComesBackAndDoesNot) {
  LoadOptions o = options();
  o.seconds = 300;
  o.admission.max_wait_ms = 3000;
  const LoadClient client{.requests_per_s = 120, .comes_back = true};
  const LoadResult result = run_load(o, {client})[0];
  EXPECT_EQ(result.num_broken, 0);
  EXPECT_GT(result.num_returned, 100);
  EXPECT_LT(result.percentile_ms(0.5), 4000);
  EXPECT_LT(result.percentile_ms(0.99), 8000);
}

}  // namespace
}  // namespace sluice
