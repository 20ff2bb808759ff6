// SPDX-License-Identifier: Apache-2.0
// Values that one rank of a group sends another while the processes connect, before the first step.
// kUnavailable: the group has failed, the message says why.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/parallel/rank_group.h"

namespace sluice {

// A wait while ranks load: the connection for life bounds it.
inline constexpr std::chrono::hours kWhileLoading{24};

inline tl::unexpected<Error> group_error(const RankGroup& group) {
  return make_error(ErrorCode::kUnavailable, group.why());
}

template <typename Value>
Expected<void> send_value(RankGroup& group, int32_t rank, const Value& value) {
  if (group.send(rank, std::as_bytes(std::span(&value, 1)))) return {};
  return group_error(group);
}

template <typename Value>
Expected<Value> receive_value(RankGroup& group,
                              int32_t rank,
                              std::chrono::seconds within = RankGroup::kExchange) {
  Value value{};
  if (group.receive(rank, std::as_writable_bytes(std::span(&value, 1)), within)) return value;
  return group_error(group);
}

}  // namespace sluice
