// SPDX-License-Identifier: Apache-2.0
// Runs a few small programs in every order in which their operations on shared words can follow
// each other, and tells whether after some of them they wait for ever.
//
// A program is a function of a Stepper. To run its next operation it is called from its beginning
// with the recorded results of those before, so it must not depend on anything else; the operation
// ends the call. A loop keeps what it needs of earlier turns in saved(), so that what happened in
// them is forgotten. Orders that lead to the same state are followed once. Memory is sequentially
// consistent here: what weaker orders do is not seen. Words are small numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace sluice::testing {

class Interleavings {
 public:
  struct Thread {
    std::vector<uint32_t> results;  // of its operations so far
    int waits_on = -1;              // the word whose wake it waits for; -1: none
    bool has_ended = false;
    uint32_t saved = 0;
  };

  struct State {
    std::vector<uint32_t> words;
    std::vector<Thread> threads;

    // Returns a text that only equal states have.
    [[nodiscard]] std::string key() const {
      std::string key;
      for (const uint32_t word : words) key += static_cast<char>(word);
      for (const Thread& thread : threads) {
        key += static_cast<char>(thread.saved);
        key += static_cast<char>(thread.has_ended ? -2 : thread.waits_on);
        key += static_cast<char>(thread.results.size());
        for (const uint32_t result : thread.results) key += static_cast<char>(result);
      }
      return key;
    }
  };

  struct Paused {};

  // What a program does to the words. Each call is one operation.
  class Stepper {
   public:
    Stepper(State& state, size_t thread) : state_(state), thread_(thread) {}

    uint32_t load(size_t word) {
      return once([&] { return state_.words[word]; });
    }

    void store(size_t word, uint32_t value) {
      once([&] { return state_.words[word] = value; });
    }

    uint32_t fetch_add(size_t word, uint32_t value) {
      return once([&] { return std::exchange(state_.words[word], state_.words[word] + value); });
    }

    uint32_t exchange(size_t word, uint32_t value) {
      return once([&] { return std::exchange(state_.words[word], value); });
    }

    void wait(size_t word, uint32_t expected) {
      once([&] {
        if (state_.words[word] == expected) {
          state_.threads[thread_].waits_on = static_cast<int>(word);
        }
        return 0U;
      });
    }

    void wake_all(size_t word) {
      once([&] {
        for (Thread& other : state_.threads) {
          if (other.waits_on == static_cast<int>(word)) other.waits_on = -1;
        }
        return 0U;
      });
    }

    // What save() was given last; 0 at first.
    [[nodiscard]] uint32_t saved() const { return state_.threads[thread_].saved; }

    // From here on the program begins with this value, and without the operations so far.
    void save(uint32_t value) {
      state_.threads[thread_].saved = value;
      state_.threads[thread_].results.clear();
      at_ = 0;
    }

   private:
    template <typename Operation>
    uint32_t once(const Operation& operation) {
      std::vector<uint32_t>& results = state_.threads[thread_].results;
      if (at_ < results.size()) return results[at_++];
      results.push_back(operation());
      throw Paused();
    }

    State& state_;
    const size_t thread_;
    size_t at_ = 0;
  };

  using Program = std::function<void(Stepper&)>;

  struct Outcome {
    size_t num_states = 0;
    bool hangs = false;  // some have not ended and none can go on
  };

  // Follows all orders from words that are 0.
  static Outcome run(size_t num_words, const std::vector<Program>& programs) {
    Outcome outcome;
    std::unordered_set<std::string> seen;
    std::vector<State> open(1);
    open[0].words.resize(num_words);
    open[0].threads.resize(programs.size());
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      bool goes_on = false;
      bool has_ended = true;
      for (size_t i = 0; i < programs.size(); ++i) {
        const Thread& thread = state.threads[i];
        has_ended = has_ended && thread.has_ended;
        if (thread.has_ended || thread.waits_on >= 0) continue;
        goes_on = true;
        State next = state;
        advance(next, i, programs[i]);
        if (seen.insert(next.key()).second) open.push_back(std::move(next));
      }
      outcome.hangs = outcome.hangs || (!goes_on && !has_ended);
    }
    outcome.num_states = seen.size();
    return outcome;
  }

 private:
  static void advance(State& state, size_t thread, const Program& program) {
    Stepper stepper(state, thread);
    try {
      program(stepper);
      state.threads[thread].has_ended = true;
    } catch (const Paused&) {
      // the operation has been done
    }
  }
};

}  // namespace sluice::testing
