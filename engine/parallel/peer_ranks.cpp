// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/peer_ranks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/log.h"
#include "kernels/device_memory.h"
#include "kernels/peer_rows.h"

namespace sluice {
namespace {

using kernels::DeviceBuffer;
using kernels::PeerWindows;

constexpr std::chrono::seconds kProbeLimit{5};
// Words of the probe's parts, from one to more than all blocks of a launch take at once; each is
// exchanged once in either half of the windows.
constexpr size_t kProbeWords[] = {1, 1, 3000, 3000, 64 << 10, 64 << 10};

kernels::ExecContext context_of(const DeviceRank& rank) {
  return {.device = DeviceType::kCuda, .stream = rank.stream};
}

// Words of all bit patterns.
std::vector<uint32_t> probe_words(size_t count, size_t rank, size_t round) {
  uint64_t state = (rank << 32) + round + 1;
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    word = static_cast<uint32_t>(state >> 32);
  }
  return words;
}

// What the ranks share: their windows, and the word that ends all waits.
class PeerGroup {
 public:
  // Error: why the ranks cannot exchange.
  static Expected<std::shared_ptr<PeerGroup>> create(std::span<const DeviceRank> ranks,
                                                     std::chrono::nanoseconds limit) {
    const auto refuse = [](const std::string& why) {
      return make_error(ErrorCode::kUnavailable, why);
    };
    if (ranks.size() != 2 && ranks.size() != 4 && ranks.size() != 8) {
      return refuse("not 2, 4 or 8 ranks");
    }
    for (const DeviceRank& rank : ranks) {
      if (std::ssize(rank.window) < kernels::kPeerWindowBytes) return refuse("no memory for it");
      for (const DeviceRank& other : ranks) {
        if (&rank == &other || kernels::open_window(*rank.memory, rank.window, *other.memory)) {
          continue;
        }
        return refuse(other.name + " " + std::to_string(other.device) + " does not reach " +
                      rank.name + " " + std::to_string(rank.device));
      }
    }
    auto group = std::shared_ptr<PeerGroup>(new PeerGroup(static_cast<int32_t>(ranks.size())));
    SLUICE_TRY(group->stop_,
               DeviceBuffer::allocate_pinned(
                   *ranks.front().memory, sizeof(uint32_t), "exchange of ranks"));
    group->stop() = 0;
    for (size_t i = 0; i < ranks.size(); ++i) group->windows_[i] = ranks[i].window.data();
    for (const DeviceRank& rank : ranks) group->memories_.push_back(rank.memory);
    group->limit_ = std::min<std::chrono::nanoseconds>(limit, kProbeLimit);
    SLUICE_TRY_VOID(group->probe(ranks));
    group->limit_ = limit;
    return group;
  }

  ~PeerGroup() {
    // No launch may still write a window, or look at the word, when they are released.
    for (kernels::DeviceMemory* const memory : memories_) memory->wait();
  }

  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  [[nodiscard]] PeerWindows windows(int32_t rank) const {
    return {.rank = rank,
            .size = meeting_.size(),
            .windows = windows_,
            .stop = reinterpret_cast<uint32_t*>(stop_.data()),
            .limit_ns = limit_.count()};
  }

  bool meet() { return meeting_.arrive(); }

  void fail() {
    stop() = 1;
    meeting_.fail();
  }

  // GPUs set the word, too.
  [[nodiscard]] bool has_failed() const { return stop() != 0; }

 private:
  explicit PeerGroup(int32_t size) : meeting_(size) {}

  [[nodiscard]] std::atomic_ref<uint32_t> stop() const {
    return std::atomic_ref(*reinterpret_cast<uint32_t*>(stop_.data()));
  }

  Expected<void> probe(std::span<const DeviceRank> ranks) {
    constexpr size_t kMostWords = *std::ranges::max_element(kProbeWords);
    constexpr int64_t kPartBytes = kMostWords * sizeof(uint32_t);
    std::vector<DeviceBuffer> buffers;
    for (const DeviceRank& rank : ranks) {
      const int64_t bytes = kPartBytes * (1 + 2 * std::ssize(ranks));
      SLUICE_TRY(buffers.emplace_back(),
                 DeviceBuffer::allocate(*rank.memory, bytes, "a probe of the ranks' exchange"));
    }
    for (size_t round = 0; round < std::size(kProbeWords); ++round) {
      SLUICE_TRY_VOID(probe_once(ranks, buffers, round, kPartBytes));
    }
    return probe_chain(ranks, buffers, kPartBytes);
  }

  // No copy to or from the host is called while a GPU may wait for another one.
  Expected<void> probe_once(std::span<const DeviceRank> ranks,
                            std::span<const DeviceBuffer> buffers,
                            size_t round,
                            int64_t part_bytes) {
    const size_t count = kProbeWords[round];
    const size_t bytes = count * sizeof(uint32_t);
    std::vector<uint32_t> want;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::vector<uint32_t> own = probe_words(count, i, round);
      want.insert(want.end(), own.begin(), own.end());
      ranks[i].memory->upload(buffers[i].data(),
                              reinterpret_cast<const std::byte*>(own.data()),
                              static_cast<int64_t>(bytes));
      ranks[i].memory->wait();
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].memory->enter();
      const PeerWindows own = windows(static_cast<int32_t>(i));
      kernels::gather_peers(context_of(ranks[i]),
                            {.peers = &own,
                             .part = {buffers[i].data(), bytes},
                             .received = buffers[i].data() + part_bytes});
    }
    return compare(ranks, want, [&](size_t i) { return buffers[i].data() + part_bytes; });
  }

  // Exchanges as steps do, without the host between them. Each part is another rank's of the
  // exchange before, so that a wrong word stays one to the end.
  Expected<void> probe_chain(std::span<const DeviceRank> ranks,
                             std::span<const DeviceBuffer> buffers,
                             int64_t part_bytes) {
    constexpr size_t kLinks = 16;
    constexpr size_t kWords = 3000;
    constexpr size_t kBytes = kWords * sizeof(uint32_t);
    const size_t size = ranks.size();
    const auto received = [&](size_t i, size_t link) {
      return buffers[i].data() + part_bytes * static_cast<int64_t>(1 + link % 2 * size);
    };
    for (size_t i = 0; i < size; ++i) {
      const std::vector<uint32_t> own = probe_words(kWords, i, kLinks);
      ranks[i].memory->upload(
          buffers[i].data(), reinterpret_cast<const std::byte*>(own.data()), kBytes);
      ranks[i].memory->wait();
    }
    for (size_t link = 0; link < kLinks; ++link) {
      for (size_t i = 0; i < size; ++i) {
        ranks[i].memory->enter();
        const PeerWindows own = windows(static_cast<int32_t>(i));
        const std::byte* const part = link == 0
                                          ? buffers[i].data()
                                          : received(i, link - 1) + (i + 1) % size * kBytes;
        kernels::gather_peers(
            context_of(ranks[i]),
            {.peers = &own, .part = {part, kBytes}, .received = received(i, link)});
      }
    }
    std::vector<uint32_t> want;
    for (size_t i = 0; i < size; ++i) {
      const std::vector<uint32_t> part = probe_words(kWords, (i + kLinks - 1) % size, kLinks);
      want.insert(want.end(), part.begin(), part.end());
    }
    return compare(ranks, want, [&](size_t i) { return received(i, kLinks - 1); });
  }

  // Waits for all ranks, then compares what each has got.
  template <typename Received>
  Expected<void> compare(std::span<const DeviceRank> ranks,
                         const std::vector<uint32_t>& want,
                         Received received) {
    for (const DeviceRank& rank : ranks) rank.memory->wait();
    std::vector<uint32_t> found(want.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].memory->download(reinterpret_cast<std::byte*>(found.data()),
                                received(i),
                                static_cast<int64_t>(found.size() * sizeof(uint32_t)));
      ranks[i].memory->wait();
      if (!has_failed() && found == want) continue;
      return make_error(ErrorCode::kUnavailable,
                        ranks[i].name + " " + std::to_string(ranks[i].device) +
                            (has_failed() ? ": words of another GPU did not come"
                                          : ": words of another GPU came as others"));
    }
    return {};
  }

  Meeting meeting_;
  std::array<std::byte*, kernels::kMostPeers> windows_ = {};
  std::vector<kernels::DeviceMemory*> memories_;
  DeviceBuffer stop_;
  std::chrono::nanoseconds limit_{0};
};

class PeerRank final : public Communicator {
 public:
  PeerRank(std::shared_ptr<PeerGroup> group,
           std::unique_ptr<Communicator> library,
           const DeviceRank& own)
      : group_(std::move(group)),
        library_(std::move(library)),
        own_(own),
        windows_(group_->windows(library_->rank())),
        table_(static_cast<size_t>(library_->size())) {}

  [[nodiscard]] int32_t rank() const override { return library_->rank(); }

  [[nodiscard]] int32_t size() const override { return library_->size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (!is_small(part.size())) return has_failed() ? empty() : library_->all_gather(part);
    CHECK_LE(part.size(), own_.received.size() / table_.size());
    if (has_failed()) return empty();
    std::byte* const parts = own_.received.data();
    kernels::gather_peers(context_of(own_), {.peers = &windows_, .part = part, .received = parts});
    end_exchange();
    if (has_failed()) return empty();
    for (size_t rank = 0; rank < table_.size(); ++rank) table_[rank] = parts + rank * part.size();
    return table_;
  }

  [[nodiscard]] const PeerWindows* begin_exchange(size_t part_bytes) override {
    return is_small(part_bytes) && !has_failed() ? &windows_ : nullptr;
  }

  // A launch blocks its GPU until the others' are called, like a gather of NCCL; before that, a
  // thread must not call what waits for its GPU or holds shared driver resources.
  void end_exchange() override { group_->meet(); }

  void fail() override {
    group_->fail();
    library_->fail();
  }

  [[nodiscard]] bool has_failed() const override {
    return group_->has_failed() || library_->has_failed();
  }

 private:
  static std::span<const std::byte* const> empty() { return {}; }

  // Every rank gets the same answer.
  [[nodiscard]] bool is_small(size_t part_bytes) const {
    return part_bytes > 0 && part_bytes % 4 == 0 &&
           static_cast<int64_t>(part_bytes) <= kernels::most_peer_bytes(size());
  }

  const std::shared_ptr<PeerGroup> group_;  // released after the library's own
  const std::unique_ptr<Communicator> library_;
  const DeviceRank own_;
  const PeerWindows windows_;
  std::vector<const std::byte*> table_;
};

}  // namespace

ConnectRanks with_peers(ConnectRanks library, std::chrono::nanoseconds limit) {
  return [library = std::move(library), limit](std::span<const DeviceRank> ranks)
             -> Expected<std::vector<std::unique_ptr<Communicator>>> {
    SLUICE_TRY(auto connected, library(ranks));
    const auto group = PeerGroup::create(ranks, limit);
    if (!group) {
      log_event(LogLevel::kWarning, "ranks_not_peers", "reason", group.error().message);
      return connected;
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      // The rank below releases its end of the library before the group.
      connected[i]->watch_failure([peers = group->get()] { peers->fail(); });
      connected[i] = std::make_unique<PeerRank>(*group, std::move(connected[i]), ranks[i]);
    }
    return connected;
  };
}

}  // namespace sluice
