// SPDX-License-Identifier: Apache-2.0
// Every state of groups of two and three ranks, whose processes die, stop, go on and fail by
// themselves, and whose links are cut, at any time: nothing waits for ever, no rank outlives its
// group, and all ranks that it had name a rank that is lost. Three planted bugs show that the
// search would find one.
#include "engine/parallel/group_life.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kMost = 3;  // ranks
constexpr int8_t kNone = -1;

using Turn = std::function<LifeActions(GroupLife&, LifeEvent)>;

enum class Process : uint8_t { kRuns, kIsStopped, kIsDead, kHasEnded };

// What one end of a follower's connection for life with rank 0 has to read. A rank says at most
// that it leaves, and then one last word.
struct Channel {
  bool has_leaving = false;
  bool has_ending = false;
  int8_t failing = kNone;  // the cause that comes with it
  bool has_end = false;    // of the direction, after those
};

struct Rank {
  Process process = Process::kRuns;
  uint8_t phase = 0;
  bool has_said_leaving = false;
  bool has_served = false;
  bool has_closed_data = false;
  int8_t cause = kNone;
};

// All bytes count, so there is no padding between them.
struct World {
  std::array<Rank, kMost> ranks{};
  std::array<Channel, kMost> up{};    // by follower: what rank 0 has to read
  std::array<Channel, kMost> down{};  // and what it has
  std::array<bool, kMost> is_cut{};   // its connections with rank 0
  std::array<bool, kMost> is_lost{};  // what a cause may name
  bool is_asked_to_end = false;
  uint8_t num_faults = 0;
};

static_assert(sizeof(World) == kMost * (sizeof(Rank) + 2 * sizeof(Channel) + 2) + 2);

class Search {
 public:
  Search(size_t num_ranks, uint8_t most_faults, Turn turn)
      : num_ranks_(num_ranks), most_faults_(most_faults), turn_(std::move(turn)) {}

  // Returns how a rule is broken, if it is.
  std::string run() {
    World first;
    for (Rank& rank : first.ranks) rank.phase = static_cast<uint8_t>(GroupLife::Phase::kMeeting);
    reach(first);
    while (!open_.empty() && broken_.empty()) {
      const World world = open_.front();
      open_.pop_front();
      from_ = key_of(world);
      can_go_on_ = false;
      step(world);
      if (!can_go_on_) check_rest(world);
      choose(world);
      fault(world);
    }
    return broken_;
  }

  [[nodiscard]] size_t num_states() const { return seen_.size(); }

 private:
  static GroupLife life_of(const World& world, size_t i) {
    return {.phase = static_cast<GroupLife::Phase>(world.ranks[i].phase),
            .is_first = i == 0,
            .has_said_leaving = world.ranks[i].has_said_leaving};
  }

  static bool runs(const World& world, size_t i) {
    return world.ranks[i].process == Process::kRuns;
  }

  static bool is_gone(const World& world, size_t i) {
    return world.ranks[i].process == Process::kIsDead ||
           world.ranks[i].process == Process::kHasEnded;
  }

  static std::string key_of(const World& world) {
    return {reinterpret_cast<const char*>(&world), sizeof(world)};
  }

  void reach(const World& world) {
    const std::string key = key_of(world);
    can_go_on_ = can_go_on_ || key != from_;
    if (seen_.insert(key).second) open_.push_back(world);
  }

  void fail(std::string_view why) {
    if (broken_.empty()) broken_ = why;
  }

  // The rank takes an event, of which `named` is the cause if there is one, and acts.
  void act(World world, size_t i, LifeEvent event, int8_t named = kNone) {
    GroupLife life = life_of(world, i);
    const LifeActions actions = turn_(life, event);
    if (actions.says_leaving) turn_(life, LifeEvent::kToldLeaving);
    Rank& rank = world.ranks[i];
    rank.phase = static_cast<uint8_t>(life.phase);
    rank.has_said_leaving = life.has_said_leaving;
    rank.has_served = rank.has_served || life.phase == GroupLife::Phase::kServing;
    rank.has_closed_data = rank.has_closed_data || actions.closes_data;
    world.is_asked_to_end = world.is_asked_to_end || actions.asks_to_end;
    // Who gives up before all have met is lost to the others.
    if (actions.has_cause && !rank.has_served) world.is_lost[i] = true;
    if (actions.has_cause) {
      if (rank.cause != kNone) fail("a second cause replaces the first");
      rank.cause = named;
      if (rank.has_served && !world.is_lost[static_cast<size_t>(named)]) {
        fail("a rank that is not lost is named");
      }
    }
    for (size_t l = 1; l < num_ranks_; ++l) {
      if (i != 0 && i != l) continue;
      Channel& out = i == 0 ? world.down[l] : world.up[l];
      if (out.has_end) continue;
      if (actions.says_failing) out.failing = rank.cause;
      out.has_ending = out.has_ending || actions.says_ending;
      out.has_leaving = out.has_leaving || actions.says_leaving;
      out.has_end = actions.says_failing;
    }
    reach(world);
  }

  void step(const World& world) {
    for (size_t i = 0; i < num_ranks_; ++i) {
      if (!runs(world, i)) continue;
      const GroupLife life = life_of(world, i);
      if (life.is_over()) {
        World next = world;
        next.ranks[i].process = Process::kHasEnded;
        reach(next);
      } else if (life.phase == GroupLife::Phase::kMeeting) {
        meet(world, i);
      } else {
        serve(world, i);
      }
    }
  }

  // A follower has met when it has its connections with rank 0, and rank 0 when all have: later
  // losses are for the time after that.
  void meet(const World& world, size_t i) {
    bool are_here = true;
    for (size_t other = 0; other < num_ranks_; ++other) {
      if (other == i || (i != 0 && other != 0)) continue;
      const bool is_there = runs(world, other) && !world.is_cut[i == 0 ? other : i] &&
                            !life_of(world, other).is_over();
      are_here = are_here && (i == 0 ? world.ranks[other].has_served : is_there);
      if (is_there || world.ranks[other].has_served) continue;
      act(world, i, LifeEvent::kLost, static_cast<int8_t>(other));
    }
    if (are_here) act(world, i, LifeEvent::kMet);
  }

  void serve(const World& world, size_t i) {
    for (size_t l = 1; l < num_ranks_; ++l) {
      if (i == 0 || i == l) hear(world, i, l);
    }
    if (i == 0 && world.is_asked_to_end) act(world, 0, LifeEvent::kEnd);
  }

  // What the rank may find on its connections with the other end of follower l's.
  void hear(const World& world, size_t i, size_t l) {
    const size_t other = i == 0 ? l : 0;
    const auto name = static_cast<int8_t>(other);
    const auto in = [i, l](World& of) -> Channel& { return i == 0 ? of.up[l] : of.down[l]; };
    World next = world;
    Channel& words = in(next);
    const bool is_silent = !runs(world, other) || world.is_cut[l];
    if (is_silent && !is_gone(world, other)) act(world, i, LifeEvent::kSilent, name);
    if (world.is_cut[l]) {
      if (is_gone(world, other)) act(world, i, LifeEvent::kSilent, name);
      return;
    }
    if (words.has_leaving) {
      words.has_leaving = false;
      return act(next, i, LifeEvent::kLeaving);
    }
    if (words.has_ending) {
      words.has_ending = false;
      return act(next, i, LifeEvent::kEnding, name);
    }
    if (words.failing != kNone) return act(next, i, LifeEvent::kFailing, words.failing);
    if (words.has_end || is_gone(world, other)) return act(next, i, LifeEvent::kGone, name);
    // Bytes that it waits for do not come, and no reason is under way.
    if (world.ranks[other].has_closed_data) act(world, i, LifeEvent::kLost, name);
  }

  // What may happen, or never: a stopped process goes on, rank 0 ends, another wants to leave.
  void choose(const World& world) {
    for (size_t i = 0; i < num_ranks_; ++i) {
      if (world.ranks[i].process == Process::kIsStopped) {
        World next = world;
        next.ranks[i].process = Process::kRuns;
        reach(next);
      }
      const bool serves = life_of(world, i).phase == GroupLife::Phase::kServing;
      if (runs(world, i) && serves) act(world, i, i == 0 ? LifeEvent::kEnd : LifeEvent::kLeave);
    }
  }

  void fault(const World& world) {
    if (world.num_faults == most_faults_) return;
    World faulty = world;
    ++faulty.num_faults;
    for (size_t i = 0; i < num_ranks_; ++i) {
      if (!runs(world, i)) continue;
      World next = faulty;
      next.is_lost[i] = true;
      next.ranks[i].process = Process::kIsDead;
      reach(next);
      next.ranks[i].process = Process::kIsStopped;
      reach(next);
      next.ranks[i].process = Process::kRuns;
      act(next, i, LifeEvent::kLost, static_cast<int8_t>(i));
      if (i == 0 || world.is_cut[i]) continue;
      next.is_cut[i] = next.is_lost[0] = true;
      reach(next);
    }
  }

  // Nothing has to happen any more: all serve, or all processes that can have ended.
  void check_rest(const World& world) {
    bool is_over = false;
    for (size_t i = 0; i < num_ranks_; ++i) {
      is_over = is_over || !runs(world, i) || world.is_cut[i] || life_of(world, i).is_over();
    }
    for (size_t i = 0; i < num_ranks_; ++i) {
      if (world.ranks[i].process == Process::kIsStopped) continue;
      if (is_over && !is_gone(world, i)) fail("a rank outlives the group");
      if (!is_over && life_of(world, i).phase != GroupLife::Phase::kServing) {
        fail("a rank waits for ever");
      }
    }
  }

  const size_t num_ranks_;
  const uint8_t most_faults_;
  const Turn turn_;
  std::unordered_set<std::string> seen_;
  std::deque<World> open_;
  std::string broken_;
  std::string from_;  // the state whose steps are taken, and whether it has any
  bool can_go_on_ = false;
};

TEST(GroupLife, NoFaultLeavesARankBehindOrNamesAnother) {
  size_t num_states = 0;
  for (const size_t num_ranks : {2, 3}) {
    for (const uint8_t faults : {0, 1, 2}) {
      Search search(num_ranks, faults, take_event);
      EXPECT_EQ(search.run(), "") << num_ranks << " ranks, " << int{faults} << " faults";
      num_states += search.num_states();
    }
  }
  EXPECT_GT(num_states, 10'000U);
}

// The connection may be full for a while.
TEST(GroupLife, ARankSaysThatItLeavesUntilTheWordIsTakenAndThenNoMore) {
  GroupLife follower = {.phase = GroupLife::Phase::kServing};
  EXPECT_TRUE(take_event(follower, LifeEvent::kLeave).says_leaving);
  EXPECT_TRUE(take_event(follower, LifeEvent::kLeave).says_leaving);
  take_event(follower, LifeEvent::kToldLeaving);
  EXPECT_FALSE(take_event(follower, LifeEvent::kLeave).says_leaving);
}

// A rank that fails without a word: others take the one that they have it from for the cause.
TEST(GroupLife, AFailureWithoutItsReasonIsFound) {
  Search search(3, 1, [](GroupLife& life, LifeEvent event) {
    LifeActions actions = take_event(life, event);
    actions.says_failing = false;
    return actions;
  });
  EXPECT_EQ(search.run(), "a rank that is not lost is named");
}

// A peer that says nothing is waited for, whether it lives or not.
TEST(GroupLife, ARankThatGoesOnWithoutItsPeerIsFound) {
  Search search(3, 1, [](GroupLife& life, LifeEvent event) {
    return event == LifeEvent::kSilent ? LifeActions{} : take_event(life, event);
  });
  EXPECT_EQ(search.run(), "a rank outlives the group");
}

TEST(GroupLife, ALaterCauseThatReplacesTheFirstIsFound) {
  // A rank that fails twice.
  Search search(2, 2, [](GroupLife& life, LifeEvent event) {
    if (event == LifeEvent::kLost) life.phase = GroupLife::Phase::kServing;
    return take_event(life, event);
  });
  EXPECT_NE(search.run(), "");
}

}  // namespace
}  // namespace sluice
