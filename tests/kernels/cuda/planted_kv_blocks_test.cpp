// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs in copies of a cache's blocks to a slot and back.
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/cuda/planted.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class KvBlocks : public testing::Test {
 protected:
  using Shape = KvBlocksShape;

  static constexpr size_t kSlack = 2 * Shape::kThreads;

  KvBlocks()
      : cache_(Random(94).normals(size_t{2} * Shape::kLayers * Shape::kBlocks * Shape::kHeads *
                                  Shape::kFloats)) {
    std::vector<float> after = cache_;
    for (const int32_t block : blocks_) {
      for (int layer = 0; layer < Shape::kLayers; ++layer) {
        for (int plane = 0; plane < 2; ++plane) {
          for (int at = 0; at < Shape::kMeantHeads * Shape::kFloats; ++at) {
            const int row = (layer * 2 + plane) * Shape::kBlocks + block;
            const auto place = static_cast<size_t>(
                (row * Shape::kHeads + Shape::kFirstHead) * Shape::kFloats + at);
            want_.push_back(cache_[place]);
            after[place] = cache_[place] + 1.0F;
          }
        }
      }
    }
    want_.resize(want_.size() + kSlack, -1.0F);
    after.resize(after.size() + kSlack);
    want_.insert(want_.end(), after.begin(), after.end());
  }

  bool is_right(KvBlocksBug bug) { return same(run_kv_blocks(bug, cache_, blocks_), want_); }

  void expect(const char* name, KvBlocksBug bug) {
    expect_caught(name, "wrong bits", [&] { return is_right(bug); });
  }

  const std::vector<int32_t> blocks_ = {5, 0, 3};
  std::vector<float> cache_;
  std::vector<float> want_;
};

TEST_F(KvBlocks, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(KvBlocksBug::kNone)); });
}

TEST_F(KvBlocks, EveryPlantedBugIsCaught) {
  using enum KvBlocksBug;
  expect("blocks by their places", kBlockByItsPlace);
  expect("layer and block swapped", kLayerForBlock);
  expect("the first plane alone", kFirstPlaneAlone);
  expect("a plane one unit late", kPlaneOneUnitLate);
  expect("an unmasked tail", kUnmaskedTail);
  expect("one unit short", kOneUnitShort);
  expect("a slot for each block", kSlotOfTheBlockAlone);
  expect("heads from the first on", kHeadsFromTheFirst);
  expect("to where it came from", kReversed);
}

}  // namespace
}  // namespace sluice::kernels::test
