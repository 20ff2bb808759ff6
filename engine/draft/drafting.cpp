// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/drafting.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

namespace sluice {

Drafting::Drafting(const SpecConfig& config,
                   int32_t vocab_size,
                   const Tokenizer& tokenizer,
                   const KvCacheManager& kv,
                   DraftModel* model)
    : config_(config),
      kv_(kv),
      model_(model),
      speculator_(config, vocab_size, [&tokenizer](TokenId token) {
        return tokenizer.is_special(token) ? std::string_view() : tokenizer.token_bytes(token);
      }) {}

void Drafting::begin(std::shared_ptr<const RequestRecord> request) {
  const bool drafts =
      config_.has_method() || !request->prediction.empty() || request->grammar != nullptr;
  if (request->pooling || !request->speculative || !drafts) return;
  const RequestId id = request->id;
  waiting_.emplace(id, std::move(request));
}

// Begins the requests of ids_ that have just started to decode.
void Drafting::begin_decoding() {
  if (waiting_.empty()) return;
  for (const RequestId id : ids_) {
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) continue;
    const RequestRecord& request = *found->second;
    speculator_.begin(request);
    if (model_ != nullptr) model_->begin(id, request.sampling);
    begun_.insert(id);
    waiting_.erase(found);
  }
}

void Drafting::end(RequestId id) {
  waiting_.erase(id);
  if (begun_.erase(id) == 0) return;
  speculator_.end(id);
  if (model_ != nullptr) model_->end(id);
}

int32_t Drafting::most_tokens(const Scheduler& scheduler) const {
  if ((begun_.empty() && waiting_.empty()) || !scheduler.wants_drafts()) return 0;
  return config_.max_tokens(scheduler.num_running());
}

void Drafting::count_asking(std::chrono::steady_clock::time_point begin,
                            Scheduler& scheduler,
                            DraftStats& stats) {
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begin;
  stats.proposer_ns += static_cast<uint64_t>(passed.count());
  scheduler.note_proposers(1e-6 * static_cast<double>(passed.count()));
}

// Proposes tokens that follow those that steps in flight append if all their drafts are accepted.
void Drafting::propose_behind(const Scheduler& scheduler,
                              RequestId id,
                              int32_t most,
                              Draft& draft) {
  const int32_t ahead = scheduler.follows_drafts() ? scheduler.num_unchosen(id) : 0;
  speculator_.propose(id, most + ahead, scheduler.draft_survival(), draft);
  if (ahead == 0) return;
  draft.size = std::max(0, draft.size - ahead);
  const auto rest = static_cast<size_t>(ahead);
  std::copy_n(draft.tokens.begin() + rest, draft.size, draft.tokens.begin());
  std::copy_n(draft.bins.begin() + rest, draft.size, draft.bins.begin());
}

// Whether a head will be asked about rows of steps in flight, or of the latest one.
bool Drafting::has_rows_for_head(const Scheduler& scheduler) const {
  if (model_ == nullptr || !model_->is_head()) return false;
  const auto is_in_flight = [&](RequestId id) {
    const Request* const request = scheduler.find(id);
    return request != nullptr && request->num_in_flight_tokens > 0;
  };
  const auto has_begun = [&](const StepRows& rows) { return begun_.contains(rows.id); };
  return std::ranges::any_of(followed_, has_begun) || std::ranges::any_of(begun_, is_in_flight);
}

bool Drafting::should_wait(Scheduler& scheduler, DraftStats& stats) {
  if (scheduler.is_disjoint()) return false;
  const int32_t most = most_tokens(scheduler);
  if (scheduler.has_drafts_in_flight()) return true;
  if (most == 0) return false;
  if (has_rows_for_head(scheduler)) return true;
  scheduler.list_decoding(ids_);
  if (model_ != nullptr) {
    return std::ranges::any_of(
        ids_, [&](RequestId id) { return begun_.contains(id) || waiting_.contains(id); });
  }
  if (scheduler.follows_drafts()) return false;
  const auto begin = std::chrono::steady_clock::now();
  drafts_.resize(1);
  const bool has_draft = std::ranges::any_of(ids_, [&](RequestId id) {
    speculator_.propose(id, most, scheduler.draft_survival(), drafts_.front());
    return drafts_.front().size > 1;  // the first one stands for the token being chosen
  });
  count_asking(begin, scheduler, stats);
  return has_draft;
}

void Drafting::follow(const SchedulerOutput& decision) {
  if (model_ == nullptr || !model_->is_head()) return;
  followed_.clear();
  int32_t row = 0;
  for (const ScheduledRequest& item : decision.scheduled) {
    followed_.push_back({.id = item.id, .row = row, .position = item.num_computed_tokens});
    row += item.num_scheduled_tokens;
  }
}

// The tokens of a partly computed prompt are known up to the one after its last row.
void Drafting::add_task(const Request& request, int32_t max) {
  DraftTask& task = tasks_.emplace_back();
  task.id = request.id;
  task.known = request.tokens();
  task.blocks = kv_.block_table(request.id, model_->kv_group());
  task.num_prompt_tokens = request.num_prompt_tokens;
  task.num_cached_tokens = request.num_cached_tokens;
  task.max = max;
  if (!model_->is_head()) return;
  const auto num_known = static_cast<size_t>(request.num_computed_tokens) + 1;
  task.known = task.known.first(std::min(num_known, task.known.size()));
  const auto rows = std::ranges::find(followed_, request.id, &StepRows::id);
  if (rows == followed_.end()) return;
  task.first_row = rows->row;
  task.num_rows = std::max(0, request.num_computed_tokens - rows->position);
}

// Runs the model on tasks_; drafting tasks ask for `depth` tokens.
void Drafting::run_model(Scheduler& scheduler, int32_t depth) {
  using Clock = std::chrono::steady_clock;
  modelled_.resize(tasks_.size());
  const Clock::time_point begin = Clock::now();
  model_->propose(tasks_, modelled_);
  const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
  const auto num_drafting = static_cast<int32_t>(
      std::ranges::count_if(tasks_, [](const DraftTask& task) { return task.max > 0; }));
  if (num_drafting > 0) scheduler.note_passes(num_drafting, depth, passed.count());
}

void Drafting::ask_model(Scheduler& scheduler, int32_t most) {
  constexpr double kSureProposer = 1;  // expected accepted tokens of its draft
  const DraftSurvival& survival = scheduler.draft_survival();
  const auto expected = [&](const Draft& draft) {
    return survival.expected(draft.source, draft.confidence(), {});
  };
  const int32_t depth = scheduler.draft_depth(ids_, most);
  tasks_.clear();
  asked_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!begun_.contains(ids_[i])) continue;
    const bool is_sure = expected(drafts_[i]) > kSureProposer;
    if (is_sure && !model_->is_head()) continue;
    add_task(*scheduler.find(ids_[i]), is_sure ? 0 : depth);
    asked_.push_back(i);
  }
  for (const StepRows& rows : followed_) {
    const Request* request = scheduler.find(rows.id);
    const bool is_asked = std::ranges::find(ids_, rows.id) != ids_.end();
    if (request != nullptr && !is_asked && begun_.contains(rows.id)) add_task(*request, 0);
  }
  run_model(scheduler, depth);
  for (size_t i = 0; i < asked_.size(); ++i) {
    Draft& draft = drafts_[asked_[i]];
    if (expected(modelled_[i]) > expected(draft)) draft = modelled_[i];
  }
}

void Drafting::offer(Scheduler& scheduler, DraftStats& stats) {
  const int32_t most = most_tokens(scheduler);
  if (most == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  scheduler.list_decoding(ids_);
  begin_decoding();
  drafts_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    propose_behind(scheduler, ids_[i], most, drafts_[i]);
  }
  if (model_ != nullptr) ask_model(scheduler, most);
  followed_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) scheduler.offer_drafts(ids_[i], drafts_[i]);
  count_asking(begin, scheduler, stats);
}

void Drafting::count(
    DraftSource source, size_t num_drafts, size_t num_tokens, bool ended, DraftStats& stats) {
  if (num_drafts == 0) return;
  const size_t num_accepted = num_tokens == 0 ? 0 : num_tokens - 1;
  const auto i = static_cast<size_t>(source);
  ++stats.num_drafts[i];
  stats.num_draft_tokens[i] += num_drafts;
  stats.num_accepted_tokens[i] += num_accepted;
  for (size_t k = 0; k < num_accepted; ++k) ++stats.num_accepted_at[k];
  if (ended) stats.num_padded_rows += num_drafts - num_accepted;
  stats.depth.observe(kDraftDepthBounds, static_cast<double>(num_drafts));
}

}  // namespace sluice
