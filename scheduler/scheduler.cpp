// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/id_map.h"
#include "scheduler/cost_model.h"
#include "scheduler/policy.h"

namespace sluice {

namespace {

// A prompt chunk that is always granted when tokens are left, whatever the milliseconds say.
constexpr int32_t kMinChunkTokens = 16;
// A waiting head that did not fit is tried again when blocks came back, or after this many steps (a
// running request may have computed a prefix that it shares).
constexpr uint64_t kRetrySteps = 8;

struct Entry {
  Request request;
  bool in_use = false;
  bool preempt_pending = false;  // to be preempted when its step retires
  bool was_admitted = false;
  int32_t num_pending_samples = 0;   // tokens that steps in flight will append
  int32_t num_allocated_tokens = 0;  // KV room, a multiple of the block size
  int32_t forced_at_generated = -1;  // generated tokens at the last forced preemption
  uint64_t last_step = 0;            // scheduled last in
  // While it follows: the running request that computes a prefix of its own, and how long that is.
  RequestId leader{};
  int32_t num_shared_tokens = 0;

  [[nodiscard]] QueueKey key() const { return {request.priority, request.arrival_order}; }

  [[nodiscard]] bool draining() const {
    return preempt_pending || request.abort_pending || request.status == RequestStatus::kFinished;
  }

  // Tokens that have or will have a value when the steps in flight retire, and no KV handed out.
  [[nodiscard]] int32_t num_remaining() const {
    return request.num_tokens() + num_pending_samples - request.num_scheduled_tokens;
  }

  [[nodiscard]] bool schedulable() const {
    return !draining() && request.num_generated() + num_pending_samples < request.max_tokens;
  }

  // Where a cached prefix may be used: rows whose logits are wanted have to be computed.
  [[nodiscard]] std::span<const TokenId> cacheable_tokens() const {
    const std::span<const TokenId> tokens = request.tokens;
    if (!request.scores_prompt || request.num_scored_tokens + 1 >= request.num_prompt_tokens) {
      return tokens;
    }
    return tokens.first(static_cast<size_t>(request.num_scored_tokens) + 1);
  }

  // The only token left is one that was (or is being) sampled.
  [[nodiscard]] bool decodes() const {
    return num_remaining() == 1 && request.num_generated() + num_pending_samples > 0;
  }
};

}  // namespace

struct Scheduler::Impl {
  SchedulerOptions options;
  KvCacheManager& kv;
  std::vector<Entry> entries;
  std::vector<int32_t> free_entries;
  IdMap entry_of;
  WaitingQueue waiting;
  std::vector<int32_t> followers;  // wait outside the queue for a prefix that is being computed
  std::vector<int32_t> running;    // hold blocks; sorted by key
  CostModel cost;
  SchedulerOutput output;
  StepShape shape;  // of `output`
  uint64_t num_arrivals = 0;
  int64_t num_tokens_in_flight = 0;
  int32_t max_num_running = 0;
  int32_t num_draining = 0;      // of `running`
  bool short_of_blocks = false;  // this step: somebody stalled or was preempted for blocks
  // The waiting head that did not fit, and when to look again.
  RequestId blocked_head{};
  int64_t blocked_available = 0;
  size_t blocked_num_running = 0;
  uint64_t blocked_until_step = 0;

  Impl(const SchedulerOptions& o, KvCacheManager& manager)
      : options(o),
        kv(manager),
        entry_of(o.max_num_seqs + o.max_num_queued_reqs),
        waiting(o.max_num_seqs + o.max_num_queued_reqs) {
    CHECK_GT(o.max_num_seqs, 0);
    CHECK_GT(o.max_num_batched_tokens, 0);
    CHECK_GE(o.max_num_queued_reqs, 0);
    CHECK_GT(o.max_model_len, 0);
    const int32_t max_entries = o.max_num_seqs + o.max_num_queued_reqs;
    entries.resize(static_cast<size_t>(max_entries));
    for (int32_t i = max_entries - 1; i >= 0; --i) free_entries.push_back(i);
    // Every running request may decode in one step.
    max_num_running = std::min(o.max_num_seqs, o.max_num_batched_tokens);
    const auto num_seqs = static_cast<size_t>(max_num_running);
    running.reserve(num_seqs);
    followers.reserve(static_cast<size_t>(max_entries));
    output.scheduled.reserve(num_seqs);
    output.preempted.reserve(num_seqs);
    output.failed.reserve(1);
  }

  Entry& entry(int32_t i) { return entries[static_cast<size_t>(i)]; }

  [[nodiscard]] const Entry& entry(int32_t i) const { return entries[static_cast<size_t>(i)]; }

  Entry& running_entry(size_t position) { return entry(running[position]); }

  [[nodiscard]] int32_t num_tokens_left() const {
    return options.max_num_batched_tokens - output.total_tokens;
  }

  [[nodiscard]] bool idle() const { return num_tokens_in_flight == 0; }

  [[nodiscard]] size_t position_in_running(const Entry& e) const;
  void start_running(int32_t index);
  void stop_running(size_t position);
  void leave(int32_t index);
  void record(Entry& e, int32_t num_tokens, bool decode);

  bool preempt_later_than(size_t position);
  void preempt(size_t position);
  void preempt_drained();
  void force_preemption();
  int32_t take_blocks(size_t position, int32_t num_tokens);
  int32_t prefill_limit(const Entry& e, int32_t start, int32_t num_remaining) const;
  void schedule_decodes();
  void schedule_prefills();
  [[nodiscard]] int32_t spare_blocks() const;
  [[nodiscard]] int64_t total_available() const;
  [[nodiscard]] bool head_still_blocked(const Entry& head) const;
  bool admit(int32_t index);
  [[nodiscard]] int32_t shared_tokens(const Request& a, std::span<const TokenId> b) const;
  bool follow(int32_t index);
  void release_followers();
  void admit_waiting();
  void fail_oldest();
  void retire_row(const ScheduledRequest& row, std::span<const SampledToken> sampled, size_t& next);
  [[nodiscard]] std::string check_entry(int32_t index) const;
};

Scheduler::Scheduler(const SchedulerOptions& options, KvCacheManager& kv)
    : impl_(std::make_unique<Impl>(options, kv)) {}

Scheduler::~Scheduler() = default;

// --- Arrival and departure -------------------------------------------------------------------

Expected<void> Scheduler::add(NewRequest request) {
  Impl& m = *impl_;
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (num_prompt_tokens == 0) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt is empty", "prompt");
  }
  if (request.max_tokens < 1) {
    return make_error(ErrorCode::kInvalidArgument, "max_tokens must be at least 1", "max_tokens");
  }
  if (m.entry_of.find(request.id) != IdMap::kAbsent) {
    return make_error(ErrorCode::kInvalidArgument, "the request id is in use");
  }
  const int64_t num_tokens = num_prompt_tokens + request.max_tokens;
  if (num_tokens > m.options.max_model_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "prompt of " + std::to_string(num_prompt_tokens) + " tokens and max_tokens " +
                          std::to_string(request.max_tokens) + " exceed the context of " +
                          std::to_string(m.options.max_model_len) + " tokens",
                      "max_tokens",
                      "context_length_exceeded");
  }
  // The last sampled token is never fed back and needs no KV.
  if (!m.kv.fits_alone(static_cast<int32_t>(num_tokens) - 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::to_string(num_tokens) + " tokens need more KV cache than there is",
                      "max_tokens",
                      "context_length_exceeded");
  }
  if (num_waiting() >= m.options.max_num_queued_reqs) {
    return make_error(ErrorCode::kResourceExhausted, "the waiting queue is full");
  }
  const int32_t index = m.free_entries.back();
  m.free_entries.pop_back();
  Entry& e = m.entry(index);
  e = Entry{};
  e.in_use = true;
  Request& r = e.request;
  r.id = request.id;
  r.tokens = std::move(request.prompt);
  r.tokens.reserve(static_cast<size_t>(num_tokens));
  r.num_prompt_tokens = static_cast<int32_t>(num_prompt_tokens);
  r.max_tokens = request.max_tokens;
  r.priority = request.priority;
  r.extras = request.extras;
  r.scores_prompt = request.scores_prompt;
  r.arrival_order = m.num_arrivals++;
  m.entry_of.insert(r.id, index);
  m.waiting.push(e.key(), index);
  return {};
}

bool Scheduler::abort(RequestId id) {
  Impl& m = *impl_;
  const int32_t index = m.entry_of.find(id);
  if (index == IdMap::kAbsent) return false;
  Entry& e = m.entry(index);
  if (m.waiting.contains(index)) {
    m.waiting.remove(index);
    m.leave(index);
    return true;
  }
  if (std::erase(m.followers, index) > 0) {
    m.leave(index);
    return true;
  }
  if (e.request.num_in_flight_tokens > 0) {
    if (e.request.status == RequestStatus::kFinished) return false;
    if (!e.draining()) ++m.num_draining;
    e.request.abort_pending = true;
    return false;
  }
  m.stop_running(m.position_in_running(e));
  m.leave(index);
  return true;
}

size_t Scheduler::Impl::position_in_running(const Entry& e) const {
  const auto it = std::ranges::lower_bound(
      running, e.key(), {}, [this](int32_t index) { return entry(index).key(); });
  return static_cast<size_t>(it - running.begin());
}

void Scheduler::Impl::start_running(int32_t index) {
  Entry& e = entry(index);
  waiting.remove(index);
  e.request.status = RequestStatus::kRunning;
  running.insert(running.begin() + static_cast<ptrdiff_t>(position_in_running(e)), index);
}

// Gives its blocks back and takes it out of `running`.
void Scheduler::Impl::stop_running(size_t position) {
  const Entry& e = running_entry(position);
  CHECK_EQ(e.request.num_in_flight_tokens, 0);
  if (e.draining()) --num_draining;
  kv.free(e.request.id);
  running.erase(running.begin() + static_cast<ptrdiff_t>(position));
}

void Scheduler::Impl::leave(int32_t index) {
  entry_of.erase(entry(index).request.id);
  entry(index) = Entry{};
  free_entries.push_back(index);
}

// --- Preemption ------------------------------------------------------------------------------

void Scheduler::Impl::preempt(size_t position) {
  const int32_t index = running[position];
  stop_running(position);
  Entry& e = entry(index);
  e.preempt_pending = false;
  e.num_allocated_tokens = 0;
  e.request.status = RequestStatus::kPreempted;
  e.request.num_computed_tokens = 0;
  e.request.num_scheduled_tokens = 0;
  ++e.request.num_preemptions;
  waiting.push(e.key(), index);
  output.preempted.push_back(e.request.id);
}

// Preempts the last-come request behind `position`. False when there is none, or when blocks will
// only come back as a step in flight retires.
bool Scheduler::Impl::preempt_later_than(size_t position) {
  if (num_draining > 0) return false;
  const size_t victim = running.size() - 1;
  if (victim == position) return false;
  Entry& e = running_entry(victim);
  if (e.request.num_in_flight_tokens > 0) {
    e.preempt_pending = true;
    ++num_draining;
    return false;
  }
  preempt(victim);
  return true;
}

// Those whose step has retired since they were chosen.
void Scheduler::Impl::preempt_drained() {
  if (num_draining == 0) return;
  for (size_t i = running.size(); i-- > 0;) {
    const Entry& e = running_entry(i);
    if (e.preempt_pending && e.request.num_in_flight_tokens == 0) {
      preempt(i);
      short_of_blocks = true;
    }
  }
}

// The test knob. At most once for each number of generated tokens, so that a request preempted
// every step still gets to its end.
void Scheduler::Impl::force_preemption() {
  if (options.preempt_every <= 0) return;
  if (output.step_id % static_cast<uint64_t>(options.preempt_every) != 0) return;
  for (size_t i = running.size(); i-- > 0;) {
    Entry& e = running_entry(i);
    if (e.draining() || e.request.num_generated() <= e.forced_at_generated) continue;
    e.forced_at_generated = e.request.num_generated();
    if (e.request.num_in_flight_tokens > 0) {
      e.preempt_pending = true;
      ++num_draining;
    } else {
      preempt(i);
    }
    return;
  }
}

// --- One step --------------------------------------------------------------------------------

void Scheduler::Impl::record(Entry& e, int32_t num_tokens, bool decode) {
  Request& r = e.request;
  const bool samples = num_tokens == e.num_remaining();
  output.scheduled.push_back({r.id, r.num_scheduled_tokens, num_tokens, samples});
  output.total_tokens += num_tokens;
  if (!decode) output.num_prefill_tokens += num_tokens;
  shape.add(decode, r.num_scheduled_tokens, num_tokens);
  r.num_scheduled_tokens += num_tokens;
  r.num_in_flight_tokens += num_tokens;
  num_tokens_in_flight += num_tokens;
  if (samples) ++e.num_pending_samples;
  e.last_step = output.step_id;
}

// Room for up to `num_tokens` more tokens of a running request: fewer when blocks are short, those
// of later-come requests when there are none. Returns how many tokens fit; 0: it has to wait.
int32_t Scheduler::Impl::take_blocks(size_t position, int32_t num_tokens) {
  Entry& e = running_entry(position);
  const int32_t start = e.request.num_scheduled_tokens;
  if (start + num_tokens <= e.num_allocated_tokens) return num_tokens;
  do {
    for (int32_t granted = num_tokens; granted > 0; granted /= 2) {
      if (!kv.allocate_slots(e.request.id, start + granted)) continue;
      e.num_allocated_tokens = static_cast<int32_t>(align_up(start + granted, kv.block_size()));
      return granted;
    }
    short_of_blocks = true;
  } while (preempt_later_than(position));
  return 0;
}

// All of them: no more requests run than a step has tokens.
void Scheduler::Impl::schedule_decodes() {
  // A preemption removes requests behind the current one only.
  for (size_t i = 0; i < running.size(); ++i) {
    Entry& e = running_entry(i);
    if (!e.schedulable() || !e.decodes()) continue;
    if (take_blocks(i, 1) == 1) record(e, 1, /*decode=*/true);
  }
}

// Tokens of a prompt chunk that both budgets allow.
int32_t Scheduler::Impl::prefill_limit(const Entry& e, int32_t start, int32_t num_remaining) const {
  const int32_t limit = std::min(num_remaining, num_tokens_left());
  if (options.step_target_ms <= 0 || limit == 0) return limit;
  const int32_t affordable = cost.max_prefill_tokens(shape, start, options.step_target_ms);
  if (affordable >= limit) return limit;
  if (output.num_prefill_tokens == 0) return std::min(limit, std::max(affordable, kMinChunkTokens));
  return affordable < std::min(kMinChunkTokens, e.num_remaining()) ? 0 : affordable;
}

void Scheduler::Impl::schedule_prefills() {
  for (size_t i = 0; i < running.size() && num_tokens_left() > 0; ++i) {
    Entry& e = running_entry(i);
    if (!e.schedulable() || e.decodes() || e.last_step == output.step_id) continue;
    const int32_t wanted = prefill_limit(e, e.request.num_scheduled_tokens, e.num_remaining());
    if (wanted == 0) break;
    const int32_t granted = take_blocks(i, wanted);
    if (granted > 0) record(e, granted, /*decode=*/false);
  }
}

// --- Admission -------------------------------------------------------------------------------

// Blocks that running requests will want: the rest of their known tokens, and one to go on with.
int32_t Scheduler::Impl::spare_blocks() const {
  int64_t num_blocks = 0;
  for (const int32_t index : running) {
    const Entry& e = entry(index);
    const int32_t missing =
        e.request.num_scheduled_tokens + e.num_remaining() - e.num_allocated_tokens;
    num_blocks += std::max<int64_t>(1, ceil_div(std::max(missing, 0), kv.block_size()));
  }
  return static_cast<int32_t>(std::min<int64_t>(num_blocks, INT32_MAX));
}

int64_t Scheduler::Impl::total_available() const {
  const KvUsage usage = kv.usage();
  return usage.num_free + usage.num_cached;
}

bool Scheduler::Impl::head_still_blocked(const Entry& head) const {
  return blocked_head == head.request.id && output.step_id < blocked_until_step &&
         running.size() >= blocked_num_running && total_available() <= blocked_available;
}

bool Scheduler::Impl::admit(int32_t index) {
  Entry& e = entry(index);
  Request& r = e.request;
  const bool alone = running.empty();
  if (!alone && head_still_blocked(e)) return false;
  if (prefill_limit(e, 0, r.num_tokens()) == 0) return false;
  const int32_t num_found = kv.acquire_prefix(r.id, e.cacheable_tokens(), r.extras);
  int32_t chunk = prefill_limit(e, num_found, r.num_tokens() - num_found);
  if (chunk > 0 && !alone && !kv.has_room(r.id, r.num_tokens(), spare_blocks())) chunk = -1;
  const bool affordable = chunk != 0;
  while (chunk > 0 && !kv.allocate_slots(r.id, num_found + chunk)) chunk /= 2;
  if (chunk <= 0) {
    kv.free(r.id);
    if (affordable) {
      blocked_head = r.id;
      blocked_available = total_available();
      blocked_num_running = running.size();
      blocked_until_step = output.step_id + kRetrySteps;
    }
    return false;
  }
  start_running(index);
  r.num_computed_tokens = num_found;
  r.num_scheduled_tokens = num_found;
  if (!e.was_admitted) r.num_cached_tokens = num_found;
  e.was_admitted = true;
  e.num_allocated_tokens = static_cast<int32_t>(align_up(num_found + chunk, kv.block_size()));
  record(e, chunk, /*decode=*/false);
  return true;
}

// Whole blocks of the tokens that both begin with, as far as `b` could take them from the cache.
int32_t Scheduler::Impl::shared_tokens(const Request& a, std::span<const TokenId> b) const {
  const size_t longest = std::min(a.tokens.size(), b.size() - 1);
  const auto end = std::mismatch(
      b.begin(), b.begin() + static_cast<ptrdiff_t>(longest), a.tokens.begin(), a.tokens.end());
  const auto shared = static_cast<int32_t>(end.first - b.begin());
  return shared - shared % kv.block_size();
}

// Whether a running request is computing a prefix of this one: then it waits for that, and finds it
// in the cache, instead of computing it beside the other. Those behind it do not wait for it.
bool Scheduler::Impl::follow(int32_t index) {
  if (!kv.caches_prefixes()) return false;
  Entry& e = entry(index);
  const std::span<const TokenId> wanted = e.cacheable_tokens();
  e.num_shared_tokens = 0;
  for (const int32_t other : running) {
    const Entry& leader = entry(other);
    const Request& r = leader.request;
    if (leader.draining() || r.extras != e.request.extras) continue;
    const int32_t longest = std::min(r.num_tokens(), static_cast<int32_t>(wanted.size()) - 1);
    if (longest - r.num_computed_tokens < 1) continue;
    const int32_t shared = shared_tokens(r, wanted);
    if (shared <= std::max(r.num_computed_tokens, e.num_shared_tokens)) continue;
    e.leader = r.id;
    e.num_shared_tokens = shared;
  }
  if (e.num_shared_tokens == 0) return false;
  waiting.remove(index);
  followers.push_back(index);
  return true;
}

// Back into the queue when the prefix is computed, or its leader does not run any more.
void Scheduler::Impl::release_followers() {
  std::erase_if(followers, [this](int32_t index) {
    const Entry& e = entry(index);
    const int32_t leader = entry_of.find(e.leader);
    if (leader != IdMap::kAbsent) {
      const Entry& other = entry(leader);
      const bool runs = other.request.status == RequestStatus::kRunning && !other.draining();
      if (runs && other.request.num_computed_tokens < e.num_shared_tokens) return false;
    }
    waiting.push(e.key(), index);
    return true;
  });
}

void Scheduler::Impl::admit_waiting() {
  while (!waiting.empty() && num_tokens_left() > 0 &&
         running.size() < static_cast<size_t>(max_num_running)) {
    // Blocks that somebody running is short of are not for newcomers.
    const bool nothing_else = output.scheduled.empty() && idle();
    if (short_of_blocks && !nothing_else) return;
    if (follow(waiting.first())) continue;
    if (!admit(waiting.first())) return;
  }
}

// Nothing runs and nothing can: the oldest request would wait for ever.
void Scheduler::Impl::fail_oldest() {
  const int32_t index = running.empty() ? waiting.first() : running.front();
  const RequestId id = entry(index).request.id;
  if (running.empty()) {
    waiting.remove(index);
  } else {
    stop_running(0);
  }
  leave(index);
  output.failed.push_back({id, "no KV cache block can be had and nothing is running"});
}

const SchedulerOutput& Scheduler::schedule() {
  Impl& m = *impl_;
  SchedulerOutput& output = m.output;
  ++output.step_id;
  output.scheduled.clear();
  output.preempted.clear();
  output.failed.clear();
  output.total_tokens = 0;
  output.num_prefill_tokens = 0;
  m.shape = {};
  m.short_of_blocks = false;
  m.preempt_drained();
  m.force_preemption();
  m.release_followers();
  m.schedule_decodes();
  m.schedule_prefills();
  m.admit_waiting();
  output.predicted_ms = m.cost.predict_ms(m.shape);
  if (output.scheduled.empty() && m.idle() && has_work()) m.fail_oldest();
  return output;
}

// --- Retirement ------------------------------------------------------------------------------

void Scheduler::Impl::retire_row(const ScheduledRequest& row,
                                 std::span<const SampledToken> sampled,
                                 size_t& next) {
  const int32_t index = entry_of.find(row.id);
  CHECK_NE(index, IdMap::kAbsent);  // in flight, so it cannot have left
  Entry& e = entry(index);
  Request& r = e.request;
  num_tokens_in_flight -= row.num_scheduled_tokens;
  r.num_in_flight_tokens -= row.num_scheduled_tokens;
  r.num_computed_tokens += row.num_scheduled_tokens;
  r.num_scored_tokens = std::max(
      r.num_scored_tokens, std::min(r.num_computed_tokens, r.num_prompt_tokens - 1));
  bool failed = false;
  const bool dead = r.abort_pending || r.status == RequestStatus::kFinished;
  if (row.samples) {
    --e.num_pending_samples;
    const bool present = next < sampled.size() && sampled[next].id == row.id;
    CHECK(present || dead);
    if (present) {
      const SampledToken& sample = sampled[next++];
      if (!dead && sample.token != kInvalidToken) r.tokens.push_back(sample.token);
      failed = sample.token == kInvalidToken;
      if (!dead && (sample.finished || r.num_generated() == r.max_tokens)) {
        if (!e.draining()) ++num_draining;
        r.status = RequestStatus::kFinished;
      }
    }
  }
  // The KV of a step that failed is not worth finding again. An aborted request may have fed back a
  // token that it never learned.
  if (failed) return;
  kv.cache_blocks(r.id, r.tokens, std::min(r.num_computed_tokens, r.num_tokens()));
}

void Scheduler::update(const SchedulerOutput& output,
                       std::span<const SampledToken> sampled,
                       double measured_ms,
                       std::vector<RequestId>& aborted) {
  Impl& m = *impl_;
  StepShape retired;
  size_t next = 0;
  int32_t num_decodes = output.total_tokens - output.num_prefill_tokens;
  for (const ScheduledRequest& row : output.scheduled) {
    retired.add(num_decodes-- > 0, row.num_computed_tokens, row.num_scheduled_tokens);
    m.retire_row(row, sampled, next);
  }
  CHECK_EQ(next, sampled.size());
  if (m.num_draining > 0) {
    for (const ScheduledRequest& row : output.scheduled) {
      const int32_t index = m.entry_of.find(row.id);
      const Request& r = m.entry(index).request;
      const bool finished = r.status == RequestStatus::kFinished;
      if (r.num_in_flight_tokens > 0 || !(r.abort_pending || finished)) continue;
      if (!finished) aborted.push_back(r.id);
      m.stop_running(m.position_in_running(m.entry(index)));
      m.leave(index);
    }
  }
  if (!output.scheduled.empty()) m.cost.observe(retired, measured_ms);
}

// --- Views -----------------------------------------------------------------------------------

const Request* Scheduler::find(RequestId id) const {
  const int32_t index = impl_->entry_of.find(id);
  return index == IdMap::kAbsent ? nullptr : &impl_->entry(index).request;
}

int32_t Scheduler::num_running() const { return static_cast<int32_t>(impl_->running.size()); }

int32_t Scheduler::num_waiting() const {
  return impl_->waiting.size() + static_cast<int32_t>(impl_->followers.size());
}

bool Scheduler::has_work() const { return num_running() + num_waiting() > 0; }

std::string Scheduler::Impl::check_entry(int32_t index) const {
  const Entry& e = entry(index);
  const Request& r = e.request;
  const std::string name = "request " + std::to_string(r.id.value);
  if (entry_of.find(r.id) != index) return name + " is not findable";
  if (r.num_scheduled_tokens != r.num_computed_tokens + r.num_in_flight_tokens) {
    return name + ": scheduled is not computed + in flight";
  }
  if (r.num_generated() + e.num_pending_samples > r.max_tokens) return name + " generates too much";
  const bool follows = std::ranges::count(followers, index) > 0;
  if (waiting.contains(index) || follows) {
    if (waiting.contains(index) && follows) return name + " waits twice";
    const bool empty = r.num_scheduled_tokens == 0 && e.num_allocated_tokens == 0 &&
                       e.num_pending_samples == 0 && kv.block_table(r.id, 0).empty();
    if (!empty || e.draining()) return name + " waits and holds something";
    const bool known = r.status == RequestStatus::kPreempted || !e.was_admitted;
    return known ? std::string() : name + " waits in a wrong state";
  }
  if (running[std::min(position_in_running(e), running.size() - 1)] != index) {
    return name + " is neither waiting nor running";
  }
  if (r.num_scheduled_tokens > e.num_allocated_tokens) return name + " runs without room";
  if (e.num_remaining() < 1 && !e.draining()) return name + " has nothing left to schedule";
  return {};
}

std::string Scheduler::check_integrity() const {
  const Impl& m = *impl_;
  if (std::string wrong = m.waiting.check_integrity(); !wrong.empty()) return wrong;
  size_t num_in_use = 0;
  int64_t num_tokens_in_flight = 0;
  int32_t num_draining = 0;
  for (size_t i = 0; i < m.entries.size(); ++i) {
    const Entry& e = m.entries[i];
    if (!e.in_use) continue;
    ++num_in_use;
    num_tokens_in_flight += e.request.num_in_flight_tokens;
    num_draining += e.draining();
    if (std::string wrong = m.check_entry(static_cast<int32_t>(i)); !wrong.empty()) return wrong;
  }
  if (num_in_use != m.running.size() + static_cast<size_t>(num_waiting()) ||
      num_in_use + m.free_entries.size() != m.entries.size() || num_in_use != m.entry_of.size()) {
    return "requests are miscounted";
  }
  if (num_tokens_in_flight != m.num_tokens_in_flight) return "tokens in flight are miscounted";
  if (num_draining != m.num_draining) return "draining requests are miscounted";
  if (m.running.size() > static_cast<size_t>(m.max_num_running)) return "too many run";
  for (size_t i = 1; i < m.running.size(); ++i) {
    if (!(m.entry(m.running[i - 1]).key() < m.entry(m.running[i]).key())) {
      return "running requests are out of order";
    }
  }
  return {};
}

}  // namespace sluice
