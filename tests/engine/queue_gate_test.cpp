// SPDX-License-Identifier: Apache-2.0
// Places in the waiting queue of what enters an engine, and of what fails on the way.
#include "engine/loop/queue_gate.h"

#include <gtest/gtest.h>

#include "engine/core/config.h"
#include "engine/request.h"

namespace sluice {
namespace {

TEST(QueuePlace, IsLeftUnlessItIsKept) {
  QueueGate gate{Config()};
  ValidRequest request;
  request.prompt = {1, 2, 3};
  for (const bool is_kept : {false, true}) {
    const auto queued = gate.enter(request);
    ASSERT_TRUE(queued.has_value());
    {
      QueuePlace place(gate, *queued);
      if (is_kept) place.keep();
      EXPECT_EQ(gate.num_waiting(), 1);
    }
    EXPECT_EQ(gate.num_waiting(), is_kept ? 1 : 0);
  }
}

}  // namespace
}  // namespace sluice
