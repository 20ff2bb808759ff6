// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/transport_nccl_link.h"

#include <utility>

namespace sluice {

using kernels::kNcclInProgress;
using kernels::kNcclSuccess;
using kernels::NcclResult;

namespace {

constexpr int kPair = 2;
// As many multiprocessors as a transfer needs to saturate the path between two GPUs, and no more:
// decodes that run meanwhile use the same ones.
constexpr int kMostBlocks = 4;
constexpr size_t kMostRunning = 8;

}  // namespace

NcclLink::NcclLink(const kernels::NcclLibrary& library,
                   kernels::DeviceMemory& memory,
                   const kernels::NcclId& id,
                   int rank)
    : library_(library), peer_(1 - rank), queue_(memory.make_queue()) {
  kernels::NcclConfig config;
  config.blocking = 0;
  config.max_ctas = kMostBlocks;
  const NcclResult made = library_.comm_init_rank_config(&comm_, kPair, id, rank, &config);
  if (made != kNcclSuccess && made != kNcclInProgress) abort();
}

NcclLink::~NcclLink() {
  abort();
  if (aborting_.joinable()) aborting_.join();
}

NcclResult NcclLink::query_state() {
  NcclResult state = kNcclSuccess;
  const NcclResult asked = library_.comm_get_async_error(comm_, &state);
  return asked == kNcclSuccess ? state : asked;
}

void NcclLink::send(uint64_t number, std::span<const std::byte> bytes) {
  Operation operation;
  operation.number = number;
  operation.from = bytes.data();
  operation.bytes = bytes.size();
  if (first_ == 0) first_ = number;
  waiting_.push_back(std::move(operation));
  begin_waiting();
}

void NcclLink::receive(uint64_t number, uint64_t /*place*/, std::span<std::byte> bytes) {
  Operation operation;
  operation.number = number;
  operation.to = bytes.data();
  operation.bytes = bytes.size();
  waiting_.push_back(std::move(operation));
}

void NcclLink::begin_waiting() {
  while (state_ == State::kReady && !is_beginning_ && !waiting_.empty() &&
         running_.size() < kMostRunning) {
    Operation next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(std::move(next));
  }
}

// While NCCL enqueues an operation, no other call is made and the stream is not used.
void NcclLink::begin(Operation operation) {
  void* const stream = queue_->stream();
  const NcclResult result =
      operation.from != nullptr
          ? library_.send(operation.from, operation.bytes, kernels::kNcclInt8, peer_, comm_, stream)
          : library_.receive(
                operation.to, operation.bytes, kernels::kNcclInt8, peer_, comm_, stream);
  running_.push_back(std::move(operation));
  if (result == kNcclSuccess) return note_begun();
  is_beginning_ = result == kNcclInProgress;
  if (!is_beginning_) abort();
}

void NcclLink::note_begun() {
  is_beginning_ = false;
  last_begun_ = running_.back().number;
  std::unique_ptr<kernels::DeviceEvent>& done = running_.back().done;
  if (events_.empty()) {
    done = queue_->make_event();
  } else {
    done = std::move(events_.back());
    events_.pop_back();
  }
  done->record();
}

void NcclLink::advance(std::vector<uint64_t>& done) {
  if (state_ == State::kBroken) return;
  const NcclResult now = query_state();
  // Operations that were done before an abort are done, whatever the error.
  while (!running_.empty() && running_.front().done != nullptr &&
         running_.front().done->is_done()) {
    done.push_back(running_.front().number);
    events_.push_back(std::move(running_.front().done));
    running_.pop_front();
  }
  if (now != kNcclSuccess && now != kNcclInProgress) return abort();
  if (now == kNcclInProgress) return;
  state_ = State::kReady;
  if (is_beginning_) note_begun();
  begin_waiting();
}

void NcclLink::abort() {
  state_ = State::kBroken;
  if (comm_ == nullptr) {
    is_aborted_ = is_aborted_ || !aborting_.joinable();
    return;
  }
  aborting_ = std::thread([this, comm = std::exchange(comm_, nullptr)] {
    library_.comm_abort(comm);
    is_aborted_ = true;
  });
}

// Nothing is queued after the abort, so an event recorded then follows all that was begun.
bool NcclLink::is_gone() {
  if (!is_aborted_) return false;
  if (last_ == nullptr) {
    last_ = queue_->make_event();
    last_->record();
  }
  return last_->is_done();
}

}  // namespace sluice
