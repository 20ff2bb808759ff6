// SPDX-License-Identifier: Apache-2.0
#include "engine/run/model_runner.h"

#include <algorithm>

#include "engine/models/rank_share.h"
#include "engine/parallel/rank_group.h"

namespace sluice {

bool ModelRunner::back_ahead(int32_t group, int32_t num_filled) {
  if (plan_.on_device) return false;
  constexpr int64_t kAhead = int64_t{256} << 20;
  const auto parts = static_cast<int64_t>(ranks_.size() * plan_.kv_groups.size());
  return std::ranges::any_of(ranks_, [&](const auto& rank) {
    return rank->kv_storage().back_ahead(group, num_filled, kAhead / parts);
  });
}

void ModelRunner::fail_group(const std::string& why) {
  if (group_) group_->fail(why);
}

std::string ModelRunner::group_failure() const { return group_ ? group_->why() : std::string(); }

// The destructor of a failed group waits until recorded work of every rank is gone.
ModelRunner::~ModelRunner() {
  // Without links it has not served, and the others must not take that for an end in order.
  if (group_ && !links_.empty()) group_->end();
  links_.clear();
  for (const auto& rank : ranks_) rank->drop_recorded();
  for (const auto& rank : ranks_) rank->disconnect();
}

void ModelRunner::execute(std::span<const KvBlockCopy> copies, const InputBatch& batch) {
  const ForwardBatch step = batch.view();
  const std::optional<size_t> bucket =
      buckets_ && batch.prompt_rows().empty() ? buckets_->find(step) : std::nullopt;
  has_logits_ = bucket.has_value() || step.logits_indices.empty();
  run({.batch = &step,
       .copies = copies,
       .bucket = bucket,
       .samples = sampling_->chooses() ? sampling_->rows() : nullptr,
       .begun = sampling_->begun()});
}

void ModelRunner::run(const RankJob& job, std::span<const std::unique_ptr<RankLinks>> links) {
  for (const auto& each : links) each->start(job);
  ranks_.front()->run(job);
  for (const auto& each : links) each->finish();
}

// The other stages get the job after the step's layers, so that the rows come as soon as they are
// there.
void ModelRunner::begin_logits() {
  if (has_logits_) return;
  const RankJob job = {.kind = RankJob::Kind::kLogits};
  steps_in_flight_ > 1 ? links_.front()->start(job) : run(job);
}

void ModelRunner::end_logits(const InputBatch& batch) {
  const std::span<const int32_t> rows = batch.view().logits_indices;
  if (steps_in_flight_ == 1 || rows.empty()) return;
  run({.kind = RankJob::Kind::kLogits, .rows = rows}, std::span(links_).subspan(1));
}

void ModelRunner::compute_logits(std::span<const int32_t> rows) {
  run({.kind = RankJob::Kind::kLogits, .rows = rows});
}

KvRanks ModelRunner::kv_ranks() const {
  if (ranks_.size() == 1) return KvRanks(ranks_.front()->kv_storage());
  std::vector<KvRanks::Rank> all;
  for (const auto& rank : ranks_) {
    KvRanks::Rank one{.storage = &rank->kv_storage()};
    const Model& model = rank->model();
    for (const LayerGroup& group : model.layer_groups(DType::kF32)) {
      one.shares.push_back(plane_shares(model.config(), group));
    }
    all.push_back(std::move(one));
  }
  return KvRanks(std::move(all));
}

const float* ModelRunner::embed(std::span<const int32_t> rows) {
  run({.kind = RankJob::Kind::kStates, .rows = rows});
  if (has_failed()) return nullptr;
  const float* const states = ranks_.front()->embedded();
  if (host_rows_.size() == 0) return states;
  const size_t bytes = rows.size() * static_cast<size_t>(model().hidden) * sizeof(float);
  CHECK_LE(bytes, host_rows_.size());
  device().memory().download(
      host_rows_.data(), reinterpret_cast<const std::byte*>(states), static_cast<int64_t>(bytes));
  device().memory().wait();
  return reinterpret_cast<const float*>(host_rows_.data());
}

float* ModelRunner::begin_host_copy(size_t first, size_t count) {
  const size_t row = static_cast<size_t>(model().vocab_size) * sizeof(float);
  std::byte* const from = reinterpret_cast<std::byte*>(logits()) + first * row;
  std::byte* const to = host_rows_.size() > 0 ? host_rows_.data() + first * row : from;
  device().memory().download(to, from, static_cast<int64_t>(count * row));
  is_copying_ = true;
  return reinterpret_cast<float*>(to);
}

void ModelRunner::wait_for_host_copies() {
  if (is_copying_) device().memory().wait();
  is_copying_ = false;
}

}  // namespace sluice
