// SPDX-License-Identifier: Apache-2.0
// Exchanges of ranks that write each other's memory: the bytes of a gather, and the bits of
// join_parts() on gathered parts, in every schedule of every rank; and their ends where a rank does
// not come.
#include "kernels/peer_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/peer_launches.h"
#include "quant/format.h"
#include "tests/kernels/cuda/peer_ranks.h"
#include "tests/kernels/devices.h"
#include "tests/support/tier.h"

namespace sluice::kernels {
namespace {

using test::DeviceBytes;
using test::PeerRanks;
using test::Random;

std::vector<int32_t> sizes() {
  return testing::is_full() ? std::vector<int32_t>{2, 4, 8} : std::vector<int32_t>{2, 4};
}

// Runs body(ranks, run), which calls run(body of a rank) once, in the schedules of kernel tests.
template <typename Body>
void on_schedules_of(int32_t size, const Body& body) {
  const int plain_seeds = test::num_seeds(test::kPlainSeeds, test::Seeds::kAll);
  const int race_seeds = test::num_seeds(test::kRaceSeeds, test::Seeds::kAll);
  for (int i = 0; i < plain_seeds + race_seeds; ++i) {
    const bool race = i >= plain_seeds;
    const auto seed = static_cast<uint64_t>(race ? i - plain_seeds : i);
    SCOPED_TRACE((race ? "race, seed " : "plain, seed ") + std::to_string(seed) + ", " +
                 std::to_string(size) + " ranks");
    PeerRanks ranks(size);
    body(ranks, [&](const std::function<void(int32_t)>& of_rank) {
      ASSERT_EQ(ranks.run(seed, race ? simt::Mode::kRace : simt::Mode::kPlain, of_rank), "");
      ASSERT_EQ(ranks.stop(), 0U);
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Every bit pattern may come, those of NaN, infinities and zeros of either sign often.
std::vector<uint32_t> any_words(size_t count, uint64_t seed) {
  constexpr uint32_t kSpecial[] = {
      0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x7F800001, 1, 0x7FFFFFFF};
  Random random(seed);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) {
    word = random.below(4) == 0 ? kSpecial[random.below(std::size(kSpecial))] : random.bits();
  }
  return words;
}

// Parts of one word, of some that fill no thread's or block's piece, of more pieces than blocks.
TEST(CudaPeers, AGatherGivesEveryRanksBytes) {
  const std::vector<size_t> counts = {1, 3, 512, 5, 513, 2047, 3100, 4};
  for (const int32_t size : sizes()) {
    on_schedules_of(size, [&](const PeerRanks& ranks, const auto& run) {
      run([&](int32_t rank) {
        for (size_t i = 0; i < counts.size(); ++i) {
          const size_t bytes = 4 * counts[i];
          const auto part_of = [&](int32_t of) {
            return any_words(counts[i], 100 * i + static_cast<uint64_t>(of));
          };
          const std::vector<uint32_t> own = part_of(rank);
          const size_t skipped = i % 2 * 4;  // every second part is not aligned
          const DeviceBytes part(static_cast<int64_t>(bytes + skipped));
          std::memcpy(part.data() + skipped, own.data(), bytes);
          const DeviceBytes received(static_cast<int64_t>(bytes) * size);
          const PeerWindows windows = ranks.windows(rank);
          cuda::launch_gather_peers(nullptr,
                                    {.peers = &windows,
                                     .part = {part.data() + skipped, bytes},
                                     .received = received.data()});
          for (int32_t of = 0; of < size; ++of) {
            const std::byte* const found = received.data() + static_cast<size_t>(of) * bytes;
            EXPECT_EQ(std::memcmp(found, part_of(of).data(), bytes), 0)
                << counts[i] << " words of rank " << of << " on rank " << rank;
          }
        }
      });
    });
  }
}

struct Rows {
  int32_t rows;
  int32_t n;
  Epilogue epilogue = Epilogue::kStore;
  bool bias = false;
};

// A layer whose weights are only scales: what a join reads of them.
class Layer {
 public:
  Layer(WeightFormat format, const Rows& rows)
      : rows_(rows),
        x_format_(format == WeightFormat::kInt8Channel   ? ActivationFormat::kInt8Token
                  : format == WeightFormat::kE4M3Channel ? ActivationFormat::kE4M3Token
                                                         : ActivationFormat::kBF16),
        matrix_(std::max(matrix_bytes(format, rows.n, kK), packed_bytes(format, rows.n, kK))),
        x_(activation_bytes(x_format_, rows.rows, kK)),
        bias_(Random(7).normals(static_cast<size_t>(rows.n))) {
    fill(matrix_);
    fill(x_);
    weight_ = {.format = format, .n = rows.n, .k = kK, .data = matrix_.data()};
  }

  // Returns the rank's part of an exchange; some rows are -0.0 on all of them.
  [[nodiscard]] std::vector<float> part(int32_t rank, uint64_t number) const {
    const auto count = static_cast<size_t>(rows_.rows) * static_cast<size_t>(rows_.n);
    std::vector<float> part(count);
    const std::vector<uint32_t> words =
        any_words(count, 1000 * number + static_cast<uint64_t>(rank));
    std::memcpy(part.data(), words.data(), count * sizeof(float));
    for (int32_t row = 1; row < rows_.rows; row += 3) {
      std::fill_n(part.begin() + int64_t{row} * rows_.n, rows_.n, -0.0F);
    }
    return part;
  }

  [[nodiscard]] std::vector<float> join(std::span<const float* const> parts,
                                        const PeerWindows* peers) const {
    const int64_t stride = rows_.n + 3;
    std::vector<float> out(static_cast<size_t>(rows_.rows * stride), -0.0F);
    const JoinPartsArgs join = {.parts = parts,
                                .weight = &weight_,
                                .x = carve_activations(x_format_, rows_.rows, kK, x_.data()),
                                .bias = rows_.bias ? bias_.data() : nullptr,
                                .out = out.data(),
                                .out_stride = stride,
                                .epilogue = rows_.epilogue};
    if (peers == nullptr) {
      cuda::launch_join_parts(nullptr, join);
    } else {
      cuda::launch_join_peer_parts(nullptr, {.peers = peers, .join = join});
    }
    return out;
  }

 private:
  static constexpr int32_t kK = 256;

  // Scales are these floats wherever they lie.
  static void fill(const DeviceBytes& bytes) {
    Random random(5);
    for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      const float scale = 0.01F + random.uniform();
      std::memcpy(bytes.data() + at, &scale, sizeof(scale));
    }
  }

  const Rows rows_;
  const ActivationFormat x_format_;
  const DeviceBytes matrix_;
  const DeviceBytes x_;
  const std::vector<float> bias_;
  PackedWeight weight_;
};

std::vector<float> gathered_join(const Layer& layer, int32_t size, uint64_t number) {
  std::vector<std::vector<float>> parts;
  std::vector<const float*> pointers;
  for (int32_t rank = 0; rank < size; ++rank) parts.push_back(layer.part(rank, number));
  for (const std::vector<float>& part : parts) pointers.push_back(part.data());
  const simt::Run schedule(1);
  return layer.join(pointers, nullptr);
}

std::vector<float> peers_join(const Layer& layer, const PeerWindows& peers, uint64_t number) {
  const std::vector<float> own = layer.part(peers.rank, number);
  const DeviceBytes part(std::ssize(own) * 4);
  std::memcpy(part.data(), own.data(), part.size());
  const auto* const pointer = reinterpret_cast<const float*>(part.data());
  return layer.join({&pointer, 1}, &peers);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16,
                                     WeightFormat::kInt8Channel,
                                     WeightFormat::kE4M3Channel,
                                     WeightFormat::kNVFP4};

// Exchanges of different sizes follow each other, of one block and of as many pieces as take turns.
TEST(CudaPeers, AJoinHasTheBitsOfAJoinOfGatheredParts) {
  const std::vector<Rows> settings = {{.rows = 1, .n = 40},
                                      {.rows = 7, .n = 424, .epilogue = Epilogue::kAdd},
                                      {.rows = 2, .n = 264, .bias = true},
                                      {.rows = 3, .n = 136, .epilogue = Epilogue::kAdd}};
  for (const WeightFormat format : kFormats) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (const Rows& rows : settings) layers.push_back(std::make_unique<Layer>(format, rows));
    for (const int32_t size : sizes()) {
      std::vector<std::vector<float>> want;
      for (uint64_t i = 0; i < layers.size(); ++i) {
        want.push_back(gathered_join(*layers[i], size, i));
      }
      on_schedules_of(size, [&](const PeerRanks& ranks, const auto& run) {
        run([&](int32_t rank) {
          for (uint64_t i = 0; i < layers.size(); ++i) {
            EXPECT_TRUE(same_bits(peers_join(*layers[i], ranks.windows(rank), i), want[i]))
                << "format " << static_cast<int>(format) << ", exchange " << i << ", rank " << rank;
          }
        });
      });
    }
  }
}

// Negative zeros of all ranks on a negative zero stay negative.
TEST(CudaPeers, NegativeZerosKeepTheirSign) {
  const Layer layer(WeightFormat::kBF16, {.rows = 2, .n = 8, .epilogue = Epilogue::kAdd});
  const std::vector<float> want = gathered_join(layer, 2, 3);
  ASSERT_EQ(std::bit_cast<uint32_t>(want[11]), 0x80000000U);
  PeerRanks ranks(2);
  const std::string reports = ranks.run(1, simt::Mode::kPlain, [&](int32_t rank) {
    EXPECT_TRUE(same_bits(peers_join(layer, ranks.windows(rank), 3), want)) << rank;
  });
  EXPECT_EQ(reports, "");
}

// The largest part, and one word more, which is the caller's bug.
TEST(CudaPeers, TakeAsMuchAsAWindowHasRoomFor) {
  for (const int32_t size : {2, 4, 8}) {
    const int32_t n = 4096;
    const auto rows = static_cast<int32_t>(most_peer_bytes(size) / 4 / n);
    const Layer layer(WeightFormat::kInt8Channel, {.rows = rows, .n = n});
    const std::vector<float> want = gathered_join(layer, size, 9);
    PeerRanks ranks(size);
    const std::string reports = ranks.run(2, simt::Mode::kPlain, [&](int32_t rank) {
      EXPECT_TRUE(same_bits(peers_join(layer, ranks.windows(rank), 9), want)) << rank;
    });
    EXPECT_EQ(reports, "");
  }
  const PeerRanks ranks(2);
  const PeerWindows windows = ranks.windows(0);
  const DeviceBytes part(most_peer_bytes(2) + 4);
  EXPECT_DEATH(
      cuda::launch_gather_peers(
          nullptr,
          {.peers = &windows, .part = {part.data(), part.size()}, .received = part.data()}),
      "most_peer_bytes");
}

TEST(CudaPeers, CountAroundTheEndOf32Bits) {
  const Layer layer(WeightFormat::kBF16, {.rows = 1, .n = 600});
  std::vector<std::vector<float>> want;
  for (uint64_t i = 0; i < 4; ++i) want.push_back(gathered_join(layer, 2, i));
  PeerRanks ranks(2);
  ranks.set_number(0xFFFFFFFE);
  const std::string reports = ranks.run(0, simt::Mode::kPlain, [&](int32_t rank) {
    for (uint64_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(same_bits(peers_join(layer, ranks.windows(rank), i), want[i])) << i;
    }
  });
  EXPECT_EQ(reports, "");
  EXPECT_EQ(ranks.stop(), 0U);
}

// Runs rank 0 alone; returns the seconds that its exchange took, which has given nothing.
double seconds_alone(const PeerRanks& ranks) {
  const Layer layer(WeightFormat::kBF16, {.rows = 1, .n = 600});
  const auto begun = std::chrono::steady_clock::now();
  simt::Run schedule(1);
  const std::vector<float> got = peers_join(layer, ranks.windows(0), 0);
  EXPECT_EQ(test::joined(schedule.take_reports()), "");
  EXPECT_TRUE(
      std::ranges::all_of(got, [](float value) { return std::signbit(value) && value == 0; }));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

TEST(CudaPeers, AWaitEndsAtItsLimitAndEndsThoseOfAllOthers) {
  PeerRanks ranks(2);
  ranks.set_limit_ns(50'000'000);
  EXPECT_GE(seconds_alone(ranks), 0.05);
  EXPECT_EQ(ranks.stop(), 1U);
  ranks.set_limit_ns(int64_t{600} * 1'000'000'000);
  EXPECT_LT(seconds_alone(ranks), 60);  // no wait from then on
}

TEST(CudaPeers, AWaitEndsWhenTheHostStopsIt) {
  const PeerRanks ranks(4);
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.stop() = 1;
  });
  EXPECT_LT(seconds_alone(ranks), 60);
  host.join();
}

}  // namespace
}  // namespace sluice::kernels
