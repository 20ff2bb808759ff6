// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice {
namespace {

// The aimed-at size of all buffers, and the most of them.
constexpr int64_t kBufferBytes = int64_t{32} << 20;
constexpr int64_t kMaxBuffers = 64;

int64_t buffer_stride(const KvTierOptions& options) {
  return align_up(kv_tier_block_bytes(options), 64);
}

int64_t count_buffers(const KvTierOptions& options) {
  return std::clamp(kBufferBytes / buffer_stride(options), options.least_buffers, kMaxBuffers);
}

}  // namespace

int64_t kv_tier_buffer_bytes(const KvTierOptions& options) {
  return count_buffers(options) * buffer_stride(options);
}

KvTier::KvTier(const KvTierOptions& options,
               std::unique_ptr<KvPlace> place,
               std::function<void()> wake,
               int32_t num_buffers)
    : options_(options),
      place_(std::move(place)),
      wake_(std::move(wake)),
      index_(options.max_bytes / kv_tier_block_bytes(options)),
      jobs_(static_cast<size_t>(num_buffers)) {
  for (int32_t buffer = num_buffers - 1; buffer >= 0; --buffer) free_buffers_.push_back(buffer);
  token_ids_.resize(static_cast<size_t>(num_buffers) * static_cast<size_t>(options.block_size));
}

Expected<std::unique_ptr<KvTier>> KvTier::create(const KvTierOptions& options,
                                                 std::unique_ptr<KvPlace> place,
                                                 std::function<void()> wake) {
  std::unique_ptr<KvTier> tier(new KvTier(
      options, std::move(place), std::move(wake), static_cast<int32_t>(count_buffers(options))));
  SLUICE_TRY(tier->buffers_, AlignedBuffer::allocate(kv_tier_buffer_bytes(options), "KV tier"));
  tier->thread_ = std::thread([self = tier.get()] { self->run(); });
  return tier;
}

KvTier::~KvTier() {
  closing_ = true;
  jobs_.close();
  if (thread_.joinable()) thread_.join();
}

void KvTier::add_found(std::span<const TierIndex::Name> names) {
  for (const TierIndex::Name& name : names) index_.insert(name);
  evict_but({});
}

std::span<std::byte> KvTier::block_bytes(int32_t buffer) const {
  return buffers_.span().subspan(static_cast<size_t>(buffer * buffer_stride(options_)),
                                 static_cast<size_t>(kv_tier_block_bytes(options_)));
}

std::span<std::byte> KvTier::payload(int32_t buffer) const {
  return block_bytes(buffer).subspan(
      static_cast<size_t>(kv_file_header_bytes(options_.block_size)));
}

KvFileName KvTier::file_name(const Job& job) const {
  const auto size = static_cast<size_t>(options_.block_size);
  return {job.name.key,
          job.name.parent,
          std::span(token_ids_).subspan(static_cast<size_t>(job.buffer) * size, size)};
}

int32_t KvTier::take_buffer() {
  if (free_buffers_.empty()) return kNone;
  const int32_t buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

void KvTier::give_back(int32_t buffer) { free_buffers_.push_back(buffer); }

void KvTier::queue(Kind kind, const KvFileName& name, int32_t buffer, uint64_t ticket) {
  if (buffer != kNone) {
    CHECK_EQ(name.token_ids.size(), static_cast<size_t>(options_.block_size));
    std::ranges::copy(name.token_ids, token_ids_.begin() + int64_t{buffer} * options_.block_size);
  }
  jobs_.push_urgent({kind, {name.key, name.parent}, buffer, ticket});
}

// Evicts down to the limit. `wanted` needs no removal: it has not been written yet.
void KvTier::evict_but(const KvKey& wanted) {
  while (const auto name = index_.evict()) {
    notify(name->key, false);
    if (name->key != wanted) queue(Kind::kRemove, {name->key, name->parent, {}}, kNone, 0);
  }
}

void KvTier::notify(const KvKey& key, bool is_there) const {
  if (listener_) listener_(key, is_there);
}

bool KvTier::save(const KvFileName& name, int32_t buffer) {
  index_.insert({name.key, name.parent});
  evict_but(name.key);
  if (!index_.contains(name.key)) {
    give_back(buffer);
    return false;
  }
  queue(Kind::kSave, name, buffer, 0);
  return true;
}

void KvTier::load(const KvFileName& name, int32_t buffer, uint64_t ticket) {
  index_.touch(name.key);
  queue(Kind::kLoad, name, buffer, ticket);
}

void KvTier::collect(std::vector<Loaded>& loaded) {
  woken_ = false;
  if (!has_done_.exchange(false)) return;
  collected_.clear();
  {
    const std::scoped_lock lock(done_mutex_);
    collected_.swap(done_);
  }
  for (const Done& done : collected_) {
    const TierIndex::Name& name = done.job.name;
    if (done.ok) {
      if (done.job.kind == Kind::kSave && index_.contains(name.key)) notify(name.key, true);
    } else if (index_.contains(name.key)) {
      // Any file that is there, broken or written meanwhile, would take space that is not counted.
      index_.erase(name.key);
      notify(name.key, false);
      queue(Kind::kRemove, {name.key, name.parent, {}}, kNone, 0);
    }
    if (done.job.kind == Kind::kLoad) {
      loaded.push_back({done.job.ticket, done.job.buffer, done.ok, done.seconds});
      continue;
    }
    num_written_ += done.ok ? 1 : 0;
    give_back(done.job.buffer);
  }
}

// --- The tier's thread -----------------------------------------------------------------------

void KvTier::run() {
  constexpr std::chrono::hours kLong{1};
  std::vector<Job> jobs;
  while (true) {
    jobs_.wait_for(kLong);
    jobs_.drain(jobs);
    if (jobs.empty() && closing_) return;
    for (const Job& job : jobs) do_job(job);
  }
}

void KvTier::do_job(const Job& job) {
  using Clock = std::chrono::steady_clock;
  if (job.kind == Kind::kRemove) return place_->remove(job.name);
  if (job.kind == Kind::kLoad && closing_) return;  // the owner collects no more
  const Clock::time_point started = Clock::now();
  const bool ok = job.kind == Kind::kSave ? place_->put(file_name(job), block_bytes(job.buffer))
                                          : place_->get(file_name(job), block_bytes(job.buffer));
  const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  {
    const std::scoped_lock lock(done_mutex_);
    done_.push_back({job, ok, seconds});
  }
  has_done_ = true;
  if (job.kind == Kind::kLoad && !woken_.exchange(true)) wake_();
}

}  // namespace sluice
