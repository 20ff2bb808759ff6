// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/handoff_model.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace sluice::model {
namespace {

using PKind = PrefillEvent::Kind;
using PDo = PrefillAction::Kind;
using DKind = DecodeEvent::Kind;
using DDo = DecodeAction::Kind;
using Type = Message::Type;

constexpr KvKey kKeys[2] = {{1}, {2}};

bool is_to_prefill(Type type) { return type < Type::kAccept; }

Content content_of(uint8_t prompt) { return prompt == 0 ? Content::kRight : Content::kOtherPrompt; }

uint8_t bit(int number) { return static_cast<uint8_t>(1U << number); }

}  // namespace

// One step of one transfer, and whatever follows from it at once.
class Actor {
 public:
  Actor(World& world, const Local& local, const Pair& pair, int self)
      : world_(world), self_(self), l(out_.local), pair_(out_.pair) {
    l = local;
    pair_ = pair;
  }

  Outcome make(Move move);

 private:
  void fail(const char* what) {
    if (out_.violation.empty()) out_.violation = what;
  }

  void check(bool condition, const char* what) {
    if (!condition) fail(what);
  }

  void send(const Message& message) {
    const size_t number = world_.number_of(message);
    l.net[number / 64] |= uint64_t{1} << (number % 64);
  }

  void send_to_decode(const PrefillAction& action, Type type) {
    if (action.peer != stream(l, pair_)) return;  // nobody is there
    send({.type = type, .attempt = static_cast<uint8_t>(action.attempt), .reason = action.reason});
  }

  void send_to_prefill(Message message) {
    if (l.d.peer == stream(l, pair_)) send(message);
  }

  // The prefill worker.
  PrefillEvent p_event(PKind kind) const;
  void advance_p(const PrefillEvent& event, const Message* message);
  void act(const PrefillAction& action, const Message* message);
  void begin_reading(int part, Credit credit);
  void p_request(uint8_t prompt);
  void p_step();
  void p_end(bool ok);
  void p_read(Reading& reading);
  void deliver_to_prefill(const Message& message);
  void cut_claim(PrefillEvent& event, int first) const;

  // The decode worker.
  DecodeEvent d_event(DKind kind) const;
  void advance_d(const DecodeEvent& event, const Message* message);
  void act(const DecodeAction& action, const Message* message);
  void keep_front();
  void leave_room();
  void d_request();
  void d_preempt();
  void d_over();
  void d_slots_back();
  void deliver_to_decode(const Message& message, bool is_spoiled);
  void frame(const Message& message, bool is_spoiled);

  void restart_p();
  void restart_d();
  void forget_times();
  void check_all();
  void check_p();
  void check_d();

  World& world_;
  const int self_;
  Outcome out_;
  Local& l;
  Pair& pair_;
  std::vector<int> unread_;  // blocks of parts that were gone
};

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
      l.d_asked = true;
      break;
    case DDo::kPost:
      for (int i = 0; i < action.count; ++i) {
        const auto free = std::ranges::find(pair_.slots, 0, &Slot::owner);
        const auto number = static_cast<uint8_t>(free - pair_.slots.begin());
        CHECK_LT(number, world_.rules_.num_slots);
        const auto generation = static_cast<uint8_t>(free->generation + 1);
        *free = {
            .owner = static_cast<uint8_t>(self_ + 1), .generation = generation, .attempt = attempt};
        send_to_prefill(
            {.type = Type::kCredit, .attempt = attempt, .slot = number, .generation = generation});
      }
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
      keep_front();
      break;
    case DDo::kFallBack:
      keep_front();
      l.d_asked = false;
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
  leave_room();
  advance_d(d_event(DKind::kPreempted), nullptr);
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

// The streams to a worker that ends are gone, and what was on its way on them. Frames may still
// come on a connection of their own.
void Actor::restart_p() {
  l.p = {};
  l.p_request = Coming::kToCome;
  l.p_is_part = false;
  l.p_prompt = 0;
  l.p_steps = 0;
  l.p_first = 0;
  l.p_queued_first = 0;
  l.p_is_pinned = false;
  l.p_over_quota = false;
  l.p_blocks = {};
  l.p_pins = {};
  l.readings = {};
  l.credits = {};
  l.num_credits = 0;
  l.p_seen = {};
  for (size_t i = 0; i < world_.messages_.size(); ++i) {
    if (world_.messages_[i].type == Type::kFrame) continue;
    l.net[i / 64] &= ~(uint64_t{1} << (i % 64));
  }
}

void Actor::restart_d() {
  l.d = {};
  l.net = {};
  l.p_seen = {};
  l.d_request = Coming::kToCome;
  l.d_asked = false;
  l.d_has_room = false;
  l.d_first = 0;
  l.d_findable = 0;
  l.d_aborting = 0;
  l.d_blocks = {};
}

// Time stands still here: when a timer may be due is the checker's to choose.
void Actor::forget_times() {
  l.p.timer_ms = 0;
  l.p.lease_end_ms = 0;
  l.p.lease_limit_ms = 0;
  l.d.timer_ms = 0;
  l.d.renewal_ms = 0;
}

void Actor::check_p() {
  const auto num_readings = std::ranges::count(l.readings, 1, &Reading::is_active);
  check(num_readings == l.p.num_reading + l.p.num_reading_old,
        "the machine counts other readings than there are");
  check(l.num_credits == l.p.num_credits, "the machine counts other credits than there are");
  for (const Reading& reading : l.readings) {
    check(reading.is_active == 0 || l.p_pins[reading.block] > 0, "a part is read without a pin");
  }
  const bool is_idle = l.p.phase == PrefillPhase::kNone || l.p.phase == PrefillPhase::kGone;
  check(!is_idle || (num_readings == 0 && !l.p_is_pinned && l.num_credits == 0),
        "a handoff is over and holds blocks");
  check(l.p.phase != PrefillPhase::kExpected || l.p.is_claimed, "nobody is expected");
}

void Actor::check_d() {
  int num_slots = 0;
  for (const Slot& slot : pair_.slots) num_slots += slot.owner == self_ + 1 ? 1 : 0;
  check(num_slots == l.d.num_posted + l.d.num_posted_old,
        "the machine counts other slots than are posted");
  const auto is_current = [&](const Slot& slot) {
    return slot.owner == self_ + 1 && slot.attempt == l.d.attempt;
  };
  check(l.d.phase != DecodePhase::kReceiving ||
            std::ranges::count_if(pair_.slots, is_current) == l.d.num_posted,
        "the machine counts slots of another attempt");
  for (int block = 0; block < kMaxParts; ++block) {
    check((l.d_findable & bit(block)) == 0 || l.d_blocks[block] == Content::kRight,
          "wrong content is findable");
  }
  check(!is_over(l.d) || (num_slots == 0 && !l.d_has_room), "a request is over and holds room");
}

void Actor::check_all() {
  check_p();
  check_d();
}

Outcome Actor::make(Move move) {
  switch (move.step) {
    case Step::kPRequest:
      p_request(0);
      break;
    case Step::kPOtherPrompt:
      p_request(1);
      break;
    case Step::kPStep:
      p_step();
      break;
    case Step::kPEnd:
      p_end(true);
      break;
    case Step::kPFail:
      p_end(false);
      break;
    case Step::kPRead:
      p_read(l.readings[move.argument]);
      break;
    case Step::kPTimer:
      advance_p(p_event(PKind::kTimer), nullptr);
      break;
    case Step::kPEvict:
      l.p_blocks[move.argument] = Content::kForeign;
      break;
    case Step::kPQuota:
      l.p_over_quota = true;
      break;
    case Step::kPForget:
      advance_p(p_event(PKind::kForget), nullptr);
      break;
    case Step::kPPeerDead: {
      PrefillEvent event = p_event(PKind::kPeerDead);
      event.peer = l.p.peer;
      advance_p(event, nullptr);
      break;
    }
    case Step::kDRequest:
      d_request();
      break;
    case Step::kDRoom:
      l.d_asked = false;
      l.d_has_room = true;
      ++pair_.room_used;
      advance_d(d_event(DKind::kRoom), nullptr);
      break;
    case Step::kDTimer: {
      DecodeEvent event = d_event(DKind::kTimer);
      if (move.argument != 0) event.now_ms = std::max(l.d.total_end_ms, l.d.again_end_ms);
      const auto gap = std::ranges::find(l.d_blocks, Content::kNothing);
      event.num_parts = world_.rules_.num_parts - static_cast<int32_t>(gap - l.d_blocks.begin());
      event.num_parts = std::max(event.num_parts, 0);
      advance_d(event, nullptr);
      break;
    }
    case Step::kDRenewal:
      advance_d(d_event(DKind::kRenewal), nullptr);
      break;
    case Step::kDTail:
    case Step::kDTailSpoiled: {
      DecodeEvent event = d_event(DKind::kTail);
      event.agrees = move.step == Step::kDTail;
      advance_d(event, nullptr);
      check(event.agrees || l.d_findable == 0, "blocks with another first token stay findable");
      break;
    }
    case Step::kDPreempt:
      d_preempt();
      break;
    case Step::kDAbort:
    case Step::kDFinish:
      d_over();
      break;
    case Step::kDSlotsBack:
      d_slots_back();
      break;
    case Step::kDSlotsFree:
      advance_d(d_event(DKind::kSlotsFree), nullptr);
      break;
    case Step::kDPeerGone: {
      DecodeEvent event = d_event(DKind::kPeerGone);
      event.peer = l.d.peer;
      advance_d(event, nullptr);
      break;
    }
    case Step::kDeliver:
    case Step::kFlip: {
      const Message message = world_.message(move.argument);
      if (is_to_prefill(message.type)) {
        deliver_to_prefill(message);
      } else {
        deliver_to_decode(message, move.step == Step::kFlip);
      }
      break;
    }
    case Step::kCut:
      ++l.num_cuts;
      for (size_t i = 0; i < world_.messages_.size(); ++i) {
        if (world_.messages_[i].type == Type::kFrame) continue;
        l.net[i / 64] &= ~(uint64_t{1} << (i % 64));
      }
      break;
    case Step::kPRestarted:
      restart_p();
      break;
    case Step::kDRestarted:
      restart_d();
      break;
    case Step::kPDraining:
      advance_p(p_event(PKind::kDraining), nullptr);
      break;
    case Step::kDDraining:
      advance_d(d_event(DKind::kDraining), nullptr);
      break;
  }
  forget_times();
  check_all();
  return std::move(out_);
}

Outcome World::make(const Local& local, const Pair& pair, int self, Move move) {
  return Actor(*this, local, pair, self).make(move);
}

}  // namespace sluice::model
