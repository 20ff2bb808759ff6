// SPDX-License-Identifier: Apache-2.0
#include "engine/rank/model_rank.h"

#include <xxhash.h>

#include "kernels/sampling.h"
#include "kernels/trace.h"

namespace sluice {

void ModelRank::run(const RankJob& job) {
  if (!has_failed()) run_job(job);
  // The other ranks of this stage wait for what this one has from other stages.
  if (communicator_ != nullptr && has_failed()) communicator_->fail();
}

void ModelRank::run_job(const RankJob& job) {
  if (job.kind == RankJob::Kind::kLayers) return run_layers(job);
  const std::span<const int32_t> rows =
      job.rows ? device_batch_->upload_rows(*job.rows) : step_.logits_indices;
  job.kind == RankJob::Kind::kLogits ? run_logits(rows) : run_states(rows);
}

void ModelRank::run_layers(const RankJob& job) {
  step_ = device_batch_->upload(job.bucket ? buckets_->pad(*job.batch, *job.bucket) : *job.batch);
  hidden_ = job.hidden;
  if (job.begun != nullptr && is_first()) job.begun->record();
  take_pending_tokens();
  place_following(job.samples);
  for (const KvBlockCopy& copy : job.copies) {
    kv_storage_.copy_block(copy.group, copy.from, copy.to);
  }
  if (job.bucket) {
    const kernels::TraceRange range(device_.type(), "recorded layers");
    return recorded_[*job.bucket]->run();
  }
  model_->forward(context());
  note_state();
}

// The residual stream is equal on all ranks: the next exchange, in front of any token that follows
// from this step, compares it.
void ModelRank::note_state() {
  uint64_t* const state = communicator_ != nullptr ? communicator_->state() : nullptr;
  if (state == nullptr) return;
  const size_t floats = step_.token_ids.size() * static_cast<size_t>(model_->config().hidden);
  *state = XXH3_64bits_withSeed(model_->states(), floats * sizeof(float), *state);
}

// Takes pending tokens from rank 0's device, where the sampler left them.
void ModelRank::take_pending_tokens() {
  if (step_.pending_tokens.empty()) return;
  const TokenId* chosen = chosen_;
  if (communicator_ != nullptr) {
    const auto parts = communicator_->all_gather(std::as_bytes(
        std::span<const TokenId>(chosen_, static_cast<size_t>(bounds_.step.max_logits))));
    if (parts.empty()) return;
    chosen = reinterpret_cast<const TokenId*>(parts.front());
  }
  kernels::take_tokens(exec_,
                       {.pending = step_.pending_tokens,
                        .chosen = chosen,
                        .token_ids = device_batch_->token_ids(),
                        .vocab_size = model_->config().vocab_size});
}

// Places rows that follow drafts; only a single rank supports them.
void ModelRank::place_following(kernels::SampleRow* samples) {
  if (step_.following.empty()) return;
  CHECK(communicator_ == nullptr);
  kernels::PlaceFollowingArgs args = device_batch_->following(step_);
  args.chosen = chosen_;
  args.vocab_size = model_->config().vocab_size;
  args.samples = samples;
  kernels::place_following(exec_, args);
}

void ModelRank::run_logits(std::span<const int32_t> rows) {
  CHECK_LE(rows.size(), static_cast<size_t>(bounds_.step.max_logits));
  if (!rows.empty()) model_->logits(context(), rows, logits());
}

void ModelRank::run_states(std::span<const int32_t> rows) {
  CHECK_LE(rows.size(), static_cast<size_t>(bounds_.step.max_logits));
  embedded_ = model_->embed(context(), rows);
  // No other exchange follows before the rows are given out.
  if (communicator_ != nullptr && communicator_->state() != nullptr) {
    communicator_->all_gather({});
  }
}

}  // namespace sluice
