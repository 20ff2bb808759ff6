// SPDX-License-Identifier: Apache-2.0
// The decode worker's side of a step.
#include <algorithm>

#include "engine/core/status.h"
#include "tests/engine/handoff_actor.h"

namespace sluice::model {

DecodeEvent Actor::d_event(DKind kind) const {
  DecodeEvent event;
  event.kind = kind;
  event.peer = stream(l, pair_);
  return event;
}

void Actor::advance_d(const DecodeEvent& event, const Message* message) {
  const uint32_t attempt = l.d.attempt;
  DecodeWorker worker;
  for (int slot = 0; slot < world_.rules_.num_slots; ++slot) {
    worker.num_free_slots += pair_.slots[slot].owner == 0 ? 1 : 0;
  }
  worker.times.max_attempts = world_.rules_.max_attempts;
  worker.times.max_claims = 2;
  const DecodeActions actions = advance(l.d, event, worker);
  if (l.d.attempt != attempt) {
    l.d_first = static_cast<uint8_t>(world_.rules_.num_parts - l.d.num_parts);
    for (int block = l.d_first; block < kMaxParts; ++block) l.d_blocks[block] = Content::kNothing;
  }
  for (const DecodeAction& action : actions) act(action, message);
}

void Actor::keep_front() {
  for (int block = 0; block < world_.rules_.num_parts; ++block) {
    if (l.d_blocks[block] == Content::kNothing) break;
    l.d_findable |= bit(block);
  }
}

void Actor::post(int count, uint8_t attempt) {
  for (int i = 0; i < count; ++i) {
    const auto free = std::ranges::find(pair_.slots, 0, &Slot::owner);
    const auto number = static_cast<uint8_t>(free - pair_.slots.begin());
    CHECK_LT(number, world_.rules_.num_slots);
    const auto generation = static_cast<uint8_t>(free->generation + 1);
    *free = {
        .owner = static_cast<uint8_t>(self_ + 1), .generation = generation, .attempt = attempt};
    send_to_prefill(
        {.type = Type::kCredit, .attempt = attempt, .slot = number, .generation = generation});
  }
}

void Actor::act(const DecodeAction& action, const Message* message) {
  const auto attempt = static_cast<uint8_t>(action.attempt);
  switch (action.kind) {
    case DDo::kClaim:
      send_to_prefill({.type = Type::kClaim,
                       .attempt = attempt,
                       .epoch = world_.rules_.is_early ? uint8_t{0} : l.blob_epoch,
                       .first = l.d_first});
      break;
    case DDo::kRenew:
      send_to_prefill({.type = Type::kRenew, .attempt = attempt});
      break;
    case DDo::kRelease:
      for (int block = 0; block < world_.rules_.num_parts; ++block) {
        check(l.d_blocks[block] != Content::kNothing || l.d_findable == 0,
              "blocks are released that have not landed");
      }
      check(l.d.phase == DecodePhase::kLanded || l.d.phase == DecodePhase::kRun ||
                l.d.phase == DecodePhase::kFallback || l.d.phase == DecodePhase::kEnded,
            "blocks are released before they have landed");
      send_to_prefill({.type = Type::kRelease, .attempt = attempt});
      break;
    case DDo::kCancel:
      send_to_prefill({.type = Type::kCancel, .attempt = attempt});
      break;
    case DDo::kAskRoom:
      check(!l.d_has_room, "a request that has room asks for it");
      l.d_asked = true;
      break;
    case DDo::kPost:
      post(action.count, attempt);
      break;
    case DDo::kTakeIn:
    case DDo::kFreeSlot:
      if (action.kind == DDo::kTakeIn) l.d_blocks[message->block] = message->content;
      pair_.slots[message->slot].owner = 0;
      l.d_aborting &= static_cast<uint8_t>(~bit(message->slot));
      break;
    case DDo::kNak: {
      Slot& slot = pair_.slots[message->slot];
      slot.attempt = attempt;
      ++slot.generation;
      send_to_prefill({.type = Type::kNak,
                       .attempt = attempt,
                       .slot = message->slot,
                       .generation = slot.generation,
                       .block = message->block});
      break;
    }
    case DDo::kAbortLanding:
      for (int slot = 0; slot < world_.rules_.num_slots; ++slot) {
        if (pair_.slots[slot].owner == self_ + 1) l.d_aborting |= bit(slot);
      }
      break;
    case DDo::kLand:
    case DDo::kFallBack:
      keep_front();
      leave_room();
      break;
    case DDo::kDropBlocks:
      l.d_findable = 0;
      l.d_blocks = {};
      break;
  }
}

void Actor::leave_room() {
  pair_.room_used -= l.d_has_room ? 1 : 0;
  l.d_has_room = false;
  l.d_asked = false;
}

void Actor::d_request() {
  l.d_request = Coming::kLives;
  DecodeEvent event = d_event(DKind::kStart);
  event.is_early = world_.rules_.is_early;
  event.num_parts = world_.rules_.num_parts;
  l.d.peer = event.peer;
  advance_d(event, nullptr);
}

void Actor::d_preempt() {
  advance_d(d_event(DKind::kPreempted), nullptr);
  check(!l.d_has_room, "a request keeps the room that others need");
}

void Actor::d_over() {
  advance_d(d_event(DKind::kOver), nullptr);
  leave_room();
  l.d_request = Coming::kOver;
}

void Actor::d_slots_back() {
  for (uint8_t attempt = 1; attempt <= 2; ++attempt) {
    DecodeEvent event = d_event(DKind::kSlotsBack);
    event.attempt = attempt;
    for (int slot = 0; slot < world_.rules_.num_slots; ++slot) {
      if ((l.d_aborting & bit(slot)) == 0 || pair_.slots[slot].attempt != attempt) continue;
      pair_.slots[slot].owner = 0;
      l.d_aborting &= static_cast<uint8_t>(~bit(slot));
      ++event.num_slots;
    }
    if (event.num_slots > 0) advance_d(event, nullptr);
  }
}

void Actor::frame(const Message& message, bool is_spoiled) {
  const Slot& slot = pair_.slots[message.slot];
  const LandingSlot landing{.is_posted = slot.owner != 0,
                            .generation = slot.generation,
                            .attempt = slot.attempt,
                            .owner = slot.owner};
  if (!landing.awaits(static_cast<uint64_t>(self_) + 1, message.attempt, message.generation)) {
    return;
  }
  check(message.generation == slot.generation, "a part took a slot that waits for another one");
  Message arrived = message;
  if (is_spoiled) arrived.content = Content::kForeign;
  DecodeEvent event = d_event(DKind::kFrame);
  event.attempt = message.attempt;
  event.sums_agree = !is_spoiled;
  event.is_new = l.d_blocks[message.block] == Content::kNothing;
  advance_d(event, &arrived);
}

void Actor::deliver_to_decode(const Message& message, bool is_spoiled) {
  if (message.type == Type::kFrame) return frame(message, is_spoiled);
  DecodeEvent event = d_event(DKind::kAccept);
  event.attempt = message.attempt;
  event.reason = message.reason;
  if (message.type == Type::kRefuse) event.kind = DKind::kRefuse;
  if (message.type == Type::kFinalOk) event.kind = DKind::kFinalOk;
  if (message.type == Type::kFinalFailed) event.kind = DKind::kFinalFailed;
  advance_d(event, &message);
}

}  // namespace sluice::model
