// SPDX-License-Identifier: Apache-2.0
// The kernel that places rows behind drafts (kernels/cuda/sampling.cu), with bugs that can be
// switched on, overlapping a launch that chooses tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace sluice::kernels::test {

enum class FollowingBug : uint8_t {
  kNone,
  kComparesWithTheNextChosen,
  kComparesWithTheDraftBehind,
  kFirstNotCompared,
  kLastNotCompared,
  kGoesOnBehindAWrongOne,
  kOneTooMany,
  kOneTooFew,
  kNoTokenIsAWrongOne,
  kNothingWhereNoToken,
  kLastWithoutTokenCounts,
  kDraftsOfTheFirstRequest,
  kDraftsOfANeighbour,
  kChosenOfTheFirstRequest,
  kChosenOfANeighbour,
  kTakesTheLastAccepted,
  kTakesTheLastChosen,
  kTakesTheDraft,
  kTokenNotWritten,
  kEveryRowTakesAToken,
  kTokenNotChecked,
  kTokenOfAnotherRow,
  kPositionNotMoved,
  kMovedByAllDrafts,
  kMovedByTheRightOnes,
  kLengthNotMoved,
  kEveryRowMovesTheLength,
  kSampleNotMoved,
  kSampleOfTheRow,
  kSlotOfTheOldPosition,
  kSlotOfAnotherRow,
  kTableOfTheRow,
  kFirstGroupAlone,
  kGroupsOfOneSize,
  kLastRowLeftOut,
  kUnmaskedTail,
  kBlocksOverlap,
  kReadsBeforeTheWait,
  kWritesBeforeTheWait,
  kNoWait,
  kLeavesWithoutTheWait,
};

struct FollowingShape {
  static constexpr int kThreads = 32;
  static constexpr int kStride = 7;  // entries of a request's block table
  static constexpr int kVocab = 1000;
  static constexpr int kTokensPerEntry[2] = {4, 16};  // the two groups'
};

// A step's arrays; the kernel changes them.
struct FollowingStep {
  std::vector<TokenId> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> lengths;
  std::vector<int32_t> sample_positions;
  std::vector<int64_t> slots[2];

  bool operator==(const FollowingStep&) const = default;
};

// The kernel's inputs. One more row, which is not in the list, follows `following`.
struct FollowingWork {
  std::vector<FollowingRow> following;
  std::vector<TokenId> drafts;
  std::vector<TokenId> chosen;
  std::vector<int32_t> tables;  // [rows][kStride]; a request has one row
};

FollowingStep run_following(FollowingBug bug, const FollowingWork& work, FollowingStep step);

}  // namespace sluice::kernels::test
