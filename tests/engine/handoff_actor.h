// SPDX-License-Identifier: Apache-2.0
// One step of one transfer in the world of handoff_model.h, and whatever follows from it at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/engine/handoff_model.h"

namespace sluice::model {

using PKind = PrefillEvent::Kind;
using PDo = PrefillAction::Kind;
using DKind = DecodeEvent::Kind;
using DDo = DecodeAction::Kind;
using Type = Message::Type;

inline uint8_t bit(int number) { return static_cast<uint8_t>(1U << number); }

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
  void post(int count, uint8_t attempt);
  void keep_front();
  void leave_room();
  void d_request();
  void d_preempt();
  void d_over();
  void d_slots_back();
  void deliver_to_decode(const Message& message, bool is_spoiled);
  void frame(const Message& message, bool is_spoiled);

  // What a move does at either worker, to the stream between them, or to a worker as a whole.
  void step_prefill(Move move);
  void step_decode(Move move);
  void step_between(Move move);

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

}  // namespace sluice::model
