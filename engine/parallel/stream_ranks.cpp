// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/stream_ranks.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/shared_segment.h"

namespace sluice {
namespace {

constexpr size_t kRounds = 2;

// Follows each part.
struct Trailer {
  uint64_t state = 0;  // of its rank
  uint64_t hash = 0;   // of the part and the state
};

// Bytes of a part with its trailer, to the next part.
size_t room_of(size_t part_bytes) {
  return static_cast<size_t>(align_up(static_cast<int64_t>(part_bytes + sizeof(Trailer)), 64));
}

// Calls fill two sets of buffers in turn, as Communicator promises.
class StreamRank final : public Communicator {
 public:
  StreamRank(RankGroup& group, const RankTeam& team) : group_(group), team_(team) {
    for (int32_t other = 0; other < size(); ++other) {
      if (other != rank()) others_.push_back(other);
    }
    if (rank() == 0) {
      neighbours_ = others_;
    } else {
      neighbours_ = {0};
    }
    for (const int32_t other : neighbours_) names_.push_back(team.rank(other));
  }

  [[nodiscard]] int32_t rank() const override { return team_.index(group_.rank()); }

  [[nodiscard]] int32_t size() const override { return team_.size; }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (has_failed()) return {};
    ++number_;
    Round& round = rounds_[number_ % kRounds];
    const size_t bytes = part.size() + sizeof(Trailer);
    const size_t room = room_of(part.size());
    round.received.resize(room * static_cast<size_t>(size()));
    const auto of = [&](int32_t rank) {
      return std::span(round.received).subspan(static_cast<size_t>(rank) * room, bytes);
    };
    seal(part, of(rank()));
    if (!move(of) || !check(part.size(), of)) return {};
    for (int32_t rank = 0; rank < size(); ++rank) {
      round.parts[static_cast<size_t>(rank)] = of(rank).data();
    }
    return std::span(round.parts).first(static_cast<size_t>(size()));
  }

  [[nodiscard]] uint64_t* state() override { return &state_; }

  void fail() override { group_.fail("this rank failed"); }

  [[nodiscard]] bool has_failed() const override { return group_.is_over(); }

 private:
  struct Round {
    std::vector<std::byte> received;  // by rank: its part and the trailer
    std::array<const std::byte*, kMostRanks> parts{};
  };

  // `bytes`: a part and its trailer.
  [[nodiscard]] uint64_t hash_of(std::span<const std::byte> bytes) const {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size() - sizeof(Trailer::hash), number_);
  }

  void seal(std::span<const std::byte> part, std::span<std::byte> out) const {
    std::ranges::copy(part, out.begin());  // which may be empty
    Trailer trailer = {.state = state_};
    std::memcpy(out.data() + part.size(), &trailer, sizeof(trailer));
    trailer.hash = hash_of(out);
    std::memcpy(out.data() + part.size(), &trailer, sizeof(trailer));
  }

  // Whether a part and its trailer are what the rank sent.
  bool is_whole(int32_t rank, std::span<const std::byte> part) {
    uint64_t hash = 0;
    std::memcpy(&hash, part.data() + part.size() - sizeof(hash), sizeof(hash));
    if (hash == hash_of(part)) return true;
    group_.fail_changed(team_.rank(rank), number_);
    return false;
  }

  template <typename Of>
  bool move(const Of& of) {
    std::array<std::span<std::byte>, kMostRanks> parts;
    for (size_t i = 0; i < neighbours_.size(); ++i) parts[i] = of(neighbours_[i]);
    const auto all = std::span(parts).first(neighbours_.size());
    if (!group_.exchange(names_, of(rank()), all, team_.within)) {
      return false;
    }
    // The first one hands on what the others cannot get from each other.
    for (const int32_t to : others_) {
      for (const int32_t of_rank : others_) {
        if (to == of_rank || of_rank == 0 || to == 0) continue;
        if (rank() == 0 && !group_.send(team_.rank(to), of(of_rank), team_.within)) return false;
      }
    }
    if (rank() == 0) return true;
    for (const int32_t of_rank : others_) {
      if (of_rank != 0 && !group_.receive(team_.first, of(of_rank), team_.within)) return false;
    }
    return true;
  }

  template <typename Of>
  bool check(size_t bytes, const Of& of) {
    std::array<uint64_t, kMostRanks> states{};
    for (int32_t rank = 0; rank < size(); ++rank) {
      const std::span<const std::byte> part = of(rank);
      Trailer trailer;
      std::memcpy(&trailer, part.data() + bytes, sizeof(trailer));
      states[static_cast<size_t>(rank)] = trailer.state;
      if (!is_whole(rank, part)) return false;
    }
    return group_.agree(team_, std::span(states).first(static_cast<size_t>(size())), number_);
  }

  RankGroup& group_;
  const RankTeam team_;
  std::vector<int32_t> others_;      // in the team, ascending
  std::vector<int32_t> neighbours_;  // those with a connection to this one
  std::vector<int32_t> names_;       // the same in the group
  std::array<Round, kRounds> rounds_;
  uint64_t number_ = 0;
  uint64_t state_ = 0;
};

}  // namespace

int64_t stream_rank_bytes(int32_t size, int64_t part_bytes) {
  return static_cast<int64_t>(kRounds * room_of(static_cast<size_t>(part_bytes))) * size;
}

std::unique_ptr<Communicator> make_stream_rank(RankGroup& group, const RankTeam& team) {
  return std::make_unique<StreamRank>(group, team);
}

}  // namespace sluice
