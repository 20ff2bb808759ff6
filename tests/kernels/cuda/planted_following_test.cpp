// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs in the placement of rows behind drafts: the number of tokens that
// each request got, its next token, and every array that gives its rows' places.
#include "tests/kernels/cuda/planted_following.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"

namespace sluice::kernels::test {
namespace {

// A request for each number of drafts, each number of right ones, and each kind of choice behind
// these: a token, none, or one outside of the vocabulary. Later choices agree with the drafts. Each
// request has two rows in the step, the second behind a draft of this one.
class Following : public testing::Test {
 protected:
  using Shape = FollowingShape;

  enum class Ending : uint8_t { kToken, kNone, kNoSuchToken };

  static constexpr int32_t kMostDrafts = 3;
  static constexpr TokenId kUnwritten = 777;

  Following() {
    using enum Ending;
    work_.drafts = {901, 902};  // drafts of requests without a row in this step
    work_.chosen = {903, 904, 905};
    for (int32_t num_drafts = 0; num_drafts <= kMostDrafts; ++num_drafts) {
      for (int32_t num_right = 0; num_right <= num_drafts; ++num_right) {
        for (const Ending ending : {kToken, kNone, kNoSuchToken}) {
          requests_.push_back({num_drafts, num_right, ending});
        }
      }
    }
    const auto num_requests = static_cast<int32_t>(requests_.size());
    num_rows_ = 2 * num_requests + 2;  // one row before them and one after
    const auto rows = static_cast<size_t>(num_rows_);
    before_.token_ids.assign(rows, kUnwritten);
    before_.positions.assign(rows, 20);
    before_.sample_positions.assign(rows, 21);
    before_.lengths.assign(requests_.size() + 1, 22);
    for (std::vector<int64_t>& slots : before_.slots) slots.assign(rows, -5);
    for (int32_t i = 0; i < num_rows_ * Shape::kStride; ++i) {
      work_.tables.push_back(i * 5 % 997);
    }
    want_ = before_;
    for (int32_t i = 0; i < num_requests; ++i) add(i);
    // One row follows the list, with contents that a test would notice.
    work_.following.push_back({.row = 0,
                               .sample = 0,
                               .request = 1,
                               .length = 0,
                               .takes_token = 1,
                               .from = 0,
                               .drafts = 0,
                               .num_drafts = 2});
    work_.chosen.resize(work_.chosen.size() + kMostDrafts, 906);
    work_.drafts.resize(work_.drafts.size() + kMostDrafts, 907);
  }

  // Lays out request i, and its expected results.
  void add(int32_t i) {
    const Case& request = requests_[static_cast<size_t>(i)];
    FollowingRow row = {.row = num_rows_ - 3 - 2 * i,
                        .sample = 1 + 2 * i,
                        .request = 1 + i,
                        .length = 1 + i,
                        .takes_token = 1,
                        .from = static_cast<int32_t>(work_.chosen.size()),
                        .drafts = static_cast<int32_t>(work_.drafts.size()),
                        .num_drafts = request.num_drafts};
    for (int32_t d = 0; d < request.num_drafts; ++d) work_.drafts.push_back(10 * i + d + 2);
    for (int32_t d = 0; d <= request.num_drafts; ++d) {
      TokenId token = 10 * i + d + 2;
      if (d == request.num_right) {
        token = request.ending == Ending::kToken  ? 10 * i + 9
                : request.ending == Ending::kNone ? kInvalidToken
                                                  : Shape::kVocab + i;
      }
      work_.chosen.push_back(token);
    }
    int32_t num_tokens = request.num_right + 1;
    TokenId next = request.ending == Ending::kToken ? 10 * i + 9 : 0;
    if (request.ending == Ending::kNone && request.num_right > 0) {
      num_tokens = request.num_right;
      next = 10 * i + request.num_right + 1;
    }
    const int32_t back = request.num_drafts + 1 - num_tokens;
    work_.following.push_back(row);
    place(row, 12 + i % 8, back);
    want_.token_ids[static_cast<size_t>(row.row)] = next;
    want_.lengths[static_cast<size_t>(row.length)] -= back;
    row.row += 1;
    row.sample += 1;
    row.length = -1;
    row.takes_token = 0;
    work_.following.push_back(row);
    place(row, 13 + i % 8, back);
  }

  // Adds a row at `position` if all drafts are right, moved back by `back`.
  void place(const FollowingRow& row, int32_t position, int32_t back) {
    const auto at = static_cast<size_t>(row.row);
    before_.positions[at] = position;
    want_.positions[at] = position - back;
    want_.sample_positions[static_cast<size_t>(row.sample)] -= back;
    for (size_t group = 0; group < 2; ++group) {
      const int32_t size = Shape::kTokensPerEntry[group];
      const int32_t entry = row.request * Shape::kStride + (position - back) / size;
      want_.slots[group][at] =
          int64_t{work_.tables[static_cast<size_t>(entry)]} * size + (position - back) % size;
    }
  }

  [[nodiscard]] bool is_right(FollowingBug bug) const {
    return run_following(bug, work_, before_) == want_;
  }

  void expect(const char* name, const char* words, FollowingBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  struct Case {
    int32_t num_drafts;
    int32_t num_right;
    Ending ending;
  };

  std::vector<Case> requests_;
  int32_t num_rows_ = 0;
  FollowingWork work_;
  FollowingStep before_;
  FollowingStep want_;
};

TEST_F(Following, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(FollowingBug::kNone)); });
}

TEST_F(Following, EveryWrongCountIsCaught) {
  using enum FollowingBug;
  const char* const words = "wrong bits";
  expect("compares with the next", words, kComparesWithTheNextChosen);
  expect("compares with the one behind", words, kComparesWithTheDraftBehind);
  expect("the first not compared", words, kFirstNotCompared);
  expect("the last not compared", words, kLastNotCompared);
  expect("goes on behind a wrong one", words, kGoesOnBehindAWrongOne);
  expect("one too many", words, kOneTooMany);
  expect("one too few", words, kOneTooFew);
  expect("no token is a wrong one", words, kNoTokenIsAWrongOne);
  expect("nothing where no token", words, kNothingWhereNoToken);
  expect("the last without a token", words, kLastWithoutTokenCounts);
  expect("drafts of the first request", words, kDraftsOfTheFirstRequest);
  expect("drafts of a neighbour", words, kDraftsOfANeighbour);
  expect("chosen of the first request", words, kChosenOfTheFirstRequest);
  expect("chosen of a neighbour", words, kChosenOfANeighbour);
}

TEST_F(Following, EveryWrongNextTokenIsCaught) {
  using enum FollowingBug;
  const char* const words = "wrong bits";
  expect("takes the last accepted", words, kTakesTheLastAccepted);
  expect("takes the last chosen", words, kTakesTheLastChosen);
  expect("takes the draft", words, kTakesTheDraft);
  expect("token not written", words, kTokenNotWritten);
  expect("every row takes a token", words, kEveryRowTakesAToken);
  expect("token not checked", words, kTokenNotChecked);
  expect("token of another row", words, kTokenOfAnotherRow);
}

TEST_F(Following, EveryWrongPlaceIsCaught) {
  using enum FollowingBug;
  const char* const words = "wrong bits";
  expect("position not moved", words, kPositionNotMoved);
  expect("moved by all drafts", words, kMovedByAllDrafts);
  expect("moved by the right ones", words, kMovedByTheRightOnes);
  expect("length not moved", words, kLengthNotMoved);
  expect("every row moves the length", "race: ", kEveryRowMovesTheLength);
  expect("sample not moved", words, kSampleNotMoved);
  expect("sample of the row", words, kSampleOfTheRow);
  expect("slot of the old position", words, kSlotOfTheOldPosition);
  expect("slot of another row", words, kSlotOfAnotherRow);
  expect("table of the row", words, kTableOfTheRow);
  expect("the first group alone", words, kFirstGroupAlone);
  expect("groups of one size", words, kGroupsOfOneSize);
}

TEST_F(Following, EveryWrongLaunchIsCaught) {
  using enum FollowingBug;
  expect("the last row left out", "wrong bits", kLastRowLeftOut);
  expect("an unmasked tail", "wrong bits", kUnmaskedTail);
  expect("blocks overlap", "race: ", kBlocksOverlap);
  expect("read before the wait", "overlap: a read before", kReadsBeforeTheWait);
  expect("written before the wait", "overlap: a write before", kWritesBeforeTheWait);
  expect("no wait for launches", "overlap: ", kNoWait);
  expect("leaving without the wait", "ended without wait_for_launches", kLeavesWithoutTheWait);
}

}  // namespace
}  // namespace sluice::kernels::test
