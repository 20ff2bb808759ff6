// SPDX-License-Identifier: Apache-2.0
// The gates of a pool in every interleaving of a few threads.
#include "kernels/cpu/parking.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/interleavings.h"

namespace sluice::kernels::cpu {
namespace {

using testing::Interleavings;
using Stepper = Interleavings::Stepper;

// A word of the model in the place of an atomic.
struct Word {
  Stepper& stepper;
  size_t index;

  uint32_t load(std::memory_order = std::memory_order_seq_cst) { return stepper.load(index); }

  void store(uint32_t value) { stepper.store(index, value); }

  uint32_t fetch_add(uint32_t value) { return stepper.fetch_add(index, value); }

  uint32_t fetch_sub(uint32_t value) { return stepper.fetch_add(index, 0U - value); }
};

struct Futex {
  static void wait(Word& word, uint32_t expected) { word.stepper.wait(word.index, expected); }

  static void wake_all(Word& word) { word.stepper.wake_all(word.index); }
};

enum Index : size_t { kEpoch, kNumParked, kClosed, kUnfinished, kCallerParked, kUnit, kNumWords };

// The words of one thread's view.
struct Words {
  explicit Words(Stepper& stepper)
      : epoch{stepper, kEpoch},
        num_parked{stepper, kNumParked},
        closed{stepper, kClosed},
        unfinished{stepper, kUnfinished},
        caller_parked{stepper, kCallerParked} {}

  StartGate<Word, Word, Futex> start() { return {epoch, num_parked, closed}; }

  FinishGate<Word, Futex> finish() { return {unfinished, caller_parked}; }

  Word epoch, num_parked, closed, unfinished, caller_parked;
};

constexpr auto kNoSpin = [](const auto&) { return false; };
constexpr auto kOneLook = [](const auto& done) { return done(); };

// Runs the job's one unit, unless another has claimed it.
void work(Stepper& stepper, Words& words) {
  if (stepper.exchange(kUnit, 0) == 1) words.finish().report(1);
}

// Worker 0: `num_jobs` jobs, and the end of the pool.
template <typename Spin>
Interleavings::Program caller(uint32_t num_jobs, const Spin& spin) {
  return [=](Stepper& stepper) {
    Words words(stepper);
    for (uint32_t job = stepper.saved() + 1; job <= num_jobs; ++job) {
      words.unfinished.store(1);
      stepper.exchange(kUnit, 1);
      words.start().open(job);
      work(stepper, words);
      words.finish().wait(spin);
      stepper.save(job);
    }
    words.start().close();
  };
}

// Another worker.
template <typename Spin>
Interleavings::Program worker(const Spin& spin) {
  return [=](Stepper& stepper) {
    Words words(stepper);
    for (uint32_t seen = stepper.saved(); words.start().pass(seen, spin);) {
      work(stepper, words);
      stepper.save(seen);
    }
  };
}

TEST(Parking, NobodyWaitsForEverInAnyOrder) {
  for (const uint32_t num_jobs : {0U, 1U, 2U, 3U}) {
    const auto outcome =
        Interleavings::run(kNumWords, {caller(num_jobs, kNoSpin), worker(kNoSpin)});
    EXPECT_FALSE(outcome.hangs) << num_jobs << " jobs";
    EXPECT_GT(outcome.num_states, 20U);
  }
}

TEST(Parking, NobodyWaitsForEverWhoLooksOnceMoreBefore) {
  for (const uint32_t num_jobs : {0U, 1U, 2U}) {
    const auto outcome =
        Interleavings::run(kNumWords, {caller(num_jobs, kOneLook), worker(kOneLook)});
    EXPECT_FALSE(outcome.hangs) << num_jobs << " jobs";
  }
}

TEST(Parking, TwoWorkersDoNotMissAWakeEither) {
  for (const uint32_t num_jobs : {0U, 1U}) {
    const auto outcome = Interleavings::run(
        kNumWords, {caller(num_jobs, kNoSpin), worker(kNoSpin), worker(kNoSpin)});
    EXPECT_FALSE(outcome.hangs) << num_jobs << " jobs";
  }
}

// The model's own test: gates with one mistake each.
TEST(Parking, AWorkerThatAsksForTheEndBeforeItReadsTheEpochParksForEver) {
  const auto outcome = Interleavings::run(kNumWords, {caller(1, kNoSpin), [](Stepper& stepper) {
                                                        Words words(stepper);
                                                        for (uint32_t seen = stepper.saved();;) {
                                                          if (words.epoch.load() == seen) {
                                                            words.num_parked.fetch_add(1);
                                                            while (words.epoch.load() == seen)
                                                              Futex::wait(words.epoch, seen);
                                                            words.num_parked.fetch_sub(1);
                                                          }
                                                          if (words.closed.load() != 0) return;
                                                          seen = words.epoch.load();
                                                          stepper.save(seen);
                                                        }
                                                      }});
  EXPECT_TRUE(outcome.hangs);
}

TEST(Parking, ACallerThatIsNotCountedBeforeItLooksIsNotWoken) {
  const auto outcome = Interleavings::run(kNumWords,
                                          {[](Stepper& stepper) {
                                             Words words(stepper);
                                             words.unfinished.store(1);
                                             words.start().open(1);
                                             const uint32_t left = words.unfinished.load();
                                             if (left == 0) return;
                                             Futex::wait(words.unfinished, left);
                                             words.caller_parked.store(1);
                                           },
                                           [](Stepper& stepper) {
                                             Words words(stepper);
                                             uint32_t seen = 0;
                                             if (words.start().pass(seen, kNoSpin))
                                               words.finish().report(1);
                                           }});
  EXPECT_TRUE(outcome.hangs);
}

}  // namespace
}  // namespace sluice::kernels::cpu
