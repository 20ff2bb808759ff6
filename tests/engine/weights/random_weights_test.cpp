// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/random_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/pack.h"
#include "engine/weights/weight_store.h"
#include "quant/kv_code.h"
#include "quant/repack.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

TEST(RandomWeights, EveryTileIsPartOfOneMatrix) {
  constexpr int32_t kColumns = 64;
  const int64_t tile_size = kRowTile * kColumns;
  const NamedRandom random("blk.0.attn_q");
  for (const WeightFormat format : {WeightFormat::kBF16,
                                    WeightFormat::kInt8Channel,
                                    WeightFormat::kE4M3Block,
                                    WeightFormat::kNVFP4}) {
    const PackedWeight whole{format, 2 * kRowTile + 5, kColumns};
    RandomTile tile("blk.0.attn_q", whole, 0);
    // This rank has the rows from the second tile on.
    const PackedWeight part{format, kRowTile + 5, kColumns};
    RandomTile of_rank("blk.0.attn_q", part, 1);
    for (int64_t number = 0; number < 3; ++number) {
      const int64_t rows = tile.make(number);
      ASSERT_EQ(rows, number < 2 ? kRowTile : 5);
      for (int64_t i = 0; i < rows * kColumns; ++i) {
        const float value = random.at(number * tile_size + i);
        ASSERT_TRUE(value >= -1 && value < 1);
        if (format == WeightFormat::kInt8Channel) {
          ASSERT_EQ(static_cast<int8_t>(tile.bytes()[i]), static_cast<int8_t>(127 * value));
        } else if (format == WeightFormat::kE4M3Block) {
          ASSERT_EQ(static_cast<uint8_t>(tile.bytes()[i]), float_to_e4m3(448 * value));
        } else if (format == WeightFormat::kNVFP4) {
          const float code = 0.5F * kE2M1Codebook[static_cast<uint8_t>(tile.bytes()[i])];
          ASSERT_TRUE(std::abs(code) <= 6 * std::abs(value) && code * value >= 0) << value;
          ASSERT_LT(6 * std::abs(value) - std::abs(code), 2);
        } else {
          uint16_t bits = 0;
          std::memcpy(&bits, tile.bytes() + 2 * i, sizeof bits);
          ASSERT_EQ(bits, float_to_bf16(RandomTile::limit(kColumns) * value));
        }
      }
      if (number == 0) continue;
      ASSERT_EQ(of_rank.make(number - 1), rows);
      const auto bytes =
          static_cast<size_t>(rows * kColumns * (format == WeightFormat::kBF16 ? 2 : 1));
      EXPECT_EQ(std::memcmp(tile.bytes(), of_rank.bytes(), bytes), 0);
    }
  }
}

// Covers a matrix made by several threads, and one too small for that.
TEST(RandomWeights, ThreadsMakeWhatOneDoes) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.at("config.json"))
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})";
  const auto checkpoint = Checkpoint::open(folder.path(), LoadFormat::kDummy);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  constexpr int32_t kColumns = 1024;
  for (const int32_t rows : {7, 2100}) {
    WeightStore store(**checkpoint);
    ASSERT_TRUE(store.allocate(8 << 20).has_value());
    const auto made = store.matrix("blk.0.ffn_up.weight", rows, kColumns);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    ASSERT_EQ(made->format, WeightFormat::kBF16);
    EXPECT_EQ(num_pack_workers(packed_bytes(made->format, rows, kColumns)) > 1,
              rows > 7 && std::thread::hardware_concurrency() > 1);
    std::vector<std::byte> want(static_cast<size_t>(packed_bytes(made->format, rows, kColumns)));
    RandomTile tile("blk.0.ffn_up.weight 0", *made, 0);
    for (int64_t number = 0; number * kRowTile < rows; ++number) {
      const int64_t count = tile.make(number);
      std::byte* const to = want.data() + number * packed_tile_bytes(made->format, kColumns);
      pack_weight(made->format, tile.bytes(), count, kColumns, 0, 1, to);
    }
    EXPECT_EQ(std::memcmp(made->data, want.data(), want.size()), 0) << rows;
  }
}

TEST(SharesOfThreads, TakeEachOnce) {
  for (const int64_t count : {0, 1, 7, 100}) {
    for (const int64_t workers : {1, 3, 8}) {
      std::vector<int> taken(static_cast<size_t>(count));
      std::vector<int> called(static_cast<size_t>(workers));
      share_out(count, workers, [&](int64_t i, int64_t begin, int64_t end) {
        ++called[static_cast<size_t>(i)];
        for (int64_t at = begin; at < end; ++at) ++taken[static_cast<size_t>(at)];
      });
      EXPECT_EQ(std::ranges::count(taken, 1), count);
      EXPECT_EQ(std::ranges::count(called, 1), workers);
    }
  }
}

}  // namespace
}  // namespace sluice
