// SPDX-License-Identifier: Apache-2.0
#include "engine/followers.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sluice {
namespace {

// As compute threads are, so that I/O threads get in.
constexpr int kNice = 5;

}  // namespace

Followers::Followers(std::vector<std::unique_ptr<ModelRank>> ranks,
                     std::vector<std::unique_ptr<Communicator>> communicators)
    : ranks_(std::move(ranks)), communicators_(std::move(communicators)) {
  CHECK_EQ(ranks_.size(), communicators_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    threads_.emplace_back([this, i] { thread_main(*ranks_[i], *communicators_[i]); });
  }
}

Followers::~Followers() {
  is_ending_ = true;
  num_started_.fetch_add(1);
  num_started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Followers::start(const RankJob& job) {
  job_ = job;
  num_running_.store(static_cast<uint32_t>(ranks_.size()), std::memory_order_relaxed);
  num_started_.fetch_add(1);
  num_started_.notify_all();
}

void Followers::finish() {
  for (uint32_t left = num_running_.load(); left != 0; left = num_running_.load()) {
    wait_for_change(num_running_, left);
  }
}

void Followers::wait_until_backed() const {
  for (const auto& rank : ranks_) rank->prefault->wait();
}

void Followers::thread_main(ModelRank& rank, Communicator& communicator) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  rank.device->enter();
  for (uint32_t seen = 0;; ++seen) {
    wait_for_change(num_started_, seen);
    if (is_ending_) return;
    const ForwardContext context{.exec = rank.device->context(),
                                 .batch = *job_.batch,
                                 .caches = rank.caches,
                                 .communicator = &communicator};
    if (job_.kind == RankJob::Kind::kForward) {
      for (const KvBlockCopy& copy : job_.copies) {
        rank.kv_storage.copy_block(copy.group, copy.from, copy.to);
      }
      rank.model->forward(context);
    } else {
      rank.model->logits(context, job_.rows, nullptr);
    }
    if (num_running_.fetch_sub(1) == 1) num_running_.notify_all();
  }
}

}  // namespace sluice
