// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/rank_group.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "engine/core/log.h"
#include "engine/core/node_watch.h"
#include "engine/parallel/group_handshake.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kHandshake{3};
constexpr seconds kBeat{1};
constexpr seconds kReport{30};  // between lines about ranks that are missing
constexpr milliseconds kRedial{200};
constexpr seconds kLinger{1};
constexpr seconds kReason{3};
constexpr size_t kMostReason = 1000;  // bytes

// Sent on the connection for life.
enum class Word : uint8_t {
  kAlive = 1,
  kLeaving = 2,
  kEnding = 0x5a,
  kFailing = 0x3c,  // a reason follows, up to the end of the connection
};

std::string text_of(Word word) { return std::string(1, static_cast<char>(word)); }

std::string name_of(int32_t rank, const GroupSocket& socket) {
  return "rank " + std::to_string(rank) + " at " + socket.peer();
}

// "rank 1, rank 3": those of which a connection is missing.
template <typename Members>
std::string missing(const Members& members) {
  std::string list;
  for (const auto& member : members) {
    if (member.is_here()) continue;
    list += (list.empty() ? "rank " : ", rank ") + std::to_string(member.rank);
  }
  return list;
}

}  // namespace

std::unique_ptr<GroupSocket>& RankGroup::Member::socket(GroupPurpose purpose) {
  if (purpose == GroupPurpose::kData || purpose == GroupPurpose::kPeer) return data;
  return purpose == GroupPurpose::kLife ? life : rows;
}

Expected<std::unique_ptr<RankGroup>> RankGroup::meet(const RankGroupOptions& options) {
  CHECK(options.size >= 2 && options.rank >= 0 && options.rank < options.size);
  std::unique_ptr<RankGroup> group(new RankGroup(options));
  const Expected<void> met = options.rank == 0 ? group->gather() : group->dial();
  if (!met) {
    group->fail(met.error().message);  // those that are there have these words, too
    return tl::unexpected(met.error());
  }
  group->take(LifeEvent::kMet);
  group->watcher_ =
      std::jthread([self = group.get()](const std::stop_token& stop) { self->watch(stop); });
  return group;
}

RankGroup::~RankGroup() {
  watcher_.request_stop();
  if (watcher_.joinable()) watcher_.join();
  if (has_failed() || (has_ended() && rank() == 0)) await_others();
}

// A socket that is closed with unread bytes drops what the other end has not read.
void RankGroup::await_others() {
  const auto end = Clock::now() + kLinger;
  for (Member& member : members_) {
    std::array<std::byte, 256> words{};
    while (member.life && Clock::now() < end && member.life->receive_now(words)) {
      poll(nullptr, 0, 5);
    }
  }
}

// Waits for the followers. A stranger costs a handshake's time at most.
Expected<void> RankGroup::gather() {
  Expected<std::unique_ptr<GroupListener>> opened =
      GroupListener::open(options_.host, options_.port);
  if (!opened) {
    return make_error(opened.error().code,
                      "--master-addr and --master-port: rank 0 " + opened.error().message +
                          "; a process that is not rank 0 needs its --node-rank",
                      opened.error().param);
  }
  GroupListener& listener = **opened;
  for (int32_t rank = 1; rank < options_.size; ++rank) members_.emplace_back().rank = rank;
  const auto end = Clock::now() + seconds(options_.init_timeout_s);
  auto report = Clock::now() + kReport;
  const std::string at = options_.host + ":" + std::to_string(listener.port());
  log_event(LogLevel::kInfo,
            "ranks_awaited",
            "at",
            at,
            "listening",
            listener.name(),
            "ranks",
            missing(members_));
  std::string refusal;
  while (!missing(members_).empty()) {
    const auto next = std::min({end, report, Clock::now() + kBeat});
    if (auto socket = listener.accept(next)) {
      if (std::string why = welcome(std::move(socket), members_); !why.empty()) refusal = why;
    }
    keep_members();
    if (Clock::now() >= end) {
      return make_error(ErrorCode::kDeadlineExceeded,
                        "rank 0 at " + at + ": missing after " +
                            std::to_string(options_.init_timeout_s) +
                            " s (--rank-init-timeout): " + missing(members_) +
                            (refusal.empty() ? "" : "; refused: " + refusal),
                        "nnodes");
    }
    if (Clock::now() >= report) {
      log_event(LogLevel::kWarning, "ranks_missing", "ranks", missing(members_));
      report = Clock::now() + kReport;
    }
  }
  return {};
}

// Tells the ranks that have come that rank 0 is there, and forgets those that have gone meanwhile,
// whose place another process may take.
void RankGroup::keep_members() {
  say(text_of(Word::kAlive));
  for (Member& member : members_) {
    if (!member.life) continue;
    std::array<std::byte, 64> words{};
    Expected<size_t> got = member.life->receive_now(words);
    while (got && *got > 0) got = member.life->receive_now(words);
    if (got) continue;
    log_event(LogLevel::kWarning, "rank_gone", "rank", member.rank, "at", member.name);
    const int32_t rank = member.rank;
    member = {};
    member.rank = rank;
  }
}

// Why a connection does not get its place among those that are awaited, which is null if there is
// none; empty: it does.
std::string RankGroup::refusal_of(const GroupClaims& claims, Member* place) const {
  const std::string rank = std::to_string(claims.rank);
  if (claims.build != options_.build) {
    return "it is " + options_.build + ", rank " + rank + " is " + claims.build;
  }
  if (claims.size != options_.size) {
    return "--nnodes is " + std::to_string(options_.size) + " here, " +
           std::to_string(claims.size) + " there";
  }
  if (place == nullptr) return "there is no rank " + rank;
  if (claims.purpose > GroupPurpose::kPeer ||
      place->is_peer != (claims.purpose == GroupPurpose::kPeer)) {
    return "rank " + rank + " is awaited elsewhere";
  }
  if (place->socket(claims.purpose) != nullptr) {
    return "rank " + rank + " is here already, " + place->name;
  }
  return "";
}

// Takes a connection into its place; else logs why not, and returns whom it refused and why.
std::string RankGroup::welcome(std::unique_ptr<GroupSocket> socket, std::vector<Member>& members) {
  const auto deadline = Clock::now() + kHandshake;
  const auto refuse = [&](const std::string& why) {
    log_event(LogLevel::kWarning, "rank_refused", "from", socket->peer(), "reason", why);
    return socket->peer() + ", " + why;
  };
  const Expected<ProvenClaims> proven = hear_claims(*socket, options_.secret, deadline);
  if (!proven) return refuse(proven.error().message);
  const GroupClaims& claims = proven->claims;
  const auto found = std::ranges::find(members, claims.rank, &Member::rank);
  Member* const place = found == members.end() ? nullptr : &*found;
  const std::string refusal = refusal_of(claims, place);
  const Expected<void> answered =
      answer_claims(*socket, *proven, refusal, options_.secret, deadline);
  if (!refusal.empty()) return refuse(refusal);
  if (!answered) return refuse(answered.error().message);
  if (place->name.empty()) place->name = name_of(claims.rank, *socket);
  place->socket(claims.purpose) = std::move(socket);
  if (place->is_here()) {
    log_event(LogLevel::kInfo, "rank_joined", "rank", claims.rank, "at", place->data->peer());
  }
  return "";
}

Expected<void> RankGroup::dial() {
  const auto end = Clock::now() + seconds(options_.init_timeout_s);
  const Address address = {.host = options_.host, .port = options_.port};
  const auto left = [end] {
    return std::max(std::chrono::ceil<seconds>(end - Clock::now()), seconds(1));
  };
  Member& first = members_.emplace_back();
  SLUICE_TRY(first.data, dial_one(0, address, GroupPurpose::kData, left()));
  SLUICE_TRY(first.life, dial_one(0, address, GroupPurpose::kLife, left()));
  SLUICE_TRY(first.rows, dial_one(0, address, GroupPurpose::kRows, left()));
  first.name = name_of(0, *first.data);
  return {};
}

// Dials until that rank listens.
Expected<std::unique_ptr<GroupSocket>> RankGroup::dial_one(int32_t rank,
                                                           const Address& address,
                                                           GroupPurpose purpose,
                                                           seconds within) {
  const auto deadline = Clock::now() + within;
  const std::string at = address.host + ":" + std::to_string(address.port);
  const std::string name = "rank " + std::to_string(rank);
  auto report = Clock::now() + kReport;
  for (;;) {
    Expected<std::unique_ptr<GroupSocket>> socket = GroupSocket::dial(
        address.host, address.port, std::min(deadline, Clock::now() + kHandshake));
    if (socket) {
      const Expected<void> known =
          present_claims(**socket,
                         {.rank = options_.rank,
                          .size = options_.size,
                          .purpose = purpose,
                          .build = options_.build},
                         options_.secret,
                         std::min(deadline, Clock::now() + 2 * kHandshake));
      if (known) return socket;
      const bool is_final = known.error().code == ErrorCode::kInvalidArgument ||
                            known.error().code == ErrorCode::kUnauthenticated;
      if (is_final) {
        return make_error(known.error().code,
                          at + ": " + name + " " + known.error().message,
                          known.error().param);
      }
      socket = tl::unexpected(known.error());
    }
    if (is_over()) return make_error(ErrorCode::kUnavailable, why());
    if (Clock::now() >= deadline) {
      return make_error(ErrorCode::kDeadlineExceeded,
                        "rank " + std::to_string(options_.rank) + ": " + name +
                            " does not answer at " + at + " within " +
                            std::to_string(within.count()) + " s" +
                            (rank == 0 ? " (--rank-init-timeout): " : ": ") +
                            socket.error().message,
                        "master-addr");
    }
    if (Clock::now() >= report) {
      log_event(LogLevel::kWarning,
                "rank_awaited",
                "rank",
                rank,
                "at",
                at,
                "reason",
                socket.error().message);
      report = Clock::now() + kReport;
    }
    poll(nullptr, 0, static_cast<int>(kRedial.count()));
  }
}

// The group's port if it is free there, as on a machine of its own, so that rules for a network
// need one port; else any.
Expected<RankGroup::Address> RankGroup::expect_peers() {
  Address own = {.host = members_.front().data->own_host(), .port = options_.port};
  // On rank 0's machine: others reach it as they do rank 0.
  const bool is_loopback = own.host.starts_with("127.") || own.host == "::1" || own.host.empty();
  if (is_loopback) own.host = options_.host;
  Expected<std::unique_ptr<GroupListener>> opened = GroupListener::open(own.host, own.port);
  if (!opened) opened = GroupListener::open(own.host, 0);
  if (!opened) {
    return make_error(opened.error().code,
                      "rank " + std::to_string(rank()) + " " + opened.error().message,
                      opened.error().param);
  }
  door_ = std::move(*opened);
  own.port = door_->port();
  return own;
}

Expected<void> RankGroup::take_peers(int32_t count) {
  std::vector<Member> peers;
  for (int32_t other = rank() + 1; other <= rank() + count; ++other) {
    Member& peer = peers.emplace_back();
    peer.rank = other;
    peer.is_peer = true;
  }
  const auto deadline = Clock::now() + seconds(options_.peer_timeout_s);
  while (!missing(peers).empty()) {
    if (auto socket = door_->accept(Clock::now() + kRedial)) welcome(std::move(socket), peers);
    if (is_over()) return make_error(ErrorCode::kUnavailable, why());
    if (Clock::now() < deadline) continue;
    return make_error(ErrorCode::kDeadlineExceeded,
                      "rank " + std::to_string(rank()) + ": missing after " +
                          std::to_string(options_.peer_timeout_s) + " s: " + missing(peers),
                      "master-addr");
  }
  door_.reset();
  return add_peers(std::move(peers));
}

Expected<void> RankGroup::dial_peer(int32_t rank, const Address& address) {
  std::vector<Member> peers(1);
  Member& peer = peers.front();
  peer.rank = rank;
  peer.is_peer = true;
  const seconds within(options_.peer_timeout_s);
  SLUICE_TRY(peer.data, dial_one(rank, address, GroupPurpose::kPeer, within));
  peer.name = name_of(rank, *peer.data);
  return add_peers(std::move(peers));
}

// From here on a failure or the end closes their connections.
Expected<void> RankGroup::add_peers(std::vector<Member> peers) {
  const std::scoped_lock lock(mutex_);
  if (life_.is_over()) return make_error(ErrorCode::kUnavailable, why_);
  CHECK(peers_.empty());
  peers_ = std::move(peers);
  return {};
}

RankGroup::Member& RankGroup::member(int32_t rank) {
  const auto found = std::ranges::find(members_, rank, &Member::rank);
  if (found != members_.end()) return *found;
  const auto peer = std::ranges::find(peers_, rank, &Member::rank);
  CHECK(peer != peers_.end());
  return *peer;
}

bool RankGroup::send(int32_t rank, std::span<const std::byte> bytes, seconds within) {
  if (is_over()) return false;
  Member& to = member(rank);
  const Expected<void> sent = to.data->send(bytes, Clock::now() + within);
  if (!sent) lose(to, sent.error());
  return sent.has_value();
}

bool RankGroup::receive(int32_t rank, std::span<std::byte> bytes, seconds within) {
  if (is_over()) return false;
  Member& from = member(rank);
  const Expected<void> got = from.data->receive(bytes, Clock::now() + within);
  if (!got) lose(from, got.error());
  return got.has_value();
}

// Where the peer had a reason, the other connection has it.
void RankGroup::lose(const Member& member, const Error& error) {
  const std::string why = member.name + ": " + error.message;
  error.code == ErrorCode::kUnavailable ? fail_unless_told(why) : fail(why);
}

void RankGroup::fail_unless_told(const std::string& why) {
  const auto end = Clock::now() + kReason;
  while (!is_over() && Clock::now() < end) poll(nullptr, 0, 5);
  fail(why);
}

bool RankGroup::has_sent(int32_t rank) {
  pollfd item = {.fd = member(rank).data->descriptor(), .events = POLLIN, .revents = 0};
  return poll(&item, 1, 0) > 0;
}

bool RankGroup::receive_next(std::span<std::byte> bytes) {
  if (is_over()) return false;
  Member& from = members_.front();
  const Expected<void> got = from.data->receive(bytes, GroupDeadline::max());
  if (!got) lose(from, got.error());
  return got.has_value();
}

bool RankGroup::send_rows(int32_t rank, std::span<const std::byte> bytes) {
  if (is_over()) return false;
  Member& to = member(rank);
  const Expected<void> sent = to.rows->send(bytes, Clock::now() + kStage);
  if (!sent) lose(to, sent.error());
  return sent.has_value();
}

bool RankGroup::next_rows(int32_t rank, std::span<std::byte> header, GroupDeadline deadline) {
  return take_rows(rank, header, deadline);
}

bool RankGroup::receive_rows(int32_t rank, std::span<std::byte> bytes) {
  return take_rows(rank, bytes, Clock::now() + kExchange);
}

bool RankGroup::take_rows(int32_t rank, std::span<std::byte> bytes, GroupDeadline deadline) {
  if (is_over()) return false;
  Member& from = member(rank);
  const Expected<void> got = from.rows->receive(bytes, deadline);
  if (!got && !are_rows_closed_) lose(from, got.error());
  return got.has_value();
}

void RankGroup::close_rows() {
  are_rows_closed_ = true;
  for (const Member& member : members_) member.rows->close_now();
}

bool RankGroup::exchange(std::span<const int32_t> others,
                         std::span<const std::byte> own,
                         std::span<const std::span<std::byte>> parts,
                         seconds within) {
  struct Transfer {
    Member* member = nullptr;
    std::span<const std::byte> out;
    std::span<std::byte> in;
  };

  std::array<Transfer, 8> transfers;
  CHECK(others.size() <= transfers.size() && parts.size() == others.size());
  for (size_t i = 0; i < others.size(); ++i) {
    transfers[i] = {.member = &member(others[i]), .out = own, .in = parts[i]};
  }
  const auto deadline = Clock::now() + within;
  const auto spin_until = Clock::now() + std::chrono::microseconds(50);
  for (;;) {
    std::array<pollfd, 8> waits{};
    nfds_t num_waits = 0;
    bool has_moved = false;
    for (Transfer& transfer : std::span(transfers).first(others.size())) {
      if (is_over()) return false;
      GroupSocket& socket = *transfer.member->data;
      const Expected<size_t> sent = transfer.out.empty() ? 0 : socket.send_now(transfer.out);
      const Expected<size_t> got = transfer.in.empty() ? 0 : socket.receive_now(transfer.in);
      if (!sent || !got) {
        lose(*transfer.member, (sent ? got : sent).error());
        return false;
      }
      transfer.out = transfer.out.subspan(*sent);
      transfer.in = transfer.in.subspan(*got);
      has_moved = has_moved || *sent > 0 || *got > 0;
      const int events = (transfer.out.empty() ? 0 : POLLOUT) | (transfer.in.empty() ? 0 : POLLIN);
      if (events == 0) continue;
      waits[num_waits++] = {
          .fd = socket.descriptor(), .events = static_cast<short>(events), .revents = 0};
    }
    if (num_waits == 0) return true;
    if (has_moved || Clock::now() < spin_until) continue;
    if (Clock::now() > deadline) {
      const auto slow = std::ranges::find_if(
          transfers, [](const Transfer& transfer) { return !transfer.in.empty(); });
      fail((slow == transfers.end() ? "a rank" : slow->member->name) +
           ": no part of a result within " + std::to_string(within.count()) + " s");
      return false;
    }
    poll(waits.data(), num_waits, 1000);
  }
}

void RankGroup::end() { take(LifeEvent::kEnd); }

void RankGroup::fail(const std::string& why) { take(LifeEvent::kLost, why); }

void RankGroup::take(LifeEvent event, const std::string& why) {
  // Nothing follows the words of a failure, which are read to the end of the connection.
  const std::scoped_lock speaking(speaking_);
  LifeActions actions;
  {
    const std::scoped_lock lock(mutex_);
    actions = take_event(life_, event);
    if (actions.has_cause) why_ = why;
    has_failed_ = life_.phase == GroupLife::Phase::kFailed;
    has_ended_ = life_.phase == GroupLife::Phase::kEnded;
  }
  if (actions.says_failing) say_failing(why);
  if (actions.says_ending) say(text_of(Word::kEnding));
  if (actions.says_alive) say(text_of(Word::kAlive));
  if (actions.says_leaving && say(text_of(Word::kLeaving))) {
    const std::scoped_lock lock(mutex_);
    take_event(life_, LifeEvent::kToldLeaving);
  }
  if (actions.closes_data) close_data();
  if (actions.asks_to_end) ask_nodes_to_end();
  if (!actions.has_cause) return;
  log_event(LogLevel::kError, "rank_group_failed", "rank", options_.rank, "reason", why);
}

// Who does not get it learns from the end of the connection, or from the silence. Returns whether
// all connections took the words.
bool RankGroup::say(std::string_view words) {
  bool are_taken = true;
  for (const Member& member : members_) {
    if (!member.life) continue;
    const auto sent = member.life->send_now(std::as_bytes(std::span(words)));
    are_taken = are_taken && sent && *sent == words.size();
  }
  return are_taken;
}

void RankGroup::say_failing(const std::string& why) {
  say(text_of(Word::kFailing) + why.substr(0, kMostReason));
  for (const Member& member : members_) {
    if (member.life) member.life->finish();
  }
}

void RankGroup::close_data() {
  for (const Member& peer : peers_) peer.data->close_now();
  for (const Member& member : members_) {
    if (member.data) member.data->close_now();
    if (member.rows) member.rows->close_now();
  }
}

void RankGroup::fail_changed(int32_t rank, uint64_t exchange) {
  fail("rank " + std::to_string(rank) + ": its part of exchange " + std::to_string(exchange) +
       " is not what it sent");
}

void RankGroup::fail_stray(int32_t rank, uint64_t exchange) {
  fail("rank " + std::to_string(rank) + ": its part of exchange " + std::to_string(exchange) +
       " is of another exchange");
}

bool RankGroup::agree(const RankTeam& team, std::span<const uint64_t> states, uint64_t exchange) {
  const auto differs = [&](uint64_t state) { return state != states.front(); };
  if (std::ranges::none_of(states, differs)) return true;
  const uint64_t most = *std::ranges::max_element(
      states, {}, [&](uint64_t state) { return std::ranges::count(states, state); });
  const auto odd = std::ranges::find_if(states, [&](uint64_t state) { return state != most; });
  const auto other = std::ranges::find(states, most);
  const auto rank_of = [&](auto found) {
    return std::to_string(team.rank(static_cast<int32_t>(found - states.begin())));
  };
  fail("rank " + rank_of(odd) + ": what it computed before exchange " + std::to_string(exchange) +
       " differs from what rank " + rank_of(other) +
       " computed: its memory, its processor or its link changed a word");
  return false;
}

std::string RankGroup::why() const {
  const std::scoped_lock lock(mutex_);
  return why_;
}

// Takes what a member has said, or that it has gone or says nothing.
void RankGroup::hear(Member& member, Clock::time_point& heard) {
  std::array<std::byte, 256> words{};
  const Expected<size_t> got = member.life->receive_now(words);
  if (!got && member.reason) return take(LifeEvent::kFailing, member.name + ": " + *member.reason);
  if (!got) return take(LifeEvent::kGone, member.name + " has gone: " + got.error().message);
  if (*got > 0) heard = Clock::now();
  take_words(member, std::span(words).first(*got));
  if (Clock::now() - heard < kSilence) return;
  take(LifeEvent::kSilent,
       member.name + " has been silent for " + std::to_string(kSilence.count()) +
           " s: it hangs, or its machine cannot be reached");
}

void RankGroup::take_words(Member& member, std::span<const std::byte> words) {
  for (const std::byte word : words) {
    const auto character = std::to_integer<uint8_t>(word);
    if (member.reason) {
      if (member.reason->size() < kMostReason) *member.reason += static_cast<char>(character);
    } else if (character == static_cast<uint8_t>(Word::kFailing)) {
      member.reason.emplace();
    } else if (character == static_cast<uint8_t>(Word::kLeaving)) {
      log_event(LogLevel::kInfo, "rank_leaves", "rank", member.rank);
      take(LifeEvent::kLeaving);
    } else if (character == static_cast<uint8_t>(Word::kEnding)) {
      take(LifeEvent::kEnding, member.name + " ends the group, as only rank 0 may");
    }
  }
}

void RankGroup::watch(const std::stop_token& stop) {
  std::vector<Clock::time_point> heard(members_.size(), Clock::now());
  auto beat = Clock::now();
  while (!stop.stop_requested()) {
    if (is_over()) {
      poll(nullptr, 0, 50);
      continue;
    }
    if (Clock::now() >= beat) {
      take(LifeEvent::kBeat);
      beat = Clock::now() + kBeat;
    }
    if (are_nodes_asked_to_end()) take(LifeEvent::kLeave);
    std::array<pollfd, 8> waits{};
    for (size_t i = 0; i < members_.size(); ++i) {
      waits[i] = {.fd = members_[i].life->descriptor(), .events = POLLIN, .revents = 0};
    }
    poll(waits.data(), members_.size(), 100);
    for (size_t i = 0; i < members_.size() && !is_over(); ++i) hear(members_[i], heard[i]);
  }
}

}  // namespace sluice
