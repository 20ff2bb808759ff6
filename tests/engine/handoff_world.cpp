// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include "engine/core/status.h"
#include "tests/engine/handoff_model.h"

namespace sluice::model {
namespace {

bool has(const Local& local, size_t number) {
  return (local.net[number / 64] >> (number % 64) & 1) != 0;
}

bool is_owned(const Local& local, int block) {
  return local.p_request == Coming::kLives && block < local.p_steps;
}

bool may_be_evicted(const Local& local, int block) {
  const Content content = local.p_blocks[block];
  return (content == Content::kRight || content == Content::kOtherPrompt) &&
         !is_owned(local, block) && local.p_pins[block] == 0 && !local.p_is_pinned;
}

template <typename Value>
void append_value(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The model's prompts differ in a key's first byte.
void append_value(std::string& bytes, const KvKey& key) { append_value(bytes, key[0]); }

template <typename... Values>
void append(std::string& bytes, const Values&... values) {
  (append_value(bytes, values), ...);
}

// Defines pack_state() by the names of all fields.
#define SLUICE_PACK(State, ...)                              \
  void pack_state(const State& state, std::string& bytes) {  \
    const auto& [__VA_ARGS__] = state;                       \
    append(bytes, __VA_ARGS__);                              \
  }
SLUICE_PACK(PrefillState,
            phase, is_claimed, has_ended, is_pinned, owes_released, is_queued, peer, attempt,
            queued_attempt, key, num_parts, num_ready, num_begun, num_credits, num_reading,
            num_reading_old, timer, lease_end, lease_limit)
SLUICE_PACK(DecodeState,
            phase, is_early, asks_again, has_room, has_final, peer, attempt, num_claims, parts,
            num_received, num_posted, num_posted_old, num_spoiled, timer, renewal, again_end,
            total_end)
#undef SLUICE_PACK

}  // namespace

KvPeerId stream(const Local& local, const Pair& pair) {
  return KvPeerId(1 + local.num_cuts + 4 * (pair.d_epoch + 4 * pair.p_epoch));
}

uint8_t World::number_of(const Message& message) {
  const auto found = std::ranges::find(messages_, message);
  if (found == messages_.end()) {
    CHECK_LT(messages_.size(), static_cast<size_t>(64 * kNetWords));
    messages_.push_back(message);
    return static_cast<uint8_t>(messages_.size() - 1);
  }
  return static_cast<uint8_t>(found - messages_.begin());
}

void World::list_moves(const Local& l, const Pair& pair, std::vector<Move>& moves) const {
  moves.clear();
  const auto add = [&](Step step, int argument = 0, bool is_fault = false) {
    moves.push_back(
        {.step = step, .argument = static_cast<uint8_t>(argument), .is_fault = is_fault});
  };
  const auto add_fault = [&](Step step, int argument = 0) { add(step, argument, true); };
  const bool timers = rules_.timers_are_faults;
  if (l.p_request == Coming::kToCome) {
    add(Step::kPRequest);
    add_fault(Step::kPOtherPrompt);
  }
  if (l.p_request == Coming::kLives) {
    add(l.p_steps < rules_.num_parts ? Step::kPStep : Step::kPEnd);
    add_fault(Step::kPFail);
  }
  for (int i = 0; i < kMaxReadings; ++i) {
    if (l.readings[i].is_active != 0) add(Step::kPRead, i);
  }
  if (next_timer(l.p)) add(Step::kPTimer, 0, timers);
  for (int block = 0; block < rules_.num_parts; ++block) {
    if (may_be_evicted(l, block)) add_fault(Step::kPEvict, block);
  }
  if (!l.p_over_quota) add_fault(Step::kPQuota);
  if (l.p.phase == PrefillPhase::kGone) add_fault(Step::kPForget);
  if (l.p.peer != KvPeerId() && l.p.peer != stream(l, pair)) add(Step::kPPeerDead);
  const bool may_ask = rules_.is_early || l.blob_epoch != 0;
  if (l.d_request == Coming::kToCome && may_ask) add(Step::kDRequest);
  if (l.d_asked && pair.room_used < rules_.room) add(Step::kDRoom);
  if (next_timer(l.d)) {
    add(Step::kDTimer, 0, timers);
    const bool looks_at_time = l.d.phase == DecodePhase::kReceiving || l.d.asks_again;
    if (looks_at_time) add(Step::kDTimer, 1, timers);
  }
  if (next_renewal(l.d)) add(Step::kDRenewal, 0, timers);
  if (l.d.phase == DecodePhase::kLanded) {
    add(Step::kDTail);
    add_fault(Step::kDTailSpoiled);
  }
  if (l.d_has_room) add_fault(Step::kDPreempt);
  const bool is_ordinary = l.d.phase == DecodePhase::kRun || l.d.phase == DecodePhase::kFallback;
  if (l.d_request == Coming::kLives) is_ordinary ? add(Step::kDFinish) : add_fault(Step::kDAbort);
  if (l.d_aborting != 0) add(Step::kDSlotsBack);
  const bool wants_slots =
      l.d.phase == DecodePhase::kReceiving && l.d.num_parts > l.d.num_received + l.d.num_posted &&
      std::any_of(pair.slots.begin(), pair.slots.begin() + rules_.num_slots, [](const Slot& slot) {
        return slot.owner == 0;
      });
  if (wants_slots) add(Step::kDSlotsFree);
  if (l.d.peer != KvPeerId() && l.d.peer != stream(l, pair)) add(Step::kDPeerGone);
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!has(l, i)) continue;
    add(Step::kDeliver, static_cast<int>(i));
    if (messages_[i].type == Message::Type::kFrame) add_fault(Step::kFlip, static_cast<int>(i));
  }
  if (l.num_cuts == 0) add_fault(Step::kCut);
}

bool World::waits_for_room(const Local& local, const Pair& pair) const {
  return local.d_asked && pair.room_used >= rules_.room;
}

bool World::next_alone(const Local& l, const Pair& pair, Move& move) const {
  std::vector<Move> moves;
  list_moves(l, pair, moves);
  // The last timer of all that there is; and the workers' own steps before any timer.
  constexpr Step kOrder[] = {Step::kPRead,
                             Step::kPStep,
                             Step::kPEnd,
                             Step::kDSlotsBack,
                             Step::kDTail,
                             Step::kDFinish,
                             Step::kDRoom,
                             Step::kDTimer,
                             Step::kPTimer};
  for (const Step step : kOrder) {
    for (auto found = moves.rbegin(); found != moves.rend(); ++found) {
      if (found->step != step) continue;
      move = *found;
      return true;
    }
  }
  return false;
}

bool World::is_at_rest(const Local& l, const Pair& pair, int self) {
  const bool p_rests = (l.p.phase == PrefillPhase::kNone || l.p.phase == PrefillPhase::kGone) &&
                       l.p_request != Coming::kLives;
  const bool d_rests =
      (l.d.phase == DecodePhase::kNone || is_over(l.d)) && l.d_request != Coming::kLives;
  const bool has_pins = l.p_is_pinned || std::ranges::any_of(l.p_pins, [](int n) { return n > 0; });
  const bool has_slots =
      std::ranges::any_of(pair.slots, [&](const Slot& slot) { return slot.owner == self + 1; });
  return p_rests && d_rests && !has_pins && !has_slots && !l.d_has_room && l.num_credits == 0 &&
         l.d_aborting == 0;
}

bool World::is_done(const Local& l) {
  return l.p_request == Coming::kOver && l.d_request == Coming::kOver && is_at_rest(l, {}, 0);
}

Local World::done() {
  Local local;
  local.p_request = Coming::kOver;
  local.d_request = Coming::kOver;
  local.p_over_quota = true;
  local.num_cuts = 1;
  return local;
}

void World::pack(const Local& l, std::string& bytes) {
  bytes.clear();
  pack_state(l.p, bytes);
  pack_state(l.d, bytes);
  append(bytes,
         l.net,
         l.p_request,
         l.p_is_part,
         l.p_prompt,
         l.p_steps,
         l.p_first,
         l.p_queued_first,
         l.p_is_pinned,
         l.p_over_quota,
         l.p_blocks,
         l.p_pins,
         l.readings,
         l.credits,
         l.num_credits,
         l.p_seen,
         l.d_request,
         l.d_asked,
         l.d_has_room,
         l.d_first,
         l.d_findable,
         l.d_aborting,
         l.d_blocks,
         l.blob_epoch,
         l.num_cuts);
}

std::string World::describe(Move move) const {
  static constexpr const char* kSteps[] = {"P gets its request",
                                           "P gets a request of that id with another prompt",
                                           "P computes a part",
                                           "P's prefill ends",
                                           "P's request fails",
                                           "P has read",
                                           "P's timer",
                                           "P evicts block",
                                           "P is short of room",
                                           "P forgets",
                                           "P hears that its peer is dead",
                                           "D gets its request",
                                           "D's request has room",
                                           "D's timer",
                                           "D's renewal is due",
                                           "D has computed the tail",
                                           "D finds another first token",
                                           "D preempts",
                                           "D's client is gone",
                                           "D's answer is complete",
                                           "D's slots are back",
                                           "D's slots of others are free",
                                           "D hears that its peer is gone",
                                           "arrives:",
                                           "arrives spoiled:",
                                           "the stream is cut",
                                           "P is started again",
                                           "D is started again",
                                           "P drains",
                                           "D drains"};
  static constexpr const char* kTypes[] = {"Claim",
                                           "Credit",
                                           "Nak",
                                           "Renew",
                                           "Release",
                                           "Cancel",
                                           "Accept",
                                           "Refuse",
                                           "FinalOk",
                                           "FinalFailed",
                                           "frame"};
  std::ostringstream out;
  out << kSteps[static_cast<size_t>(move.step)];
  if (move.step == Step::kDeliver || move.step == Step::kFlip) {
    const Message& m = messages_[move.argument];
    out << ' ' << kTypes[static_cast<size_t>(m.type)] << " of attempt " << +m.attempt << " slot "
        << +m.slot << '.' << +m.generation << " block " << +m.block;
    if (m.type == Message::Type::kRefuse) out << ' ' << to_string(m.reason);
  } else {
    out << ' ' << +move.argument;
  }
  return out.str();
}

std::string World::describe(const Local& l, const Pair& pair) {
  std::ostringstream out;
  out << "P: phase " << static_cast<int>(l.p.phase) << " claimed " << l.p.is_claimed << " attempt "
      << l.p.attempt << " ready " << l.p.num_ready << '/' << l.p.num_parts << " begun "
      << l.p.num_begun << " credits " << l.p.num_credits << " reading " << l.p.num_reading << '+'
      << l.p.num_reading_old << "; D: phase " << static_cast<int>(l.d.phase) << " attempt "
      << l.d.attempt << " received " << l.d.num_received << '/' << l.d.num_parts << " posted "
      << l.d.num_posted << '+' << l.d.num_posted_old << " final " << l.d.has_final << " room "
      << l.d_has_room << "; room used " << +pair.room_used;
  return out.str();
}

}  // namespace sluice::model
