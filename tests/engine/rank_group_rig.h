// SPDX-License-Identifier: Apache-2.0
// Groups of ranks in processes, played by threads of a test.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/rank_transport.h"
#include "tests/support/free_port.h"

namespace sluice::testing {

using Met = Expected<std::unique_ptr<RankGroup>>;

inline RankGroupOptions rank_options(int32_t rank, int32_t size, uint16_t port) {
  return {.rank = rank,
          .size = size,
          .host = "127.0.0.1",
          .port = port,
          .secret = "a secret of this test",
          .build = "build 1",
          .init_timeout_s = 60};
}

// Meets with these options, one thread each; by rank.
inline std::vector<Met> meet(const std::vector<RankGroupOptions>& all) {
  std::vector<std::future<Met>> meetings;
  for (const RankGroupOptions& own : all) {
    meetings.push_back(std::async(std::launch::async, [&own] { return RankGroup::meet(own); }));
  }
  std::vector<Met> met;
  for (auto& meeting : meetings) met.push_back(meeting.get());
  return met;
}

inline std::vector<std::unique_ptr<RankGroup>> group_of(int32_t size) {
  const uint16_t port = free_port();
  std::vector<RankGroupOptions> all;
  for (int32_t rank = 0; rank < size; ++rank) all.push_back(rank_options(rank, size, port));
  std::vector<std::unique_ptr<RankGroup>> groups;
  for (Met& met : meet(all)) {
    CHECK(met.has_value());
    groups.push_back(std::move(*met));
  }
  return groups;
}

// Runs body(rank) for each on a thread.
template <typename Body>
void on_each(int32_t size, Body body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline uint32_t word(int32_t rank, size_t round, size_t i) {
  return static_cast<uint32_t>(rank * 7919 + static_cast<int32_t>(round * 104729 + i));
}

inline constexpr size_t kMostWords = 3 << 20;

// Gathers parts of all sizes, from nothing to more than the buffers of a connection, from two
// buffers in turn; a rank that the round's number picks comes late. Returns how many words differ.
inline int wrong_words(Communicator& own) {
  constexpr size_t kWords[] = {1, 0, 77, kMostWords, 5, 4096, 1 << 18, 1};
  int wrong = 0;
  std::array<std::vector<uint32_t>, 2> buffers;
  for (size_t round = 0; round < std::size(kWords); ++round) {
    if (static_cast<int32_t>(round) % own.size() == own.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::vector<uint32_t>& mine = buffers[round % 2];
    mine.resize(kWords[round]);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = word(own.rank(), round, i);
    const auto parts = own.all_gather(std::as_bytes(std::span(mine)));
    if (parts.size() != static_cast<size_t>(own.size())) return 1;
    for (int32_t other = 0; other < own.size(); ++other) {
      for (size_t i = 0; i < kWords[round]; i += 1 + kWords[round] / 1000) {
        uint32_t found = 0;
        std::memcpy(&found, parts[static_cast<size_t>(other)] + i * 4, 4);
        if (found != word(other, round, i)) ++wrong;
      }
    }
  }
  return wrong;
}

// Its end among all ranks of the group, or if a step hands something back, among stages of one
// each.
inline std::unique_ptr<Communicator> connect(RankGroup& group,
                                             const std::string& transport,
                                             int64_t returned_bytes = 0) {
  auto made = connect_processes(group,
                                transport,
                                {.part_bytes = int64_t{kMostWords} * 4,
                                 .num_stages = returned_bytes > 0 ? group.size() : 1,
                                 .passed_bytes = Communicator::kPassBytes,
                                 .returned_bytes = returned_bytes});
  CHECK(made.has_value());
  return std::move(returned_bytes > 0 ? made->stage : made->rank);
}

}  // namespace sluice::testing
