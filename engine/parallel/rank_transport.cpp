// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/rank_transport.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/core/log.h"
#include "engine/parallel/group_values.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/shared_ranks.h"
#include "engine/parallel/stage_ranks.h"
#include "engine/parallel/stream_ranks.h"

namespace sluice {
namespace {

using Segment = std::unique_ptr<SharedSegment>;

constexpr std::chrono::seconds kHandOver{5};

// What a rank says of a ticket, then of the segment, and the first one of all.
enum class Answer : uint32_t { kNo, kYes };

// The first of a team: whether that rank has mapped the segment.
Expected<bool> offer(RankGroup& group, int32_t rank, SharedSegment& segment) {
  SLUICE_TRY_VOID(send_value(group, rank, segment.ticket()));
  SLUICE_TRY(const Answer comes, receive_value<Answer>(group, rank, kWhileLoading));
  if (comes != Answer::kYes) return false;
  const Expected<void> given = segment.hand_over(std::chrono::steady_clock::now() + kHandOver);
  SLUICE_TRY(const Answer has_it, receive_value<Answer>(group, rank));
  return given && has_it == Answer::kYes;
}

// The first of a team: the segment if all have it, else null and why not.
Expected<Segment> share_memory(RankGroup& group,
                               const RankTeam& team,
                               size_t bytes,
                               std::string& why) {
  Expected<Segment> made = SharedSegment::make(bytes);
  if (!made) why = made.error().message;
  for (int32_t i = 1; i < team.size; ++i) {
    const int32_t rank = team.rank(i);
    if (!made) {
      SLUICE_TRY_VOID(send_value(group, rank, SharedSegment::Ticket{}));
      continue;
    }
    SLUICE_TRY(const bool has_it, offer(group, rank, **made));
    if (!has_it && why.empty()) {
      why = "rank " + std::to_string(rank) + " shares no memory with rank " +
            std::to_string(team.first);
    }
  }
  const Answer all = why.empty() ? Answer::kYes : Answer::kNo;
  for (int32_t i = 1; i < team.size; ++i) {
    SLUICE_TRY_VOID(send_value(group, team.rank(i), all));
  }
  return all == Answer::kYes ? std::move(*made) : nullptr;
}

// Another one: takes the segment that the first offers; null if not all have it.
Expected<Segment> take_memory(RankGroup& group, int32_t first, size_t bytes) {
  SLUICE_TRY(const auto ticket, receive_value<SharedSegment::Ticket>(group, first, kWhileLoading));
  Segment segment;
  if (ticket.bytes != 0) {
    Expected<std::unique_ptr<GroupSocket>> door = make_error(ErrorCode::kDataLoss, "its size");
    if (ticket.bytes == bytes) door = SharedSegment::knock(ticket);
    SLUICE_TRY_VOID(send_value(group, first, door ? Answer::kYes : Answer::kNo));
    if (door) {
      Expected<Segment> taken =
          SharedSegment::take(**door, ticket, std::chrono::steady_clock::now() + kHandOver);
      if (taken) segment = std::move(*taken);
      SLUICE_TRY_VOID(send_value(group, first, segment ? Answer::kYes : Answer::kNo));
    }
  }
  SLUICE_TRY(const Answer all, receive_value<Answer>(group, first, kWhileLoading));
  return all == Answer::kYes ? std::move(segment) : nullptr;
}

// What a team's ranks have in common: memory, or else only the connections.
struct Carrier {
  Segment segment;
  std::string name;
  std::string reason;
};

Expected<Carrier> choose_carrier(RankGroup& group,
                                 const RankTeam& team,
                                 const std::string& transport,
                                 int64_t bytes) {
  Segment segment;
  std::string why;
  const bool is_first = group.rank() == team.first;
  if (transport != "tcp") {
    const auto size = static_cast<size_t>(bytes);
    SLUICE_TRY(
        segment,
        is_first ? share_memory(group, team, size, why) : take_memory(group, team.first, size));
  }
  const std::string first = std::to_string(team.first);
  if (!segment && transport == "shm") {
    // The others learn the reason from the first, which fails the group.
    if (is_first) group.fail("--kv-transport shm: " + why);
    return make_error(ErrorCode::kUnsupported,
                      "--kv-transport shm: " +
                          (why.empty() ? "not all ranks share memory with rank " + first : why),
                      "kv-transport");
  }
  Carrier chosen = {.segment = std::move(segment), .name = {}, .reason = why};
  chosen.name = chosen.segment ? kSharedMemory : kTcp;
  if (why.empty()) chosen.reason = "--kv-transport " + transport;
  const std::string last = std::to_string(team.rank(team.size - 1));
  log_event(LogLevel::kInfo,
            "ranks_connected",
            "between",
            first + (team.step == 1 ? " to " : " and others to ") + last,
            "by",
            chosen.name,
            "reason",
            chosen.reason);
  return chosen;
}

}  // namespace

RankTeam stage_team(int32_t rank, int32_t size, int32_t num_stages) {
  const int32_t of_stage = size / num_stages;
  RankTeam team = {.first = rank / of_stage * of_stage, .step = 1, .size = of_stage};
  if (num_stages > 1) team.within = RankGroup::kStage;  // its first may wait for another stage
  return team;
}

int64_t rank_transport_bytes(int32_t rank, int32_t size, const ExchangeSizes& sizes) {
  const RankTeam own = stage_team(rank, size, sizes.num_stages);
  int64_t bytes = 0;
  if (own.size > 1) {
    bytes = std::max(shared_rank_bytes(own.size, sizes.part_bytes),
                     stream_rank_bytes(own.size, sizes.part_bytes));
  }
  if (sizes.num_stages > 1 && rank == own.first) bytes += shared_stage_bytes(sizes);
  return bytes;
}

Expected<RankTransport> connect_processes(RankGroup& group,
                                          const std::string& transport,
                                          const ExchangeSizes& sizes) {
  RankTransport made;
  const RankTeam own = stage_team(group.rank(), group.size(), sizes.num_stages);
  if (own.size > 1) {
    SLUICE_TRY(
        Carrier carrier,
        choose_carrier(group, own, transport, shared_rank_bytes(own.size, sizes.part_bytes)));
    made.rank = carrier.segment
                    ? make_shared_rank(group, own, std::move(carrier.segment), sizes.part_bytes)
                    : make_stream_rank(group, own);
    made.name = std::move(carrier.name);
    made.reason = std::move(carrier.reason);
  }
  if (sizes.num_stages > 1 && group.rank() == own.first) {
    const RankTeam firsts = {.first = 0, .step = own.size, .size = sizes.num_stages};
    SLUICE_TRY(Carrier carrier,
               choose_carrier(group, firsts, transport, shared_stage_bytes(sizes)));
    made.stage = carrier.segment
                     ? make_shared_stage(group, firsts, std::move(carrier.segment), sizes)
                     : make_stream_stage(group, firsts);
    if (made.rank == nullptr) {
      made.name = std::move(carrier.name);
      made.reason = std::move(carrier.reason);
    }
  }
  return made;
}

}  // namespace sluice
