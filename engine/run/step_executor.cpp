// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_executor.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "kernels/kv_checksum.h"
#include "kernels/trace.h"

namespace sluice {
namespace {

// Counts the tokens that the request got: drafts count while each equals the token chosen in its
// place. A row with invalid logits ends the count, and as the first row it fails the request.
size_t count_tokens(const SampledRequest& request, std::span<const SamplerResult> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].finish_reason == FinishReason::kError) return i;
    if (rows[i].finish_reason != FinishReason::kNone || i == request.drafts.size()) return i + 1;
    if (rows[i].token != request.drafts[i]) return i + 1;
  }
  return rows.size();
}

}  // namespace

StepExecutor::StepExecutor(ModelRunner& runner, Options options)
    : runner_(runner),
      depth_(std::max(runner.queue_depth(), options.overlap ? 1 : 0)),
      rows_of_slot_(static_cast<size_t>(options.num_slots)),
      slots_(static_cast<size_t>(options.num_slots)),
      label_tokens_(std::move(options.label_tokens)),
      sampler_(runner.model().vocab_size,
               runner.batch_bounds().max_rows,
               options.max_logprobs,
               runner.device().num_threads(),
               std::move(options.end_tokens)) {
  const auto max_seqs = static_cast<size_t>(runner.batch_bounds().max_seqs);
  const auto max_rows = static_cast<size_t>(runner.batch_bounds().max_rows);
  const auto max_logprobs = static_cast<size_t>(options.max_logprobs);
  works_.reserve(static_cast<size_t>(depth_) + 1);
  for (int32_t i = 0; i <= depth_; ++i) {
    StepWork& added = works_.emplace_back(runner.batch_bounds());
    added.requests.reserve(max_seqs);
    added.prompts.reserve(max_seqs);
    added.inputs.reserve(max_rows);
    added.results.reserve(max_rows);
    added.tokens.reserve(max_rows);
    added.top_logprobs.reserve(max_rows * max_logprobs);
  }
  chosen_.reserve(max_rows);
  device_rows_.reserve(max_rows);
  score_inputs_.reserve(max_rows);
  score_rows_.reserve(max_rows);
  // A host thread runs the steps that exceed the device's queue.
  queue_.emplace([this](uint64_t number) { run(work(number)); },
                 depth_ > runner.queue_depth(),
                 runner.device());
}

StepExecutor::~StepExecutor() {
  while (num_in_flight() > 0) retire();
}

// --- Engine thread ---------------------------------------------------------------------------

void StepExecutor::submit() {
  CHECK_LE(num_in_flight(), depth_);
  StepWork& next = work(num_submitted_);
  next.number = num_submitted_;
  next.is_done = false;
  next.batch.build(next.order.decision, rows_of_slot_);
  lay_out(next);
  ++num_submitted_;
  queue_->push();
}

// Assigns rows to requests, scored prompts and embeddings.
void StepExecutor::lay_out(StepWork& work) {
  work.requests.clear();
  work.prompts.clear();
  work.embedded.clear();
  work.pooled.clear();
  size_t num_rows = 0;
  std::span<const TokenId> token_ids = work.order.decision.token_ids;
  for (const ScheduledRequest& item : work.order.decision.scheduled) {
    const auto own = token_ids.first(static_cast<size_t>(item.num_scheduled_tokens));
    token_ids = token_ids.subspan(own.size());
    if (!item.scored.empty()) {
      ScoredPrompt& added = work.prompts.emplace_back();
      added.id = item.id;
      added.slot = item.slot;
      added.num_rows = static_cast<size_t>(item.scored.size());
    }
    for (int32_t position = item.embedded.begin; position < item.embedded.end; ++position) {
      EmbeddedRow& added = work.embedded.emplace_back();
      added.id = item.id;
      added.position = position;
    }
    if (item.ends) work.pooled.push_back(item.id);
    if (item.chosen.empty()) continue;
    SampledRequest& added = work.requests.emplace_back();
    added.id = item.id;
    added.slot = item.slot;
    added.drafts = own.last(static_cast<size_t>(item.num_draft_tokens));
    added.draft_source = item.draft_source;
    added.num_tokens_before = item.chosen.begin + 1;
    added.num_unsure = item.num_unsure;
    added.first_row = num_rows;
    num_rows += added.num_rows();
    rows_of_slot_[static_cast<size_t>(item.slot)] = {.last_row = static_cast<int32_t>(num_rows) - 1,
                                                     .drafts = added.drafts};
  }
}

StepWork& StepExecutor::retire() {
  CHECK_GT(num_in_flight(), 0);
  queue_->wait(num_retired_);
  StepWork& oldest = work(num_retired_++);
  if (!oldest.is_done) finish(oldest);
  return oldest;
}

// The thread that runs the steps is idle: it waits for the next push.
void StepExecutor::release(std::span<const int32_t> ended_slots) {
  CHECK_EQ(num_in_flight(), 0);
  for (const int32_t ended : ended_slots) slot(ended) = {};
  for (StepWork& work : works_) {
    work.requests.clear();
    work.inputs.clear();
    work.prompts.clear();
    work.embedded.clear();
    work.pooled.clear();
  }
}

// --- The thread that runs the steps ----------------------------------------------------------

// A step with work for the host needs the previous step's tokens, and is finished at once.
void StepExecutor::run(StepWork& work) {
  finish_rows_of(work.order.ended_slots, work.number);
  take_requests(work.order);
  work.inputs.clear();
  for (SampledRequest& request : work.requests) add_inputs(work, request);
  const bool waits = needs_host(work);
  while (waits && num_finished_ < work.number) finish(this->work(num_finished_));
  work.follows = num_finished_ < work.number;
  begin(work);
  if (waits) finish(work);
}

bool StepExecutor::needs_host(const StepWork& work) const {
  if (!work.prompts.empty() || !work.embedded.empty()) return true;
  if (runner_.steps_in_flight() > 1) return false;  // the host chooses as the step retires
  return !runner_.sampling().chooses() ||
         !std::ranges::all_of(work.inputs, &SamplerInput::on_device);
}

// Finishes steps in front of step `end` up to the last one with rows of a request that has ended
// since: after a failed chunk of a prompt, the next one may still be in flight.
void StepExecutor::finish_rows_of(std::span<const int32_t> ended_slots, uint64_t end) {
  if (runner_.steps_in_flight() == 1 || ended_slots.empty()) return;
  const auto has_ended = [&](const SampledRequest& request) {
    return std::ranges::find(ended_slots, request.slot) != ended_slots.end();
  };
  for (uint64_t number = end; number-- > num_finished_;) {
    if (!std::ranges::any_of(work(number).requests, has_ended)) continue;
    while (num_finished_ <= number) finish(work(num_finished_));
  }
}

void StepExecutor::take_requests(StepOrder& order) {
  for (const int32_t ended : order.ended_slots) slot(ended) = {};
  for (std::shared_ptr<const RequestRecord>& begun : order.begun) {
    SlotState& state = slot(begun->slot);
    state = {.record = std::move(begun), .grammar = {}, .tail = {}};
    if (state.record->grammar != nullptr) state.grammar.emplace(state.record->grammar);
  }
}

// Adds the drafts to the tail and returns all tokens up to the last one. A choice that reads
// earlier tokens makes its step wait for the host, so what the log lacks of them is in the tail.
TokenSequence StepExecutor::add_drafts(SlotState& state, const SampledRequest& request) {
  const std::span<const TokenId> committed = state.record->log.tokens();
  const auto num_before = static_cast<size_t>(request.num_tokens_before);
  CHECK_LE(committed.size(), num_before);
  const size_t num_late = num_before - committed.size();
  CHECK_LE(num_late, state.tail.size());
  state.tail.erase(state.tail.begin(), state.tail.end() - static_cast<ptrdiff_t>(num_late));
  state.tail.insert(state.tail.end(), request.drafts.begin(), request.drafts.end());
  return {committed, state.tail};
}

void StepExecutor::add_inputs(StepWork& work, SampledRequest& request) {
  SlotState& state = slot(request.slot);
  CHECK(state.is_of(request.id));
  request.record = state.record;
  const bool reads = reads_tokens(*state.record);
  const auto num_before = static_cast<size_t>(request.num_tokens_before);
  const TokenSequence tokens = reads ? add_drafts(state, request) : TokenSequence{};
  for (size_t i = 0; i < request.num_rows(); ++i) {
    SamplerInput& input = work.inputs.emplace_back();
    input.params = &request.record->sampling;
    if (reads) input.tokens = tokens.first(num_before + i);
    input.num_prompt_tokens = request.record->num_prompt_tokens;
    input.num_generated =
        request.num_tokens_before - input.num_prompt_tokens + static_cast<int32_t>(i);
    input.grammar = state.grammar ? &*state.grammar : nullptr;
    // Uses the fewest tokens that it may have got: min_tokens may still mask some ids.
    SamplerInput least = input;
    least.num_generated -= request.num_unsure;
    input.on_device = runner_.sampling().chooses() && sampler_.can_choose(least);
  }
}

void StepExecutor::begin(StepWork& work) {
  const kernels::TraceRange range(runner_.device().type(), "step");
  work.started = Clock::now();
  if (!work.follows) {
    work.batch.resolve(runner_.device().host_context(), chosen_, runner_.model().vocab_size);
    settle(work);
  }
  send_rows(work);
  runner_.execute(work.order.decision.copies, work.batch);
  work.executed = Clock::now();
  score(work);
  embed(work);
  runner_.begin_logits();
  runner_.sampling().choose(runner_.exec(), work.number);
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    if (!work.inputs[i].on_device) work.inputs[i].logits = runner_.begin_host_copy(i, 1);
  }
}

void StepExecutor::finish(StepWork& work) {
  sampler_.bind(runner_.device().host_context(), work.inputs);
  runner_.end_logits(work.batch);
  const std::span<const kernels::SampleRow> chosen = runner_.sampling().wait(work.number);
  runner_.wait_for_host_copies();
  if (work.follows) settle(work);
  // In a device's queue this step waited for the previous one.
  work.started = std::max(work.started, finished_);
  finished_ = Clock::now();
  work.executed = runner_.sampling().chooses() ? finished_ : std::max(work.executed, work.started);
  // A step that a failed rank did not begin has no start time.
  work.device_idle = work.follows && runner_.sampling().chooses() && !runner_.has_failed()
                         ? runner_.sampling().idle_before(work.number)
                         : 0;
  for (SampledRequest& request : work.requests) check_first_row(request, work);
  const std::span<const SamplerResult> results =
      sampler_.sample(runner_.device().host_context(), work.inputs, chosen);
  work.results.assign(results.begin(), results.end());
  work.top_logprobs.clear();
  chosen_.clear();
  for (SamplerResult& result : work.results) {
    const size_t begin = work.top_logprobs.size();
    work.top_logprobs.insert(
        work.top_logprobs.end(), result.top_logprobs.begin(), result.top_logprobs.end());
    result.top_logprobs = std::span(work.top_logprobs).subspan(begin);
    chosen_.push_back(result.token);
  }
  work.tokens = chosen_;
  for (SampledRequest& request : work.requests) note_chosen(request, work);
  work.has_failed = runner_.has_failed();
  work.is_done = true;
  ++num_finished_;
  work.sampled = Clock::now();
}

// Moves rows that follow drafts after the previous step has judged the drafts. For a request that
// has ended meanwhile the result is unused.
void StepExecutor::settle(StepWork& work) {
  for (SampledRequest& request : work.requests) {
    if (request.num_unsure == 0) continue;
    const int32_t back = std::min(slot(request.slot).num_rejected, request.num_unsure);
    request.num_tokens_before -= back;
    for (size_t i = 0; i < request.num_rows(); ++i) {
      work.inputs[request.first_row + i].num_generated -= back;
    }
    request.num_unsure = 0;
  }
}

// Must run before the sampler overwrites the row.
void StepExecutor::check_first_row(SampledRequest& request, const StepWork& work) {
  const SlotState& state = slot(request.slot);
  request.check = 0;
  if (!state.is_of(request.id) || !state.record->checks_first_row) return;
  const SamplerInput& input = work.inputs[request.first_row];
  if (input.num_generated != 0 || input.on_device) return;
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  const uint64_t sum = kernels::kv_checksum(std::as_bytes(std::span(input.logits, vocab)));
  request.check = sum == 0 ? 1 : sum;
}

// The slot may belong to another request by now, unless the choice read its tokens.
void StepExecutor::note_chosen(SampledRequest& request, const StepWork& work) {
  const std::span<const SamplerResult> results = work.results;
  const std::span<const TokenId> tokens = work.tokens;
  request.num_tokens =
      count_tokens(request, results.subspan(request.first_row, request.num_rows()));
  SlotState& state = slot(request.slot);
  if (!state.is_of(request.id)) return;
  const size_t num_tokens = std::max(request.num_tokens, size_t{1});
  state.num_rejected = static_cast<int32_t>(request.num_rows() - num_tokens);
  if (!reads_tokens(*state.record)) return;
  state.tail.resize(state.tail.size() - request.drafts.size());
  for (const TokenId token : tokens.subspan(request.first_row, num_tokens)) {
    state.tail.push_back(std::max(token, TokenId{0}));  // rows may follow a failed row
  }
}

void StepExecutor::send_rows(StepWork& work) {
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  device_rows_.clear();
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    SamplerInput& input = work.inputs[i];
    input.logits = runner_.logits() + i * vocab;
    if (input.on_device) device_rows_.push_back(sampler_.device_row(input));
  }
  runner_.sampling().send(work.number, device_rows_);
}

void StepExecutor::embed(StepWork& work) {
  const bool wants_logits = !label_tokens_.empty();
  const size_t width =
      wants_logits ? label_tokens_.size() : static_cast<size_t>(runner_.model().embedded_width());
  const std::span<const int32_t> all = work.batch.embedded_rows();
  work.states.resize(all.size() * width);
  for (size_t begin = 0; begin < all.size(); begin += runner_.max_rows()) {
    const std::span<const int32_t> rows =
        all.subspan(begin, std::min(all.size() - begin, runner_.max_rows()));
    float* const states = work.states.data() + begin * width;
    if (wants_logits) {
      read_labels(rows, states);
    } else {
      const float* const computed = runner_.embed(rows);
      if (computed == nullptr) return;
      std::copy_n(computed, rows.size() * width, states);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      work.embedded[begin + i].state = {states + i * width, width};
    }
  }
}

// Writes the logits of the label tokens after each row.
void StepExecutor::read_labels(std::span<const int32_t> rows, float* out) {
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  runner_.compute_logits(rows);
  const float* const logits = runner_.begin_host_copy(0, rows.size());
  runner_.wait_for_host_copies();
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const TokenId token : label_tokens_) {
      *out++ = logits[i * vocab + static_cast<size_t>(token)];
    }
  }
}

// Scores as many rows at once as logits have room for; a row's bits do not depend on that.
void StepExecutor::score(StepWork& work) {
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  const std::span<const PromptRow> all = work.batch.prompt_rows();
  size_t begin = 0;
  for (ScoredPrompt& prompt : work.prompts) {
    std::span<const PromptRow> rest = all.subspan(begin, prompt.num_rows);
    begin += prompt.num_rows;
    const int32_t num_logprobs = slot(prompt.slot).record->sampling.num_prompt_logprobs;
    prompt.logprobs.reserve(prompt.num_rows);
    while (!rest.empty()) {
      const std::span<const PromptRow> rows = rest.first(std::min(rest.size(), runner_.max_rows()));
      rest = rest.subspan(rows.size());
      score_rows_.clear();
      for (const PromptRow& row : rows) score_rows_.push_back(row.row);
      runner_.compute_logits(score_rows_);
      const float* const logits = runner_.begin_host_copy(0, rows.size());
      runner_.wait_for_host_copies();
      score_inputs_.clear();
      for (size_t i = 0; i < rows.size(); ++i) {
        score_inputs_.push_back(
            {.logits = logits + i * vocab, .token = rows[i].next, .num_logprobs = num_logprobs});
      }
      const std::span<const ScoreResult> results =
          sampler_.score(runner_.device().host_context(), score_inputs_);
      for (size_t i = 0; i < rows.size(); ++i) {
        prompt.is_finite = prompt.is_finite && results[i].finite;
        PromptLogprob& added = prompt.logprobs.emplace_back();
        added.token = rows[i].next;
        added.logprob = results[i].logprob;
        added.rank = results[i].rank;
        for (const kernels::TokenScore& top : results[i].top_logprobs) {
          added.top_logprobs.push_back({.token = top.token, .logprob = top.logprob});
        }
      }
    }
  }
}

}  // namespace sluice
