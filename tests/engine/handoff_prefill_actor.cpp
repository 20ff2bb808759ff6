// SPDX-License-Identifier: Apache-2.0
// The prefill worker's side of a step.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "tests/engine/handoff_actor.h"

namespace sluice::model {
namespace {

constexpr KvKey kKeys[2] = {{1}, {2}};

Content content_of(uint8_t prompt) { return prompt == 0 ? Content::kRight : Content::kOtherPrompt; }

}  // namespace

PrefillEvent Actor::p_event(PKind kind) const {
  PrefillEvent event;
  event.kind = kind;
  event.peer = stream(l, pair_);
  event.key = kKeys[l.p_prompt];
  return event;
}

void Actor::cut_claim(PrefillEvent& event, int first) const {
  event.num_parts = world_.rules_.num_parts - first;
  event.num_ready = std::max(0, l.p_steps - first);
  event.is_cached = true;
  for (int block = first; block < world_.rules_.num_parts; ++block) {
    event.is_cached = event.is_cached && l.p_blocks[block] == content_of(l.p_prompt);
  }
}

void Actor::advance_p(const PrefillEvent& event, const Message* message) {
  const PrefillWorker worker{.epoch = pair_.p_epoch,
                             .is_draining = pair_.p_draining,
                             .takes_early_claims = !l.p_over_quota,
                             .times = {}};
  const bool was_queued = l.p.is_queued;
  const PrefillActions actions = advance(l.p, event, worker);
  if (event.kind == PKind::kClaim && l.p.is_claimed && l.p.attempt == event.attempt &&
      l.p.peer == event.peer) {
    l.p_first = message->first;
  }
  if (event.kind == PKind::kClaim && l.p.is_queued && l.p.queued_attempt == event.attempt) {
    l.p_queued_first = message->first;
  }
  if (was_queued && !l.p.is_queued && l.p.is_claimed) l.p_first = l.p_queued_first;
  for (const PrefillAction& action : actions) {
    if (event.kind == PKind::kClaim && action.kind == PDo::kAccept) {
      check(event.epoch == 0 || event.epoch == pair_.p_epoch,
            "a claim for another epoch was accepted");
    }
    act(action, message);
  }
  if (unread_.empty()) return;
  const std::vector<int> blocks = std::exchange(unread_, {});
  const uint32_t attempt = l.p.attempt;
  for (const int block : blocks) {
    PrefillEvent read = p_event(PKind::kPartRead);
    read.attempt = attempt;
    read.part = block;
    advance_p(read, nullptr);
  }
  advance_p(p_event(PKind::kLost), nullptr);
}

void Actor::begin_reading(int part, Credit credit) {
  const int block = l.p_first + part;
  if (l.p_blocks[block] != content_of(l.p_prompt)) {
    unread_.push_back(block);
    return;
  }
  for (Reading& reading : l.readings) {
    if (reading.is_active != 0) continue;
    reading = {.is_active = 1,
               .block = static_cast<uint8_t>(block),
               .slot = credit.slot,
               .generation = credit.generation,
               .attempt = static_cast<uint8_t>(l.p.attempt)};
    return;
  }
  SLUICE_UNREACHABLE("more readings than places");
}

void Actor::act(const PrefillAction& action, const Message* message) {
  switch (action.kind) {
    case PDo::kRunAlone:
      l.p_is_part = false;
      break;
    case PDo::kAccept:
      send_to_decode(action, Type::kAccept);
      break;
    case PDo::kRefuse:
      send_to_decode(action, Type::kRefuse);
      break;
    case PDo::kFinalOk:
      send_to_decode(action, Type::kFinalOk);
      break;
    case PDo::kFinalFailed:
      send_to_decode(action, Type::kFinalFailed);
      break;
    case PDo::kReleased:
    case PDo::kRenewAck:
      break;  // nothing waits for them
    case PDo::kPinAll:
      l.p_is_pinned = !l.p_over_quota;
      break;
    case PDo::kUnpinAll:
      l.p_is_pinned = false;
      break;
    case PDo::kPinPart:
      for (int i = 0; i < action.count; ++i) ++l.p_pins[l.p_first + action.part + i];
      break;
    case PDo::kUnpinPart: {
      uint8_t& pins = l.p_pins[action.part];  // kPartRead counts blocks from the prompt's first
      check(pins > 0, "a part is unpinned that was not pinned");
      pins -= pins > 0 ? 1 : 0;
      break;
    }
    case PDo::kReadPart:
      for (int i = 0; i < action.count; ++i) {
        check(l.num_credits > 0, "a part is read that has no slot");
        if (l.num_credits == 0) return;
        const Credit credit = l.credits[0];
        std::shift_left(l.credits.begin(), l.credits.end(), 1);
        l.credits[--l.num_credits] = {};
        begin_reading(action.part + i, credit);
      }
      break;
    case PDo::kReadNaked:
      begin_reading(action.part, {.slot = message->slot, .generation = message->generation});
      break;
    case PDo::kKeepCredits:
      CHECK_LT(l.num_credits, kMaxCredits);
      l.credits[l.num_credits++] = {.slot = message->slot, .generation = message->generation};
      break;
    case PDo::kDropCredits:
      l.credits = {};
      l.num_credits = 0;
      break;
    case PDo::kAbortReading:
      for (Reading& reading : l.readings) reading.is_aborted = reading.is_active;
      break;
  }
}

void Actor::p_request(uint8_t prompt) {
  l.p_request = Coming::kLives;
  l.p_prompt = prompt;
  l.p_is_part = true;
  l.p_steps = 0;
  PrefillEvent event = p_event(PKind::kAdmitted);
  cut_claim(event, l.p_first);
  advance_p(event, nullptr);
}

void Actor::p_step() {
  l.p_blocks[l.p_steps] = content_of(l.p_prompt);
  ++l.p_steps;
  if (!l.p_is_part) return;
  PrefillEvent event = p_event(PKind::kReady);
  cut_claim(event, l.p_first);
  advance_p(event, nullptr);
}

void Actor::p_end(bool ok) {
  if (l.p_is_part) advance_p(p_event(ok ? PKind::kEnded : PKind::kFailed), nullptr);
  if (ok && l.p_is_part && !world_.rules_.is_early) l.blob_epoch = pair_.p_epoch;
  l.p_request = Coming::kOver;
}

void Actor::p_read(Reading& reading) {
  const Reading done = std::exchange(reading, {});
  check(l.p_blocks[done.block] == content_of(l.p_prompt),
        "a part was read from blocks that had been given away");
  // What is aborted may have been sent all the same, which is the other step.
  if (done.is_aborted == 0) {
    send({.type = Type::kFrame,
          .attempt = done.attempt,
          .slot = done.slot,
          .generation = done.generation,
          .block = done.block,
          .content = l.p_blocks[done.block]});
  }
  PrefillEvent event = p_event(PKind::kPartRead);
  event.attempt = done.attempt;
  event.part = done.block;
  cut_claim(event, l.p_queued_first);
  advance_p(event, nullptr);
}

void Actor::deliver_to_prefill(const Message& message) {
  PrefillEvent event = p_event(PKind::kClaim);
  event.attempt = message.attempt;
  const bool has_slot = message.type == Type::kCredit || message.type == Type::kNak;
  if (has_slot && message.generation <= l.p_seen[message.slot]) return;  // it came before
  switch (message.type) {
    case Type::kClaim:
      event.epoch = message.epoch;
      event.key = kKeys[0];
      cut_claim(event, message.first);
      break;
    case Type::kCredit:
      event.kind = PKind::kCredit;
      event.num_credits = 1;
      break;
    case Type::kNak:
      event.kind = PKind::kNak;
      event.part = message.block - l.p_first;
      break;
    case Type::kRenew:
      event.kind = PKind::kRenew;
      break;
    case Type::kRelease:
      event.kind = PKind::kRelease;
      break;
    default:
      event.kind = PKind::kCancel;
      break;
  }
  if (has_slot) l.p_seen[message.slot] = message.generation;
  advance_p(event, &message);
}

}  // namespace sluice::model
