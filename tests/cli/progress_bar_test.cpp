// SPDX-License-Identifier: Apache-2.0
#include "server/cli/progress_bar.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(ProgressBar, SaysPartAmountRateAndTimeLeft) {
  EXPECT_EQ(progress_text({10, 0, 1'000'000'000, 4'000'000'000}),
            "25%, 1.0 of 4.0 GB, 100.0 MB/s, 0:30 left");
  EXPECT_EQ(progress_text({2, 0, 50'000'000, 400'000'000}),
            "12%, 50.0 of 400.0 MB, 25.0 MB/s, 0:14 left");
  EXPECT_EQ(progress_text({1, 0, 1'000'000, 6'000'000'000}),
            "0%, 0.0 of 6.0 GB, 1.0 MB/s, 1:39:59 left");
  EXPECT_EQ(progress_text({10, 0, 400, 400}), "100%, 0.0 of 0.0 MB, 0.0 MB/s");
}

// What was there before is done, and says nothing of the rate.
TEST(ProgressBar, CountsForTheRateWhatCameSinceItBegan) {
  EXPECT_EQ(progress_text({10, 3'000'000'000, 3'500'000'000, 4'000'000'000}),
            "88%, 3.5 of 4.0 GB, 50.0 MB/s, 0:10 left");
  EXPECT_EQ(progress_text({10, 3'000'000'000, 3'000'000'000, 4'000'000'000}),
            "75%, 3.0 of 4.0 GB");
  EXPECT_EQ(progress_text({0, 0, 1'000'000, 4'000'000}), "25%, 1.0 of 4.0 MB");
  // A file that is fetched anew: less than there was.
  EXPECT_EQ(progress_text({10, 3'000'000, 2'000'000, 4'000'000}), "50%, 2.0 of 4.0 MB");
}

TEST(ProgressBar, ItsBarIsAsLongAsThePart) {
  EXPECT_EQ(progress_bar(0, 100, 4), "[....]");
  EXPECT_EQ(progress_bar(50, 100, 4), "[##..]");
  EXPECT_EQ(progress_bar(99, 100, 4), "[###.]");
  EXPECT_EQ(progress_bar(100, 100, 4), "[####]");
  EXPECT_EQ(progress_bar(200, 100, 4), "[####]");
  EXPECT_EQ(progress_bar(-1, 100, 4), "[....]");
  EXPECT_EQ(progress_bar(0, 0, 4), "[####]");
}

}  // namespace
}  // namespace sluice
