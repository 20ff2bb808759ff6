// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/rank_transport.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/core/log.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/shared_ranks.h"
#include "engine/parallel/stage_ranks.h"
#include "engine/parallel/stream_ranks.h"

namespace sluice {
namespace {

using Segment = std::unique_ptr<SharedSegment>;

constexpr std::chrono::seconds kHandOver{5};

// What a follower says of a ticket, then of the segment, and rank 0 of all.
enum class Answer : uint32_t { kNo, kYes };

tl::unexpected<Error> failed(const RankGroup& group) {
  return make_error(ErrorCode::kUnavailable, group.why());
}

template <typename Value>
Expected<void> send_value(RankGroup& group, int32_t rank, const Value& value) {
  if (group.send(rank, std::as_bytes(std::span(&value, 1)))) return {};
  return failed(group);
}

template <typename Value>
Expected<Value> receive_value(RankGroup& group,
                              int32_t rank,
                              std::chrono::seconds within = RankGroup::kExchange) {
  Value value{};
  if (group.receive(rank, std::as_writable_bytes(std::span(&value, 1)), within)) return value;
  return failed(group);
}

int64_t shared_bytes(int32_t size, const ExchangeSizes& sizes) {
  return sizes.returned_bytes > 0 ? shared_stage_bytes(size, sizes)
                                  : shared_rank_bytes(size, sizes.part_bytes);
}


// Rank 0: whether that rank has mapped the segment.
Expected<bool> offer(RankGroup& group, int32_t rank, SharedSegment& segment) {
  SLUICE_TRY_VOID(send_value(group, rank, segment.ticket()));
  SLUICE_TRY(const Answer comes, receive_value<Answer>(group, rank));
  if (comes != Answer::kYes) return false;
  const Expected<void> given = segment.hand_over(std::chrono::steady_clock::now() + kHandOver);
  SLUICE_TRY(const Answer has_it, receive_value<Answer>(group, rank));
  return given && has_it == Answer::kYes;
}

// Rank 0: the segment if all have it, else null and why not.
Expected<Segment> share_memory(RankGroup& group, size_t bytes, std::string& why) {
  Expected<Segment> made = SharedSegment::make(bytes);
  if (!made) why = made.error().message;
  for (int32_t rank = 1; rank < group.size(); ++rank) {
    if (!made) {
      SLUICE_TRY_VOID(send_value(group, rank, SharedSegment::Ticket{}));
      continue;
    }
    SLUICE_TRY(const bool has_it, offer(group, rank, **made));
    if (!has_it && why.empty()) {
      why = "rank " + std::to_string(rank) + " shares no memory with rank 0";
    }
  }
  const Answer all = why.empty() ? Answer::kYes : Answer::kNo;
  for (int32_t rank = 1; rank < group.size(); ++rank) {
    SLUICE_TRY_VOID(send_value(group, rank, all));
  }
  return all == Answer::kYes ? std::move(*made) : nullptr;
}

// A follower: takes the segment that rank 0 offers; null if not all have it.
Expected<Segment> take_memory(RankGroup& group, size_t bytes) {
  // Rank 0 waits for all to load: the connection for life bounds this.
  SLUICE_TRY(const auto ticket,
             receive_value<SharedSegment::Ticket>(group, 0, std::chrono::hours(24)));
  Segment segment;
  if (ticket.bytes != 0) {
    Expected<std::unique_ptr<GroupSocket>> door = make_error(ErrorCode::kDataLoss, "its size");
    if (ticket.bytes == bytes) door = SharedSegment::knock(ticket);
    SLUICE_TRY_VOID(send_value(group, 0, door ? Answer::kYes : Answer::kNo));
    if (door) {
      Expected<Segment> taken =
          SharedSegment::take(**door, ticket, std::chrono::steady_clock::now() + kHandOver);
      if (taken) segment = std::move(*taken);
      SLUICE_TRY_VOID(send_value(group, 0, segment ? Answer::kYes : Answer::kNo));
    }
  }
  SLUICE_TRY(const Answer all, receive_value<Answer>(group, 0));
  return all == Answer::kYes ? std::move(segment) : nullptr;
}

}  // namespace

int64_t rank_transport_bytes(int32_t size, const ExchangeSizes& sizes) {
  const int64_t shared = shared_bytes(size, sizes);
  if (sizes.returned_bytes > 0) return shared;
  return std::max(shared, stream_rank_bytes(size, sizes.part_bytes));
}

Expected<RankTransport> connect_processes(RankGroup& group,
                                          const std::string& transport,
                                          const ExchangeSizes& sizes) {
  Segment segment;
  std::string why;
  if (transport != "tcp") {
    const auto bytes = static_cast<size_t>(shared_bytes(group.size(), sizes));
    SLUICE_TRY(segment,
               group.rank() == 0 ? share_memory(group, bytes, why) : take_memory(group, bytes));
  }
  if (!segment && transport == "shm") {
    // A follower learns the reason from rank 0, which fails the group.
    if (group.rank() == 0) group.fail("--kv-transport shm: " + why);
    return make_error(
        ErrorCode::kUnsupported,
        "--kv-transport shm: " + (why.empty() ? "not all ranks share memory with rank 0" : why),
        "kv-transport");
  }
  RankTransport made = {.rank = nullptr,
                        .name = std::string(segment ? kSharedMemory : kTcp),
                        .reason = why.empty() ? "--kv-transport " + transport : why};
  log_event(LogLevel::kInfo, "ranks_connected", "by", made.name, "reason", made.reason);
  if (sizes.returned_bytes > 0) {
    made.rank =
        segment ? make_shared_stage(group, std::move(segment), sizes) : make_stream_stage(group);
  } else {
    made.rank = segment ? make_shared_rank(group, std::move(segment), sizes.part_bytes)
                        : make_stream_rank(group);
  }
  return made;
}

}  // namespace sluice
