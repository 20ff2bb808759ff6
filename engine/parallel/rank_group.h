// SPDX-License-Identifier: Apache-2.0
// The processes that share a model, one rank each. Rank 0 listens; the others dial it and prove the
// secret. From then on each follower has three connections with rank 0: one for jobs and parts of
// results, one for rows between stages, which do not wait for the jobs of others, and one on which
// both sides say every second that they live. A group never loses a
// member and goes on: the first loss fails all of it, because a rank cannot be replaced within a
// step; whoever started the processes starts them again. group_life.h decides, this acts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/core/status.h"
#include "engine/parallel/group_life.h"
#include "engine/parallel/group_socket.h"

namespace sluice {

enum class GroupPurpose : uint32_t;

// Ranks of a group that exchange with each other, of which the first one has connections with all:
// every step-th one from there.
struct RankTeam {
  int32_t first = 0;
  int32_t step = 1;
  int32_t size = 1;
  // An exchange takes at most this long, whatever its size: as long as a slow rank may compute.
  std::chrono::seconds within{120};

  // The rank in the group of the team's member `index`, and back.
  [[nodiscard]] int32_t rank(int32_t index) const { return first + index * step; }

  [[nodiscard]] int32_t index(int32_t rank) const { return (rank - first) / step; }
};

struct GroupClaims;

struct RankGroupOptions {
  int32_t rank = 0;
  int32_t size = 2;
  std::string host = "127.0.0.1";  // where rank 0 listens: an address; by a name, on all interfaces
  uint16_t port = 29501;
  std::string secret;            // equal on all; empty: loopback only
  std::string build;             // equal on all
  int32_t init_timeout_s = 600;  // until all are there
  int32_t peer_timeout_s = 60;   // then until followers have met each other
};

class RankGroup {
 public:
  // A connection that is silent for so long has lost its peer.
  static constexpr std::chrono::seconds kSilence{5};
  static constexpr std::chrono::seconds kExchange = RankTeam().within;

  // What goes to a stage, or comes from one, at most this long: it may compute a whole step first.
  static constexpr std::chrono::seconds kStage{1800};

  // Meets the other ranks: returns when all are there. kInvalidArgument: the address cannot be
  // used. kDeadlineExceeded: names the ranks that are missing.
  static Expected<std::unique_ptr<RankGroup>> meet(const RankGroupOptions& options);

  // In order if `end()` was called on rank 0, else the others take it for a loss. After that or a
  // failure it waits for at most a second until they have its last words.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  [[nodiscard]] int32_t rank() const { return options_.rank; }

  [[nodiscard]] int32_t size() const { return options_.size; }

  [[nodiscard]] RankTeam all() const { return {.first = 0, .step = 1, .size = size()}; }

  // Connections between followers, after all have met, for what does not concern rank 0; their
  // lives remain rank 0's to watch. Each is called once at most. A follower listens: returns where
  // others reach it, then takes the connections of the `count` ranks that follow it.
  // kDeadlineExceeded: names a rank that did not come; kUnavailable: the group has failed or ended.
  struct Address {
    std::string host;
    uint16_t port = 0;
  };

  Expected<Address> expect_peers();
  Expected<void> take_peers(int32_t count);
  // Another one dials it.
  Expected<void> dial_peer(int32_t rank, const Address& address);

  // Bytes to and from a rank: rank 0 has all others, a follower rank 0 and its peers. One thread.
  // False: the group has failed, or ended.
  bool send(int32_t rank,
            std::span<const std::byte> bytes,
            std::chrono::seconds within = kExchange);
  bool receive(int32_t rank, std::span<std::byte> bytes, std::chrono::seconds within = kExchange);
  // Works like receive() without a bound.
  bool receive_next(std::span<std::byte> bytes);
  // Whether bytes of that rank, or the end of its connection, are there to receive.
  [[nodiscard]] bool has_sent(int32_t rank);
  // Returns "rank 1 at 10.0.0.2:40112".
  [[nodiscard]] const std::string& name(int32_t rank) { return member(rank).name; }
  // Rows between stages, on the connection for them: one thread for sending to a rank, one for
  // receiving from it. next_rows() is for their header; both ways of receiving are false also after
  // close_rows().
  bool send_rows(int32_t rank, std::span<const std::byte> bytes);
  bool next_rows(int32_t rank, std::span<std::byte> header, GroupDeadline deadline);
  bool receive_rows(int32_t rank, std::span<std::byte> bytes);
  // Ends what waits for rows. Any thread.
  void close_rows();
  // Sends `own` to each rank of `others`, which this one has, while their parts arrive in `parts`,
  // all of equal size.
  bool exchange(std::span<const int32_t> others,
                std::span<const std::byte> own,
                std::span<const std::span<std::byte>> parts,
                std::chrono::seconds within = kExchange);

  // Rank 0: the followers end in order, whatever they compute.
  void end();

  [[nodiscard]] bool has_ended() const { return has_ended_.load(); }

  // Any thread. The first reason stays; the log and the other ranks have it.
  void fail(const std::string& why);
  // Likewise, if no other rank has said a reason within 3 s, of which this is the effect.
  void fail_unless_told(const std::string& why);

  // Fails because a rank's part of an exchange is not what it sent.
  void fail_changed(int32_t rank, uint64_t exchange);
  // Fails because it is not the part that this exchange wants.
  void fail_stray(int32_t rank, uint64_t exchange);
  // Whether the states (Communicator::state()) of a team's ranks in an exchange are equal. If not,
  // fails and names a rank whose state is not that of most; of two ranks, the second.
  bool agree(const RankTeam& team, std::span<const uint64_t> states, uint64_t exchange);

  [[nodiscard]] bool has_failed() const { return has_failed_.load(); }

  // Failed or ended: nothing is exchanged any more.
  [[nodiscard]] bool is_over() const { return has_failed() || has_ended(); }

  [[nodiscard]] std::string why() const;

 private:
  struct Member {
    int32_t rank = 0;
    std::unique_ptr<GroupSocket> data;
    std::unique_ptr<GroupSocket> life;
    std::unique_ptr<GroupSocket> rows;
    std::string name;                   // "rank 1 at 10.0.0.2:40112"
    std::optional<std::string> reason;  // it fails: what it has said of it so far; watcher's thread
    bool is_peer = false;  // has a connection for data alone

    // Whether all its connections are there.
    [[nodiscard]] bool is_here() const { return data && (is_peer || (life && rows)); }

    std::unique_ptr<GroupSocket>& socket(GroupPurpose purpose);
  };

  explicit RankGroup(RankGroupOptions options) : options_(std::move(options)) {
    life_.is_first = options_.rank == 0;
  }

  Expected<void> gather();
  void keep_members();
  Expected<void> dial();
  Expected<std::unique_ptr<GroupSocket>> dial_one(int32_t rank,
                                                  const Address& address,
                                                  GroupPurpose purpose,
                                                  std::chrono::seconds within);
  std::string welcome(std::unique_ptr<GroupSocket> socket, std::vector<Member>& members);
  [[nodiscard]] std::string refusal_of(const GroupClaims& claims, Member* place) const;
  Expected<void> add_peers(std::vector<Member> peers);
  Member& member(int32_t rank);
  bool take_rows(int32_t rank, std::span<std::byte> bytes, GroupDeadline deadline);
  // Fails because of an error of the connection for data.
  void lose(const Member& member, const Error& error);
  // Any thread. `why`: the cause, if the event is one.
  void take(LifeEvent event, const std::string& why = "");
  bool say(std::string_view words);
  void say_failing(const std::string& why);
  void close_data();
  void watch(const std::stop_token& stop);
  void hear(Member& member, std::chrono::steady_clock::time_point& heard);
  void take_words(Member& member, std::span<const std::byte> words);
  void await_others();

  const RankGroupOptions options_;
  std::vector<Member> members_;
  std::vector<Member> peers_;  // set once, under the mutex, unless the group has failed or ended
  std::unique_ptr<GroupListener> door_;  // for peers
  // What the life says, for all threads.
  std::atomic<bool> has_failed_ = false;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> are_rows_closed_ = false;
  std::mutex speaking_;  // held from an event to the last of its words
  mutable std::mutex mutex_;
  GroupLife life_;  // guarded, as is the cause
  std::string why_;
  std::jthread watcher_;                          // last: joins before the rest goes
};

}  // namespace sluice
