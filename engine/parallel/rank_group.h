// SPDX-License-Identifier: Apache-2.0
// The processes that share a model, one rank each. Rank 0 listens; the others dial it and prove the
// secret. From then on each follower has three connections with rank 0: one for jobs and parts of
// results, one for rows between stages, which do not wait for the jobs of others, and one on which
// both sides say every second that they live. A group never loses a
// member and goes on: the first loss fails all of it, because a rank cannot be replaced within a
// step; whoever started the processes starts them again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/status.h"
#include "engine/parallel/group_socket.h"

namespace sluice {

enum class GroupPurpose : uint32_t;

struct RankGroupOptions {
  int32_t rank = 0;
  int32_t size = 2;
  std::string host = "127.0.0.1";  // where rank 0 listens
  uint16_t port = 29501;
  std::string secret;            // equal on all; empty: loopback only
  std::string build;             // equal on all
  int32_t init_timeout_s = 600;  // until all are there
};

class RankGroup {
 public:
  // A connection that is silent for so long has lost its peer.
  static constexpr std::chrono::seconds kSilence{5};
  // An exchange takes at most this long, whatever its size: as long as a slow rank may compute.
  static constexpr std::chrono::seconds kExchange{120};

  // What goes to a stage, or comes from one, at most this long: it may compute a whole step first.
  static constexpr std::chrono::seconds kStage{1800};

  // Meets the other ranks: returns when all are there. kInvalidArgument: the address cannot be
  // used. kDeadlineExceeded: names the ranks that are missing.
  static Expected<std::unique_ptr<RankGroup>> meet(const RankGroupOptions& options);

  // In order if `end()` was called on rank 0, else the others take it for a loss. After a failure
  // it waits for at most a second until they have its reason.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  [[nodiscard]] int32_t rank() const { return options_.rank; }

  [[nodiscard]] int32_t size() const { return options_.size; }

  // Bytes to and from a rank: rank 0 has all others, a follower rank 0 alone. One thread. False:
  // the group has failed.
  bool send(int32_t rank,
            std::span<const std::byte> bytes,
            std::chrono::seconds within = kExchange);
  bool receive(int32_t rank, std::span<std::byte> bytes, std::chrono::seconds within = kExchange);
  // Works like receive() without a bound. False also at an orderly end.
  bool receive_next(std::span<std::byte> bytes);
  // Rows between stages, on the connection for them: one thread for sending to a rank, one for
  // receiving from it. next_rows() is for their header; both ways of receiving are false also after
  // close_rows().
  bool send_rows(int32_t rank, std::span<const std::byte> bytes);
  bool next_rows(int32_t rank, std::span<std::byte> header, GroupDeadline deadline);
  bool receive_rows(int32_t rank, std::span<std::byte> bytes);
  // Ends what waits for rows. Any thread.
  void close_rows();
  // Sends `own` to each rank of `others` while their parts arrive in `parts`, all of equal size.
  bool exchange(std::span<const int32_t> others,
                std::span<const std::byte> own,
                std::span<const std::span<std::byte>> parts);

  // Rank 0: the followers end in order.
  void end();

  [[nodiscard]] bool has_ended() const { return has_ended_.load(); }

  // Any thread. The first reason stays; the log and the other ranks have it.
  void fail(const std::string& why);

  // Fails because a rank's part of an exchange is not what it sent.
  void fail_changed(int32_t rank, uint64_t exchange);
  // Fails because it is not the part that this exchange wants.
  void fail_stray(int32_t rank, uint64_t exchange);
  // Whether the ranks' states (Communicator::state()) of an exchange are equal. If not, fails and
  // names a rank whose state is not that of most; of two ranks, rank 1.
  bool agree(std::span<const uint64_t> states, uint64_t exchange);

  [[nodiscard]] bool has_failed() const { return has_failed_.load(); }

  [[nodiscard]] std::string why() const;

 private:
  struct Member {
    int32_t rank = 0;
    std::unique_ptr<GroupSocket> data;
    std::unique_ptr<GroupSocket> life;
    std::unique_ptr<GroupSocket> rows;
    std::string name;    // "rank 1 at 10.0.0.2:40112"
    std::string reason;  // what it has said so far of its failure; watcher's thread
    bool is_failing = false;

    // Whether all its connections are there.
    [[nodiscard]] bool is_here() const { return data && life && rows; }

    std::unique_ptr<GroupSocket>& socket(GroupPurpose purpose);
  };

  explicit RankGroup(RankGroupOptions options) : options_(std::move(options)) {}

  Expected<void> gather();
  Expected<void> dial();
  Expected<std::unique_ptr<GroupSocket>> dial_one(GroupPurpose purpose, GroupDeadline deadline);
  void welcome(std::unique_ptr<GroupSocket> socket);
  [[nodiscard]] std::string missing() const;
  Member& member(int32_t rank);
  bool take_rows(int32_t rank, std::span<std::byte> bytes, GroupDeadline deadline);
  // Fails because of an error of the connection for data.
  void lose(const Member& member, const Error& error);
  void watch(const std::stop_token& stop);
  bool hear(Member& member, std::chrono::steady_clock::time_point& heard);
  void take_words(Member& member, std::span<const std::byte> words);
  void await_others();

  const RankGroupOptions options_;
  std::vector<Member> members_;
  std::atomic<bool> has_failed_ = false;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> are_rows_closed_ = false;
  mutable std::mutex mutex_;
  std::string why_;                               // guarded
  std::jthread watcher_;                          // last: joins before the rest goes
};

}  // namespace sluice
