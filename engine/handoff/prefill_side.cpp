// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/prefill_side.h"

#include <algorithm>
#include <random>
#include <utility>

#include "kvcache/kv_key.h"

namespace sluice {
namespace {

using Do = PrefillAction::Kind;

constexpr size_t kMostGone = 4096;
constexpr size_t kMostExpected = 1024;
constexpr size_t kMostExpectedOfPeer = 64;  // a flood hurts its own peer alone

KvTransferId draw_transfer() {
  std::random_device source;
  KvTransferId id{};
  for (size_t i = 0; i < id.size(); i += 4) {
    const uint32_t bits = source();
    for (size_t j = 0; j < 4; ++j) id[i + j] = static_cast<uint8_t>(bits >> (8 * j));
  }
  return id;
}

// The tokens that the largest group has blocks for: of earlier prompts nothing is cached.
int64_t most_tokens(std::span<const KvGroupSpec> groups, int32_t block_size) {
  int64_t most = 0;
  for (const KvGroupSpec& group : groups) {
    most = std::max(most, int64_t{group.num_blocks} * tokens_per_entry(group, block_size));
  }
  return most;
}

// Why a claim is over, by the event that ended it.
std::string_view outcome_of(PrefillEvent::Kind kind) {
  switch (kind) {
    case PrefillEvent::Kind::kRelease:
      return kTransferDone;
    case PrefillEvent::Kind::kCancel:
      return "cancelled";
    case PrefillEvent::Kind::kPeerDead:
      return "peer_gone";
    case PrefillEvent::Kind::kTimer:
      return "too_slow";
    case PrefillEvent::Kind::kDraining:
      return "draining";
    case PrefillEvent::Kind::kFailed:
      return "prefill_failed";
    default:
      return "lost";
  }
}

}  // namespace

PrefillSide::PrefillSide(std::string space,
                         const PrefillTimes& times,
                         const KvRanks& cache,
                         KvCacheManager& kv,
                         HandoffLinks& links,
                         HandoffStats& stats,
                         std::vector<KvTransferReport>& reports)
    : space_(std::move(space)),
      times_(times),
      cache_(cache),
      kv_(kv),
      links_(links),
      stats_(stats),
      reports_(reports),
      max_gone_tokens_(most_tokens(cache.groups(), kv.block_size())) {
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    block_bytes_.push_back(cache.block_bytes(group));
  }
}

PrefillSide::Record* PrefillSide::find(const KvTransferId& transfer) {
  for (Records* const records : {&records_, &gone_}) {
    const auto found = records->find(transfer);
    if (found != records->end()) return found->second.get();
  }
  return nullptr;
}

PrefillSide::Record* PrefillSide::find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : find(found->second);
}

PrefillEvent PrefillSide::event_of(Kind kind, int64_t now_ms) {
  PrefillEvent event;
  event.kind = kind;
  event.now_ms = now_ms;
  return event;
}

KvKey PrefillSide::key_of(const Record& record) const {
  KvKey key = kv_root_key(space_, record.extras);
  const auto size = static_cast<size_t>(kv_.block_size());
  for (size_t at = 0; at < record.tokens.size(); at += size) {
    key = kv_next_key(key, std::span(record.tokens).subspan(at, size));
  }
  return key;
}

std::vector<KvPart> PrefillSide::cut(const Record& record, const Claim& claim) const {
  const std::vector<int32_t> first(claim.message.first_blocks.begin(),
                                   claim.message.first_blocks.end());
  return cut_into_parts(
      kv_, static_cast<int32_t>(record.tokens.size()), first, block_bytes_, claim.slot_bytes);
}

bool PrefillSide::find_blocks(const Record& record,
                              const KvPart& part,
                              std::vector<KvBlockRef>& found) const {
  std::vector<KvBlockRef> all;
  // All of them, also while they are computed: which blocks of a window travel depends on its end.
  kv_.find_blocks(record.tokens, record.extras, {}, all);
  for (const KvBlockRef& ref : all) {
    if (ref.group == part.group && ref.entry >= part.entries.first &&
        ref.entry < part.entries.end()) {
      found.push_back(ref);
    }
  }
  return std::ssize(found) == part.entries.count;
}

bool PrefillSide::is_cached(const Record& record, std::span<const KvPart> parts) const {
  std::vector<KvBlockRef> found;
  return std::ranges::all_of(parts, [&](const KvPart& part) {
    found.clear();
    return find_blocks(record, part, found);
  });
}

bool PrefillSide::takes_early_claims(KvPeerId peer) const {
  size_t all = 0;
  size_t own = 0;
  for (const auto& [transfer, record] : records_) {
    if (record->state.phase != PrefillPhase::kExpected) continue;
    ++all;
    own += record->state.peer == peer ? 1 : 0;
  }
  return all < kMostExpected && own < kMostExpectedOfPeer;
}

// --- Requests ---------------------------------------------------------------------------------

bool PrefillSide::admit(const Request& request,
                        const HandoffSpec& spec,
                        int64_t now_ms,
                        const TraceContext& trace) {
  const int32_t num_tokens = kv_.max_transferred(request.num_prompt_tokens);
  if (num_tokens == 0) return false;  // nothing travels
  const bool is_serial = spec.mode == HandoffMode::kSerial;
  const bool is_unnamed = spec.transfer == KvTransferId{};
  const KvTransferId transfer = is_unnamed ? draw_transfer() : spec.transfer;
  Record* known = find(transfer);
  if (known == nullptr) known = (records_[transfer] = std::make_unique<Record>()).get();
  Record& record = *known;
  record.transfer = transfer;
  const bool may_take =
      record.state.phase == PrefillPhase::kNone || record.state.phase == PrefillPhase::kExpected;
  if (may_take) {
    record.is_serial = is_serial;
    record.trace = trace;
    record.request = request.id;
    record.tokens.assign(request.tokens().begin(), request.tokens().begin() + num_tokens);
    record.extras = request.extras;
    record.num_prompt_tokens = request.num_prompt_tokens;
  }
  PrefillEvent event = event_of(Kind::kAdmitted, now_ms);
  if (may_take) {
    event.key = key_of(record);
    record.result.key = event.key;
  }
  if (record.claim && may_take) {
    record.parts = cut(record, *record.claim);
    event.num_parts = static_cast<int32_t>(record.parts.size());
  }
  requests_[request.id] = transfer;
  runs_alone_ = false;
  step(record, event);
  if (!runs_alone_) return !is_serial;
  requests_.erase(request.id);
  if (!may_take) return false;
  record.request = {};
  note_end(record, now_ms);
  return false;
}

void PrefillSide::computed(RequestId id, int32_t num_tokens, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr) return;
  record->num_computed = std::max(record->num_computed, num_tokens);
  PrefillEvent event = event_of(Kind::kReady, now_ms);
  event.num_ready = num_parts_within(record->parts, record->num_computed);
  step(*record, event);
}

std::shared_ptr<const HandoffOffer> PrefillSide::choose(RequestId id,
                                                        TokenId first_token,
                                                        uint64_t seed,
                                                        uint64_t check) {
  Record* const record = find(id);
  if (record == nullptr || record->result.first_token != kInvalidToken) return nullptr;
  record->result.num_prompt_tokens = record->num_prompt_tokens;
  record->result.num_blocks = static_cast<int32_t>(record->tokens.size()) / kv_.block_size();
  record->result.seed = seed;
  record->result.first_token = first_token;
  record->result.check = check;
  chosen_.push_back(id);
  if (!record->is_serial) return nullptr;
  HandoffOffer offer{.transfer = record->transfer,
                     .epoch = links_.epoch(),
                     .num_groups = kv_.num_groups(),
                     .result = record->result};
  return std::make_shared<const HandoffOffer>(std::move(offer));
}

void PrefillSide::retire(int64_t now_ms) {
  for (const RequestId id : std::exchange(chosen_, {})) {
    Record* const record = find(id);
    if (record == nullptr) continue;
    record->num_computed = static_cast<int32_t>(record->tokens.size());
    requests_.erase(id);
    record->request = {};
    step(*record, event_of(Kind::kEnded, now_ms));
  }
}

void PrefillSide::end(RequestId id, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr) return;
  requests_.erase(id);
  record->request = {};
  step(*record, event_of(Kind::kFailed, now_ms));
}

void PrefillSide::drain(int64_t now_ms) {
  is_draining_ = true;
  std::vector<KvTransferId> all;
  for (const auto& [transfer, record] : records_) all.push_back(transfer);
  for (const KvTransferId& transfer : all) {
    if (Record* const record = find(transfer)) step(*record, event_of(Kind::kDraining, now_ms));
  }
}

bool PrefillSide::give_up_offer(int64_t now_ms) {
  Record* next = nullptr;
  const auto order = [](const Record& record) {
    return std::pair(record.state.is_claimed, record.state.lease_end_ms);
  };
  for (const auto& [transfer, record] : records_) {
    const bool is_untouched =
        record->state.phase == PrefillPhase::kParked && record->state.num_begun == 0;
    if (!is_untouched || record->pinned.empty()) continue;
    if (next == nullptr || order(*record) < order(*next)) next = record.get();
  }
  if (next == nullptr) return false;
  step(*next, event_of(Kind::kTimer, now_ms));
  return true;
}

// --- The machine ------------------------------------------------------------------------------

void PrefillSide::take_claim(Record& record,
                             const PrefillEvent& event,
                             const Claim* claim,
                             bool was_queued) {
  const PrefillState& state = record.state;
  if (claim != nullptr && state.is_claimed && state.attempt == event.attempt &&
      state.peer == event.peer) {
    record.claim = *claim;
  } else if (claim != nullptr && state.is_queued && state.queued_attempt == event.attempt) {
    record.queued = *claim;
    return;
  } else if (was_queued && !state.is_queued && state.is_claimed) {
    record.claim = std::exchange(record.queued, std::nullopt);
  } else {
    return;
  }
  record.parts = cut(record, *record.claim);
}

void PrefillSide::step(Record& record,
                       const PrefillEvent& event,
                       const Claim* claim,
                       std::span<const KvSlot> slots) {
  const PrefillState before = record.state;
  const PrefillActions actions =
      advance(record.state,
              event,
              {.epoch = links_.epoch(),
               .is_draining = is_draining_,
               .takes_early_claims = event.kind != Kind::kClaim || takes_early_claims(event.peer),
               .times = times_});
  take_claim(record, event, claim, before.is_queued);
  count(before, record.state, event);
  for (const PrefillAction& action : actions) act(record, action, slots);
  note_sending(record, before.is_claimed, event);
  end_lost_readings(record, event.now_ms);
  note_end(record, event.now_ms);
}

void PrefillSide::count(const PrefillState& before,
                        const PrefillState& after,
                        const PrefillEvent& event) {
  const bool is_released = event.kind == Kind::kRelease && before.is_claimed && !after.is_claimed;
  if (is_released) ++stats_.num_out;
  const bool was_offered = before.phase == PrefillPhase::kParked && !before.is_claimed;
  if (was_offered && event.kind == Kind::kTimer && after.phase == PrefillPhase::kGone) {
    ++stats_.num_expired;
  }
}

// It ends when nothing of it is read any more.
void PrefillSide::note_sending(Record& record, bool was_claimed, const PrefillEvent& event) {
  const bool is_claimed = record.state.is_claimed;
  if (was_claimed && !is_claimed && record.sending) {
    record.sending->outcome = outcome_of(event.kind);
  }
  const bool is_over = record.sending && !record.sending->outcome.empty();
  if (is_over && (record.readings.empty() || is_claimed)) report(record, event.now_ms);
  if (!is_claimed || record.sending || !record.claim) return;
  const TraceContext asker = parse_trace_context(record.claim->message.trace, {});
  record.sending = Sending{.begin_ms = event.now_ms,
                           .trace = asker.is_sampled ? asker : record.trace,
                           .transport = record.claim->message.transport,
                           .outcome = {},
                           .num_blocks = 0,
                           .num_bytes = 0};
}

void PrefillSide::report(Record& record, int64_t now_ms) {
  const Sending sent = *std::exchange(record.sending, std::nullopt);
  if (!sent.trace.is_set() || !sent.trace.is_sampled) return;
  using Time = std::chrono::steady_clock::time_point;
  reports_.push_back({.trace = sent.trace,
                      .is_out = true,
                      .outcome = sent.outcome,
                      .transport = to_string(sent.transport),
                      .num_blocks = sent.num_blocks,
                      .num_bytes = sent.num_bytes,
                      .begin = Time(std::chrono::milliseconds(sent.begin_ms)),
                      .end = Time(std::chrono::milliseconds(now_ms))});
}

// Readings that could not begin are over at once.
void PrefillSide::end_lost_readings(Record& record, int64_t now_ms) {
  bool has_lost = false;
  for (size_t i = 0; i < record.readings.size();) {
    if (!record.readings[i].is_lost) {
      ++i;
      continue;
    }
    has_lost = true;
    read_done(record, i, now_ms);
    i = 0;
  }
  if (has_lost) step(record, event_of(Kind::kLost, now_ms));
}

void PrefillSide::read_done(Record& record, size_t reading, int64_t now_ms) {
  Reading done = std::move(record.readings[reading]);
  record.readings.erase(record.readings.begin() + static_cast<std::ptrdiff_t>(reading));
  for (const KvBlockRef& ref : done.blocks) kv_.end_transfer(ref.group, ref.block);
  PrefillEvent event = event_of(Kind::kPartRead, now_ms);
  event.attempt = done.attempt;
  event.part = done.number;
  if (record.state.is_queued && record.queued) {
    const std::vector<KvPart> parts = cut(record, *record.queued);
    event.num_parts = static_cast<int32_t>(parts.size());
    event.is_cached = is_cached(record, parts);
  }
  step(record, event);
}

void PrefillSide::act(Record& record, const PrefillAction& action, std::span<const KvSlot> slots) {
  switch (action.kind) {
    case Do::kRunAlone:
      runs_alone_ = true;
      break;
    case Do::kAccept:
    case Do::kRefuse:
    case Do::kFinalOk:
    case Do::kFinalFailed:
    case Do::kReleased:
    case Do::kRenewAck:
      answer(record, action);
      break;
    case Do::kPinAll:
      pin_all(record);
      break;
    case Do::kUnpinAll:
      unpin(record.pinned);
      break;
    case Do::kPinPart:
      for (int32_t i = 0; i < action.count; ++i) pin_part(record, action.part + i);
      break;
    case Do::kUnpinPart:
      break;  // read_done() has
    case Do::kReadPart:
      for (int32_t i = 0; i < action.count; ++i) {
        const KvSlot slot = record.slots.front();
        record.slots.pop_front();
        begin_reading(record, slot);
      }
      break;
    case Do::kReadNaked:
      begin_reading(record, slots.front());
      break;
    case Do::kKeepCredits:
      record.slots.insert(record.slots.end(), slots.begin(), slots.end());
      break;
    case Do::kDropCredits:
      record.slots.clear();
      break;
    case Do::kAbortReading:
      abort_reading(record, action.attempt);
      break;
  }
}

void PrefillSide::answer(const Record& record, const PrefillAction& action) {
  const KvTransferRef ref{.transfer = record.transfer, .attempt = action.attempt};
  const PrefillState& state = record.state;
  switch (action.kind) {
    case Do::kAccept: {
      KvAccept accept{.ref = ref};
      accept.num_ready = static_cast<uint32_t>(state.num_ready);
      accept.num_blocks = static_cast<uint32_t>(state.num_parts);
      accept.lease_ms = static_cast<uint32_t>(times_.lease);
      accept.state = state.has_ended ? KvSenderState::kParked : KvSenderState::kComputing;
      links_.send(action.peer, accept);
      break;
    }
    case Do::kFinalOk:
      links_.send(action.peer,
                  KvFinal{.ref = ref,
                          .ok = true,
                          .num_blocks = static_cast<uint32_t>(record.result.num_blocks),
                          .first_token = record.result.first_token,
                          .check = record.result.check,
                          .seed = record.result.seed});
      break;
    case Do::kFinalFailed:
      links_.send(action.peer, KvFinal{.ref = ref, .ok = false});
      break;
    case Do::kReleased:
      links_.send(action.peer, KvReleased{.ref = ref});
      break;
    case Do::kRenewAck:
      renewed_.push_back(ref);
      break;
    default:
      refuse(action.peer, ref, action.reason);
      break;
  }
}

void PrefillSide::refuse(KvPeerId peer, const KvTransferRef& ref, KvRefusal reason) {
  links_.send(peer, KvRefuse{.ref = ref, .reason = reason});
}

void PrefillSide::pin_all(Record& record) {
  std::vector<KvBlockRef> found;
  kv_.find_blocks(record.tokens, record.extras, {}, found);
  const auto count = static_cast<size_t>(kv_.pin(found));
  found.resize(count);
  num_pinned_ += static_cast<int64_t>(count);
  record.pinned = std::move(found);
}

void PrefillSide::unpin(std::vector<KvBlockRef>& blocks) {
  kv_.unpin(blocks);
  num_pinned_ -= std::ssize(blocks);
  blocks.clear();
}

void PrefillSide::pin_part(Record& record, int32_t part) {
  Reading& reading = record.readings.emplace_back();
  reading.peer = record.state.peer;
  reading.attempt = record.state.attempt;
  reading.number = next_reading_++;
  reading.part = part;
  const bool is_there =
      find_blocks(record, record.parts[static_cast<size_t>(part)], reading.blocks);
  reading.is_lost = !is_there;
  if (!is_there) reading.blocks.clear();
  for (const KvBlockRef& ref : reading.blocks) kv_.begin_transfer(ref.group, ref.block);
}

// The oldest part that is pinned and not being read.
void PrefillSide::begin_reading(Record& record, KvSlot slot) {
  const auto reading = std::ranges::find(record.readings, false, &Reading::is_begun);
  reading->is_begun = true;
  reading->slot = slot;
  if (reading->is_lost) return;
  const KvPart& part = record.parts[static_cast<size_t>(reading->part)];
  KvFrame frame{.ref = {.transfer = record.transfer, .attempt = reading->attempt},
                .slot = slot.slot,
                .slot_generation = slot.generation,
                .group = static_cast<uint16_t>(part.group)};
  const KvGroupSpec& group = cache_.groups()[static_cast<size_t>(part.group)];
  frame.num_layers = static_cast<uint16_t>(group.num_layers);
  frame.num_heads = 1;
  frame.first_block = static_cast<uint32_t>(part.entries.first);
  frame.num_blocks = static_cast<uint32_t>(part.entries.count);
  frame.payload_bytes =
      static_cast<uint64_t>(block_bytes_[static_cast<size_t>(part.group)]) * frame.num_blocks;
  std::vector<BlockId> blocks;
  for (const KvBlockRef& ref : reading->blocks) blocks.push_back(ref.block);
  const bool has_room = frame.payload_bytes <= slot.bytes;
  if (!has_room || !links_.mover().send(reading->peer.value, frame, blocks)) {
    reading->is_lost = true;
  }
}

void PrefillSide::abort_reading(Record& record, uint32_t attempt) {
  for (Reading& reading : record.readings) {
    if (reading.attempt != attempt || !reading.is_begun) continue;
    if (links_.find(reading.peer) == nullptr) continue;  // kClosed comes
    links_.mover().abort(reading.peer.value, {.transfer = record.transfer, .attempt = attempt});
    return;
  }
}

void PrefillSide::note_end(Record& record, int64_t now_ms) {
  const bool is_gone = record.state.phase == PrefillPhase::kGone;
  if (is_gone != record.is_gone) is_gone ? put_aside(record) : bring_back(record);
  if (record.state.phase == PrefillPhase::kNone && record.request == RequestId()) {
    const KvTransferId transfer = record.transfer;
    records_.erase(transfer);
    return;
  }
  if (gone_.size() <= kMostGone) return;
  Record& oldest = *gone_.at(gone_order_.front());
  requests_.erase(oldest.request);
  oldest.request = {};
  step(oldest, event_of(Kind::kForget, now_ms));
}

// What is left answers late messages, and with the tokens a late claim, while blocks are cached.
void PrefillSide::put_aside(Record& record) {
  record.is_gone = true;
  record.claim.reset();
  record.queued.reset();
  record.parts = {};
  record.slots = {};
  record.generations.clear();
  num_gone_tokens_ += std::ssize(record.tokens);
  gone_order_.push_back(record.transfer);
  gone_prompts_.push_back(record.transfer);
  gone_.insert(records_.extract(record.transfer));
  while (num_gone_tokens_ > max_gone_tokens_) {
    std::vector<TokenId>& tokens = gone_.at(gone_prompts_.front())->tokens;
    num_gone_tokens_ -= std::ssize(tokens);
    tokens = {};
    gone_prompts_.pop_front();
  }
}

void PrefillSide::bring_back(Record& record) {
  record.is_gone = false;
  num_gone_tokens_ -= std::ssize(record.tokens);
  std::erase(gone_order_, record.transfer);
  std::erase(gone_prompts_, record.transfer);
  records_.insert(gone_.extract(record.transfer));
}

void PrefillSide::fire_timers(int64_t now_ms) {
  std::vector<KvTransferId> due;
  for (const auto& [transfer, record] : records_) {
    const std::optional<int64_t> timer = sluice::next_timer(record->state);
    if (timer && *timer <= now_ms) due.push_back(transfer);
  }
  for (const KvTransferId& transfer : due) {
    if (Record* const record = find(transfer)) step(*record, event_of(Kind::kTimer, now_ms));
  }
}

std::optional<int64_t> PrefillSide::next_timer() const {
  std::optional<int64_t> first;
  for (const auto& [transfer, record] : records_) {
    const std::optional<int64_t> timer = sluice::next_timer(record->state);
    if (timer && (!first || *timer < *first)) first = timer;
  }
  return first;
}

}  // namespace sluice
