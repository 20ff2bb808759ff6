// SPDX-License-Identifier: Apache-2.0
// Decides which drafts become rows, and learns from them.
#include <algorithm>
#include <cstddef>
#include <span>

#include "scheduler/scheduler_impl.h"

namespace sluice {

bool Scheduler::wants_drafts() const { return impl_->budget.offers_wanted(); }

bool Scheduler::has_drafts_in_flight() const {
  return impl_->num_drafting > 0 && !impl_->options.follows_drafts;
}

bool Scheduler::is_disjoint() const { return impl_->is_disjoint(); }

bool Scheduler::follows_drafts() const { return impl_->options.follows_drafts; }

int32_t Scheduler::num_unchosen(RequestId id) const {
  const int32_t index = impl_->entry_of.find(id);
  if (index == IdMap::kAbsent) return 0;
  const Impl::Entry& e = impl_->entry(index);
  return e.num_pending_samples + e.num_drafts_in_flight;
}

// Whether a row may follow the request's drafts in flight: they do not end its answer, and no other
// request needs the block that the row may take.
bool Scheduler::Impl::may_follow(const Entry& e) const {
  if (!options.follows_drafts || e.draining() || e.num_drafts_in_flight == 0) return false;
  const int32_t num_upcoming = e.num_pending_samples + e.num_drafts_in_flight;
  if (e.num_pending_samples != 1) return false;
  if (e.request.num_generated() + num_upcoming >= e.request.max_tokens) return false;
  const int32_t end = e.request.num_scheduled_tokens + 1;
  return end <= e.num_allocated_tokens ||
         kv.has_unused(e.request.id, end, static_cast<int32_t>(running.size()));
}

const DraftSurvival& Scheduler::draft_survival() const { return impl_->budget.survival(); }

void Scheduler::list_decoding(std::vector<RequestId>& ids) const {
  const Impl& m = *impl_;
  ids.clear();
  for (const int32_t index : m.running) {
    const Impl::Entry& e = m.entry(index);
    if (m.may_decode(e)) ids.push_back(e.request.id);
  }
}

void Scheduler::offer_drafts(RequestId id, const Draft& draft) {
  if (draft.size > 0) impl_->offers.push_back({.id = id, .draft = draft});
}

void Scheduler::note_proposers(double ms) { impl_->offers_ms += ms; }

int32_t Scheduler::draft_depth(std::span<const RequestId> ids, int32_t most) const {
  StepShape plain;
  for (const RequestId id : ids) plain.add(/*decode=*/true, find(id)->num_tokens() - 1, 1);
  return impl_->budget.draft_depth(impl_->cost, plain, most);
}

void Scheduler::note_passes(int32_t num_requests, int32_t depth, double ms) {
  impl_->budget.observe_passes(num_requests, depth, ms);
}

std::vector<RowTimes::Measured> Scheduler::row_times() const {
  return impl_->budget.times().measured();
}

int32_t Scheduler::Impl::num_rows_left() const {
  return std::min(num_tokens_left(),
                  std::max(options.max_chosen_rows, options.max_num_seqs) - num_chosen_rows);
}

// How many drafts may follow a request's row of this step: they must fit its answer, the step, its
// states, and the blocks that it has or that no request needs.
int32_t Scheduler::Impl::drafts_allowed(const Entry& e, const ScheduledRequest& row) const {
  const int32_t allowed = std::min({e.request.max_tokens - e.request.num_generated() -
                                        e.num_pending_samples - e.num_drafts_in_flight,
                                    num_rows_left(),
                                    kv.most_drafts(row.end())});
  if (row.end() + allowed <= e.num_allocated_tokens) return allowed;
  const int32_t in_block = e.num_allocated_tokens - row.end();
  const int32_t in_next = std::min(allowed, in_block + kv.block_size());
  // One block is left for each running request, which may need it first.
  const auto num_spare = static_cast<int32_t>(running.size());
  return kv.has_unused(row.id, row.end() + in_next, num_spare) ? in_next : in_block;
}

// The row that the drafts of an offer would follow; null if the request does not decode in this
// step or decodes after a token that is not chosen yet, where no row follows drafts.
ScheduledRequest* Scheduler::Impl::row_of_offer(const Offer& offer) {
  const int32_t index = entry_of.find(offer.id);
  if (index == IdMap::kAbsent) return nullptr;
  const Entry& e = entry(index);
  if (e.last_step != output.step_id || e.row >= num_decoding) return nullptr;
  ScheduledRequest& row = output.scheduled[static_cast<size_t>(e.row)];
  return options.follows_drafts || row.end() == e.request.num_tokens() ? &row : nullptr;
}

// Adds drafts after all mandatory work: a draft takes no budget from prompts and no cached block.
void Scheduler::Impl::add_drafts() {
  if (offers.empty()) return;
  considered.clear();
  taken_offers.clear();
  bool is_short_of_blocks = false;
  for (size_t i = 0; i < offers.size(); ++i) {
    const ScheduledRequest* const row = row_of_offer(offers[i]);
    if (row == nullptr) continue;
    const Entry& e = entry(row->slot);
    const int32_t allowed = drafts_allowed(e, *row);
    if (allowed <= 0) {
      const bool is_last = e.request.num_generated() + 1 >= e.request.max_tokens;
      const bool has_others = is_last || kv.most_drafts(row->end()) == 0;
      is_short_of_blocks = is_short_of_blocks || (!has_others && num_rows_left() > 0);
      continue;
    }
    const std::span<const uint8_t> bins = offers[i].draft.confidence();
    considered.push_back({.source = offers[i].draft.source,
                          .bins = bins.first(std::min(bins.size(), static_cast<size_t>(allowed))),
                          .request = &e.acceptance,
                          .position = row->end()});
    taken_offers.push_back(i);
  }
  if (considered.empty()) {
    if (is_short_of_blocks) {
      output.drafts_off = DraftsOff::kBlocks;
    } else if (num_rows_left() <= 0) {
      output.drafts_off = DraftsOff::kLoad;
    }
    return;
  }
  granted_drafts.assign(considered.size(), 0);
  const DraftDecision decision = budget.choose(cost,
                                               {.shape = shape,
                                                .num_decodes = num_decoding,
                                                .max_draft_rows = num_rows_left(),
                                                .target_ms = options.step_target_ms,
                                                .draft_ms = offers_ms},
                                               considered,
                                               granted_drafts);
  output.drafts_off = decision.off;
  output.predicted_gain = decision.predicted_gain;
  for (size_t i = 0; i < considered.size(); ++i) {
    if (granted_drafts[i] > 0) take_drafts(taken_offers[i], granted_drafts[i]);
  }
}

void Scheduler::Impl::take_drafts(size_t offer, int32_t count) {
  ScheduledRequest& row = *row_of_offer(offers[offer]);
  Entry& e = entry(row.slot);
  count = std::min(count, drafts_allowed(e, row));  // others may have taken blocks since
  if (count <= 0) return;
  if (row.end() + count > e.num_allocated_tokens) {
    CHECK(kv.allocate_slots(row.id, row.end() + count));
    e.num_allocated_tokens = static_cast<int32_t>(align_up(row.end() + count, kv.block_size()));
  }
  shape.add(/*decode=*/true, row.end(), count);
  row.num_draft_tokens = count;
  row.draft_source = offers[offer].draft.source;
  row.num_scheduled_tokens += count;
  row.chosen.end += count;
  num_chosen_rows += count;
  num_drafting += e.num_drafts_in_flight == 0 ? 1 : 0;
  e.num_drafts_in_flight += count;
  e.offer = offer;
  e.request.num_scheduled_tokens += count;
  e.request.num_in_flight_tokens += count;
  num_tokens_in_flight += count;
  output.total_tokens += count;
}

// Learns from the drafts of a retired decode. Drafts of an ended request, or after its last token,
// were not verified.
void Scheduler::Impl::observe_drafts(const ScheduledRequest& row,
                                     std::span<const uint8_t> bins,
                                     const StepResult* result,
                                     DraftedStep& step) {
  Entry& e = entry(row.slot);
  const bool has_ended = e.request.abort_pending || e.request.status == RequestStatus::kFinished;
  if (has_ended || result == nullptr || result->tokens.empty()) return;
  ++step.num_decodes;
  step.num_draft_rows += row.num_draft_tokens;
  step.num_committed += static_cast<int32_t>(result->tokens.size());
  if (bins.empty()) return e.acceptance.forget();
  const size_t num_right = result->tokens.size() - 1;
  const std::span<const uint8_t> judged = result->finished ? bins.first(num_right) : bins;
  budget.observe_draft(
      row.draft_source, judged, static_cast<int32_t>(num_right), e.acceptance);
}

}  // namespace sluice
