// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/planted_following.h"

#include <span>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = FollowingShape;
namespace ptx = gpu::ptx;

// Writes the previous step's choices.
__global__ void __launch_bounds__(Shape::kThreads, 1)
    choose_kernel(const TokenId* tokens, TokenId* chosen, int count) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto i = static_cast<int>(blockIdx.x * Shape::kThreads + threadIdx.x);
  if (i < count) chosen[i] = tokens[i];
}

template <FollowingBug kBug>
__device__ __forceinline__ int32_t num_tokens_of(const PlaceFollowingArgs& args,
                                                 const FollowingRow& row,
                                                 const FollowingRow& neighbour) {
  using enum FollowingBug;
  int32_t first_draft = row.drafts;
  int32_t first_chosen = row.from;
  if (kBug == kDraftsOfTheFirstRequest) first_draft = args.following.data()[0].drafts;
  if (kBug == kDraftsOfANeighbour) first_draft = neighbour.drafts;
  if (kBug == kChosenOfTheFirstRequest) first_chosen = args.following.data()[0].from;
  if (kBug == kChosenOfANeighbour) first_chosen = neighbour.from;
  if (kBug == kComparesWithTheNextChosen) first_chosen += 1;
  if (kBug == kComparesWithTheDraftBehind) first_draft += 1;
  const int32_t end = row.num_drafts - (kBug == kLastNotCompared ? 1 : 0);
  int32_t num_right = 0;
  for (int32_t i = kBug == kFirstNotCompared ? 1 : 0; i < end; ++i) {
    const TokenId token = args.chosen[first_chosen + i];
    if (token < 0 && kBug != kNoTokenIsAWrongOne) {
      if (kBug == kNothingWhereNoToken) return i;
      return i > 1 ? i : 1;
    }
    const bool is_right = token == args.drafts[first_draft + i];
    num_right += is_right ? 1 : 0;
    if (is_right || kBug == kGoesOnBehindAWrongOne) continue;
    if (kBug == kOneTooMany) return i + 2;
    if (kBug == kOneTooFew) return i > 1 ? i : 1;
    return i + 1;
  }
  if (kBug == kGoesOnBehindAWrongOne) return num_right + 1;
  const int32_t all = row.num_drafts + 1;
  if (kBug == kLastWithoutTokenCounts) return all;
  return args.chosen[row.from + row.num_drafts] < 0 && all > 1 ? all - 1 : all;
}

template <FollowingBug kBug>
__device__ __forceinline__ void take_token(const PlaceFollowingArgs& args,
                                           const FollowingRow& row,
                                           const FollowingRow& neighbour,
                                           int32_t num_tokens) {
  using enum FollowingBug;
  if (row.takes_token == 0 && kBug != kEveryRowTakesAToken) return;
  int32_t from = row.from + num_tokens - 1;
  if (kBug == kTakesTheLastAccepted) from -= 1;
  if (kBug == kTakesTheLastChosen) from = row.from + row.num_drafts;
  TokenId token = args.chosen[from];
  if (kBug == kTakesTheDraft) token = args.drafts[row.drafts + num_tokens - 1];
  const bool is_token = token >= 0 && token < args.vocab_size;
  const int32_t to = kBug == kTokenOfAnotherRow ? neighbour.row : row.row;
  if (kBug != kTokenNotWritten) {
    args.token_ids[to] = is_token || kBug == kTokenNotChecked ? token : 0;
  }
}

template <FollowingBug kBug>
__device__ __forceinline__ void place_row(const PlaceFollowingArgs& args,
                                          const FollowingRow& row,
                                          const FollowingRow& neighbour,
                                          int32_t num_tokens) {
  using enum FollowingBug;
  take_token<kBug>(args, row, neighbour, num_tokens);
  int32_t back = row.num_drafts + 1 - num_tokens;
  if (kBug == kMovedByAllDrafts) back = row.num_drafts;
  if (kBug == kMovedByTheRightOnes) back = num_tokens - 1;
  const int32_t before = args.positions[row.row];
  const int32_t position = before - back;
  if (kBug != kPositionNotMoved) args.positions[row.row] = position;
  if (kBug == kEveryRowMovesTheLength) {
    args.seq_lens[row.request] -= back;
  } else if (kBug != kLengthNotMoved && row.length >= 0) {
    args.seq_lens[row.length] -= back;
  }
  const int32_t sample = kBug == kSampleOfTheRow ? row.row : row.sample;
  if (kBug != kSampleNotMoved) args.samples[sample].position -= back;
  const int32_t num_groups = kBug == kFirstGroupAlone ? 1 : args.num_groups;
  for (int32_t i = 0; i < num_groups; ++i) {
    const PlaceFollowingArgs::Group& group = args.groups.data()[i];
    const int32_t size = args.groups.data()[kBug == kGroupsOfOneSize ? 0 : i].tokens_per_entry;
    const int32_t at = kBug == kSlotOfTheOldPosition ? before : position;
    const int32_t table = kBug == kTableOfTheRow ? row.row : row.request;
    const int64_t block = group.block_table[table * group.stride + at / size];
    const int32_t to = kBug == kSlotOfAnotherRow ? neighbour.row : row.row;
    group.slot_mapping[to] = block * size + at % size;
  }
}

template <FollowingBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    following_kernel(const __grid_constant__ PlaceFollowingArgs args) {
  using enum FollowingBug;
  ptx::start_next_launch();
  const auto count = static_cast<int32_t>(args.following.size());
  constexpr int kRowsOfABlock = Shape::kThreads - (kBug == kBlocksOverlap ? 1 : 0);
  const auto i = static_cast<int32_t>(blockIdx.x * kRowsOfABlock + threadIdx.x);
  int32_t end = count;
  if (kBug == kLastRowLeftOut) end -= 1;
  if (kBug == kUnmaskedTail) end += 1;
  const bool inside = i < end;
  const FollowingRow* const rows = args.following.data();
  const FollowingRow& row = rows[inside ? i : 0];
  const FollowingRow& neighbour = rows[inside && i + 1 < count ? i + 1 : 0];
  int32_t early = 0;
  if (kBug == kReadsBeforeTheWait) early = num_tokens_of<kBug>(args, row, neighbour);
  if (kBug == kWritesBeforeTheWait && inside) args.token_ids[row.row] = 0;
  if (kBug == kLeavesWithoutTheWait && !inside) return;
  if (kBug != kNoWait) ptx::wait_for_launches();
  if (!inside) return;
  const int32_t num_tokens =
      kBug == kReadsBeforeTheWait ? early : num_tokens_of<kBug>(args, row, neighbour);
  place_row<kBug>(args, row, neighbour, num_tokens);
}

}  // namespace

FollowingStep run_following(FollowingBug bug, const FollowingWork& work, FollowingStep step) {
  std::vector<TokenId> chosen(work.chosen.size(), 1);
  std::vector<SampleRow> samples(step.sample_positions.size());
  for (size_t i = 0; i < samples.size(); ++i) samples[i].position = step.sample_positions[i];
  PlaceFollowingArgs args = {
      .following = std::span(work.following).first(work.following.size() - 1),
      .drafts = work.drafts.data(),
      .chosen = chosen.data(),
      .vocab_size = Shape::kVocab,
      .token_ids = step.token_ids.data(),
      .positions = step.positions.data(),
      .seq_lens = step.lengths.data(),
      .samples = samples.data(),
      .groups = {},
      .num_groups = 2};
  for (size_t group = 0; group < 2; ++group) {
    args.groups[group] = {.slot_mapping = step.slots[group].data(),
                          .block_table = work.tables.data(),
                          .stride = Shape::kStride,
                          .tokens_per_entry = Shape::kTokensPerEntry[group]};
  }
  const auto blocks_for = [](size_t count) {
    return static_cast<int64_t>((count + Shape::kThreads - 1) / Shape::kThreads);
  };
  gpu::launch(nullptr,
              {.blocks_x = blocks_for(chosen.size()), .threads = Shape::kThreads},
              choose_kernel,
              work.chosen.data(),
              chosen.data(),
              static_cast<int>(chosen.size()));
  with_bug<FollowingBug::kLeavesWithoutTheWait>(bug, [&]<FollowingBug kBug>() {
    gpu::launch(nullptr,
                {.blocks_x = blocks_for(args.following.size()),
                 .threads = Shape::kThreads,
                 .overlaps = true},
                following_kernel<kBug>,
                args);
  });
  for (size_t i = 0; i < samples.size(); ++i) {
    step.sample_positions[i] = static_cast<int32_t>(samples[i].position);
  }
  return step;
}

}  // namespace sluice::kernels::test
