// SPDX-License-Identifier: Apache-2.0
// Attention against a plain fp64 softmax, and its bits across instruction sets, threads, chunkings
// and batch compositions.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::apart;
using test::mixed;
using test::Sequences;
using test::Shape;
using test::Step;
using test::together;

void expect_oracle(const Shape& shape,
                   const std::vector<int32_t>& lengths,
                   double bound,
                   bool from_cache = true) {
  SCOPED_TRACE(shape.name());
  Sequences sequences(shape, lengths, 11);
  const auto device = test::make_device("auto", 2);
  const Sequences::Result result = sequences.run(*device, together(lengths, 2000));
  for (size_t req = 0; req < lengths.size(); ++req) {
    for (const int32_t back : {1, 2, 17, 65, 200}) {
      const int32_t position = lengths[req] - back;
      if (position < 0) continue;
      const float* got = sequences.row_of(result, static_cast<int32_t>(req), position);
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        const std::vector<double> wanted =
            sequences.oracle(static_cast<int32_t>(req), position, head, from_cache);
        for (int32_t d = 0; d < shape.value_width(); ++d) {
          ASSERT_NEAR(static_cast<double>(got[head * shape.value_width() + d]),
                      wanted[static_cast<size_t>(d)],
                      bound)
              << "length " << lengths[req] << " position " << position << " head " << head
              << " element " << d;
        }
      }
    }
  }
}

// Values are of order 1: fp32 accumulation over at most 1,500 keys stays below 1e-5.
constexpr double kBound = 1e-5;

TEST(Attention, MatchesAnFp64SoftmaxAtEveryBorder) {
  expect_oracle(
      {}, {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1500}, kBound);
}

TEST(Attention, MatchesAnFp64SoftmaxForEveryShape) {
  const std::vector<int32_t> lengths = {1, 33, 130, 600};
  expect_oracle({.num_heads = 2, .num_kv_heads = 2, .head_dim = 32}, lengths, kBound);
  expect_oracle({.num_heads = 9, .num_kv_heads = 3, .head_dim = 64}, lengths, kBound);
  expect_oracle({.num_heads = 8, .num_kv_heads = 2, .head_dim = 80}, lengths, kBound);
  expect_oracle({.num_heads = 8, .num_kv_heads = 1, .head_dim = 128}, lengths, kBound);
  expect_oracle({.num_heads = 40, .num_kv_heads = 1, .head_dim = 16}, lengths, kBound);
  expect_oracle({.num_heads = 4, .num_kv_heads = 2, .head_dim = 256}, {1, 130}, kBound);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    expect_oracle({.head_dim = 512, .dtype = dtype}, {1, 33, 130}, kBound);
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    expect_oracle({.dtype = dtype}, lengths, kBound);
  }
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    for (const int32_t block_size : {1, 8, 32, 64}) {
      expect_oracle({.head_dim = 20, .dtype = dtype, .block_size = block_size}, lengths, kBound);
    }
  }
  for (const int32_t head_dim : {1, 8, 20, 24, 40, 72, 96, 100, 120}) {
    expect_oracle({.head_dim = head_dim}, lengths, kBound);
    expect_oracle({.num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .block_size = 8},
                  {1, 70},
                  kBound);
  }
  for (const int32_t block_size : {1, 4, 8, 32, 64}) {
    expect_oracle({.block_size = block_size}, lengths, kBound);
  }
}

TEST(Attention, HonoursWindowSoftCapAndSinks) {
  const std::vector<int32_t> lengths = {1, 40, 130, 700, 1100};
  for (const int32_t window : {1, 16, 50, 64, 512, 600}) {
    expect_oracle({.window = window}, lengths, kBound);
  }
  expect_oracle({.soft_cap = 5}, lengths, kBound);
  expect_oracle({.sinks = true}, lengths, kBound);
  expect_oracle({.block_size = 8, .window = 70, .soft_cap = 20, .sinks = true}, lengths, kBound);
}

TEST(Attention, SeesKeysBehindWhereAsked) {
  const std::vector<int32_t> lengths = {1, 16, 17, 40, 130, 513, 700, 1100};
  expect_oracle({.sees_behind = true}, lengths, kBound);
  expect_oracle({.head_dim = 32, .dtype = DType::kF32, .sees_behind = true}, lengths, kBound);
  for (const int32_t window : {1, 16, 65, 512}) {
    expect_oracle({.window = window, .sees_behind = true}, lengths, kBound);
    expect_oracle({.block_size = 8, .window = window, .sees_behind = true}, lengths, kBound);
  }
  for (const int32_t unseen : {1, 20, 600}) {
    expect_oracle({.sees_behind = true, .num_unseen = unseen}, lengths, kBound);
    expect_oracle(
        {.window = 650, .sees_behind = true, .num_unseen = unseen}, lengths, kBound);
  }
  expect_oracle({.sees_behind = true, .slopes = true}, lengths, kBound);
  expect_oracle({.num_heads = 6, .num_kv_heads = 3, .window = 70, .slopes = true}, lengths, kBound);
  expect_oracle({.sees_behind = true, .place_bias = true}, lengths, kBound);
  expect_oracle(
      {.num_heads = 6, .num_kv_heads = 3, .window = 70, .place_bias = true}, lengths, kBound);
}

TEST(Attention, ChunksEndAtMultiplesOfTheWindow) {
  for (const int32_t window : {1, 16, 50, 64, 512, 600}) {
    expect_oracle({.window = window, .is_chunked = true}, {1, 40, 130, 601, 1100}, kBound);
  }
  expect_oracle(
      {.block_size = 8, .window = 70, .sinks = true, .is_chunked = true}, {141, 700}, kBound);
}

TEST(Attention, ValuesMayHaveAWidthOfTheirOwn) {
  const std::vector<int32_t> lengths = {1, 33, 600};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    for (const int32_t block_size : {4, 16, 32}) {
      expect_oracle({.head_dim = 48, .dtype = dtype, .block_size = block_size, .value_dim = 32},
                    lengths,
                    kBound);
    }
    expect_oracle({.num_heads = 4,
                   .num_kv_heads = 2,
                   .head_dim = 20,
                   .dtype = dtype,
                   .sinks = true,
                   .value_dim = 36},
                  lengths,
                  kBound);
  }
  expect_oracle(
      {.num_heads = 8, .num_kv_heads = 1, .head_dim = 192, .window = 70, .value_dim = 128},
      {1, 130},
      kBound);
}

// Scores of normal K and Q have a deviation of 2, values one of 1. Half a step of int8 moves an
// output by some hundredths, half a step of e4m3's 3 bits of mantissa by tenths at most.
TEST(Attention, QuantizedCachesStayNearWhatWasWritten) {
  expect_oracle({.dtype = DType::kI8}, {1, 130, 600}, 0.1, /*from_cache=*/false);
  expect_oracle({.dtype = DType::kF8E4M3}, {1, 130, 600}, 0.5, /*from_cache=*/false);
}

TEST(Attention, EveryBitIsThatOfTheTreeTheHeaderStates) {
  const std::vector<int32_t> lengths = {1, 70, 1100};
  for (const Shape& shape : {Shape{},
                             Shape{.head_dim = 80, .dtype = DType::kF32, .window = 600},
                             Shape{.head_dim = 20, .dtype = DType::kBF16},
                             Shape{.head_dim = 100, .dtype = DType::kF16, .window = 90},
                             Shape{.dtype = DType::kF16, .window = 40, .sinks = true},
                             Shape{.num_heads = 1, .head_dim = 512},
                             Shape{.dtype = DType::kF16, .window = 90, .is_chunked = true},
                             Shape{.head_dim = 40, .value_dim = 24},
                             Shape{.head_dim = 20, .dtype = DType::kI8, .value_dim = 36},
                             Shape{.dtype = DType::kI8},
                             Shape{.head_dim = 20, .dtype = DType::kI8, .block_size = 8},
                             Shape{.head_dim = 80, .dtype = DType::kF8E4M3, .window = 600},
                             Shape{.dtype = DType::kF32, .sees_behind = true},
                             Shape{.head_dim = 20, .window = 65, .sees_behind = true},
                             Shape{.dtype = DType::kF32, .sees_behind = true, .slopes = true},
                             Shape{.dtype = DType::kF32, .sees_behind = true, .num_unseen = 30},
                             Shape{.dtype = DType::kF32, .sees_behind = true, .place_bias = true},
                             Shape{.dtype = DType::kI8, .slopes = true},
                             Shape{.dtype = DType::kF8E4M3, .block_size = 64, .sinks = true}}) {
    SCOPED_TRACE(shape.name());
    Sequences sequences(shape, lengths, 14);
    const auto device = test::make_device("auto", 2);
    const int32_t piece = shape.sees_behind ? 2000 : 500;  // such a sequence is one step
    const Sequences::Result result = sequences.run(*device, together(lengths, piece));
    for (int32_t req = 0; req < 3; ++req) {
      for (const int32_t position : {0, 15, 16, 63, 64, 69, 511, 512, 575, 1023, 1024, 1099}) {
        if (position >= lengths[static_cast<size_t>(req)]) continue;
        for (int32_t head = 0; head < shape.num_heads; ++head) {
          const std::vector<float> wanted = sequences.tree(req, position, head);
          const float* got = sequences.row_of(result, req, position) + head * shape.value_width();
          EXPECT_EQ(std::memcmp(got, wanted.data(), wanted.size() * sizeof(float)), 0)
              << "request " << req << " position " << position << " head " << head;
        }
      }
    }
  }
}

// Runs the sequences in one prefill, in chunks, as decodes and mixed, on every device.
void expect_same_bits(const Shape& shape, const std::vector<int32_t>& lengths) {
  SCOPED_TRACE(shape.name());
  Sequences sequences(shape, lengths, 12);
  const auto reference_device = test::make_device("auto", 1);
  const Sequences::Result reference = sequences.run(*reference_device, apart(lengths, 4096));
  for (const auto& device : test::devices({1, 2, 3})) {
    SCOPED_TRACE(device.name);
    for (const int32_t chunk : {1, 7, 16, 64, 100, 4096}) {
      EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, together(lengths, chunk))))
          << "chunks of " << chunk;
    }
    EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, apart(lengths, 48))));
    EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, mixed(lengths, 5))));
  }
}

TEST(Attention, BitsDoNotDependOnInstructionSetThreadsChunkingOrBatch) {
  expect_same_bits({}, {150, 65, 1});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 1, .head_dim = 80, .dtype = DType::kF16},
                   {97, 40});
  expect_same_bits({.num_heads = 8, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF32},
                   {70, 130});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .head_dim = 20}, {97, 40});
  expect_same_bits({.num_heads = 2, .head_dim = 512, .window = 50}, {70, 9});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .dtype = DType::kI8}, {97, 40});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .head_dim = 20, .dtype = DType::kF8E4M3},
                   {97, 40});
  expect_same_bits({.num_heads = 2, .dtype = DType::kF8E4M3, .block_size = 8, .window = 50},
                   {97, 40});
  expect_same_bits({.num_heads = 2, .num_kv_heads = 1, .head_dim = 100, .block_size = 8}, {70, 9});
  expect_same_bits({.num_heads = 2,
                    .num_kv_heads = 2,
                    .block_size = 4,
                    .window = 50,
                    .soft_cap = 10,
                    .sinks = true},
                   {140, 20});
}

TEST(Attention, ChunksAndValuesOfTheirOwnWidthHaveTheSameBits) {
  expect_same_bits({.num_heads = 2, .window = 40, .is_chunked = true}, {150, 65});
  expect_same_bits(
      {.num_heads = 4, .num_kv_heads = 2, .head_dim = 24, .sinks = true, .value_dim = 16},
      {97, 40});
  expect_same_bits(
      {.num_heads = 2, .head_dim = 20, .dtype = DType::kI8, .block_size = 8, .value_dim = 36},
      {70, 9});
}

// Few rows over several partitions are split over threads.
TEST(Attention, LongContextsHaveTheSameBitsSplitOverThreadsOrNot) {
  for (const Shape& shape :
       {Shape{},
        Shape{.window = 700, .sinks = true},
        Shape{.head_dim = 24},
        Shape{.head_dim = 24, .window = 700, .is_chunked = true, .value_dim = 8},
        Shape{.num_heads = 1, .head_dim = 16, .dtype = DType::kI8},
        Shape{.num_heads = 1, .head_dim = 16, .dtype = DType::kF8E4M3}}) {
    SCOPED_TRACE(shape.name());
    const std::vector<int32_t> lengths = {1300, 530};
    Sequences sequences(shape, lengths, 12);
    const auto reference_device = test::make_device("auto", 1);
    const Sequences::Result reference = sequences.run(*reference_device, apart(lengths, 4096));
    // A long prefill, then decodes and small chunks across the borders of partitions.
    std::vector<Step> steps = {{{0, 500}, {1, 490}}};
    for (int i = 0; i < 40; ++i) steps.push_back({{1, 1}, {0, 1}});
    steps.push_back({{0, 470}});
    for (int i = 0; i < 8; ++i) steps.push_back({{0, 4}});
    for (int i = 0; i < 10; ++i) steps.push_back({{0, 1}});
    steps.push_back({{0, 248}});
    for (const auto& device : test::devices({1, 2, 3})) {
      EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, steps))) << device.name;
    }
  }
}

TEST(Attention, AWorkspaceTooSmallToSplitChangesNothing) {
  const std::vector<int32_t> lengths = {1200};
  Sequences sequences({}, lengths, 13);
  const auto device = test::make_device("auto", 3);
  const std::vector<Step> steps = {{{0, 1199}}, {{0, 1}}};
  EXPECT_TRUE(sequences.run(*device, steps).same_bits(sequences.run(*device, steps, 1)));
}

}  // namespace
}  // namespace sluice::kernels
