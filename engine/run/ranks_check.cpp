// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks_check.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/version.h"
#include "engine/parallel/rank_transport.h"
#include "engine/parallel/stream_ranks.h"
#include "engine/run/rank_processes.h"
#include "kernels/device.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// Parts of an exchange in words, from less than one row of a small model to hundreds of a large
// one's, and how often each is exchanged.
struct PartSize {
  size_t words;
  int rounds;
};

constexpr std::array kSizes = {
    PartSize{16, 200}, PartSize{1 << 10, 100}, PartSize{16 << 10, 50}, PartSize{512 << 10, 9}};
constexpr size_t kMostWords = kSizes.back().words;
constexpr int kPings = 200;
constexpr int kMessages = 9;  // of the most words, each way

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// "0.4 us", "21 us", "3.1 ms"
std::string time_text(double seconds) {
  std::array<char, 32> text{};
  const bool is_long = seconds >= 1e-3;
  const int size = std::snprintf(text.data(),
                                 text.size(),
                                 is_long ? "%.1f ms" : (seconds < 1e-5 ? "%.1f us" : "%.0f us"),
                                 is_long ? 1e3 * seconds : 1e6 * seconds);
  return {text.data(), static_cast<size_t>(size)};
}

std::string speed_text(size_t bytes, double seconds) {
  std::array<char, 32> text{};
  const int size = std::snprintf(
      text.data(), text.size(), "%.2f GB/s", 1e-9 * static_cast<double>(bytes) / seconds);
  return {text.data(), static_cast<size_t>(size)};
}

std::string size_text(size_t bytes) {
  if (bytes >= 1 << 20) return std::to_string(bytes >> 20) + " MiB";
  return bytes >= 1 << 10 ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes) + " B";
}

// Words of all bit patterns, infinities and negative zeros among them.
void fill(std::span<uint32_t> words, int32_t rank, int round) {
  uint64_t state = (static_cast<uint64_t>(rank) << 32) + static_cast<uint64_t>(round) + 1;
  for (uint32_t& word : words) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    word = static_cast<uint32_t>(state >> 32);
  }
}

class RanksCheck {
 public:
  RanksCheck(const Config& config,
             RankGroup& group,
             const std::function<void(const std::string&)>& say)
      : config_(config), group_(group), say_(say), words_(kMostWords), wanted_(kMostWords) {}

  Expected<void> run() {
    SLUICE_TRY_VOID(compare_settings());
    SLUICE_TRY_VOID(is_first() ? measure_links() : answer_links());
    std::unique_ptr<Communicator> own = make_stream_rank(group_, group_.all());
    SLUICE_TRY(const uint64_t by_tcp, exchange(*own, kTcp));
    if (config_.kv_transport != "tcp") {
      SLUICE_TRY(RankTransport other,
                 connect_processes(
                     group_, config_.kv_transport, {.part_bytes = kMostWords * sizeof(uint32_t)}));
      own = std::move(other.rank);
      if (other.name == kSharedMemory) {
        SLUICE_TRY(const uint64_t by_memory, exchange(*own, kSharedMemory));
        if (by_memory != by_tcp) return fail("TCP and shared memory gave different words");
        tell("TCP and shared memory: the same words");
      } else {
        tell(std::string(kSharedMemory) + ": none; " + other.reason);
      }
    }
    return plant(*own);
  }

 private:
  [[nodiscard]] bool is_first() const { return group_.rank() == 0; }

  void tell(const std::string& line) const {
    if (is_first()) say_(line);
  }

  [[nodiscard]] tl::unexpected<Error> failed() const {
    return make_error(ErrorCode::kUnavailable, group_.why());
  }

  Expected<void> fail(const std::string& why) {
    group_.fail(why);
    return failed();
  }

  // Each tells node 0 what it is.
  Expected<void> compare_settings() {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    SLUICE_TRY(const auto device, kernels::Device::create({.threads = 1}));
    const std::string own = std::string(host.data()) + ", " + device->name();
    tell("build: " + std::string(version()) + " " + build_id() + " on all " +
         std::to_string(group_.size()));
    tell("rank 0: " + own);
    if (!is_first()) {
      SLUICE_TRY_VOID(agree_on_settings(group_, config_));
      if (!send_text(group_, 0, own)) return failed();
      return {};
    }
    SLUICE_TRY_VOID(send_settings(group_, config_));
    for (int32_t rank = 1; rank < group_.size(); ++rank) {
      SLUICE_TRY(const std::string found, receive_text(group_, rank, RankGroup::kExchange));
      tell("rank " + std::to_string(rank) + ": " + found);
    }
    return {};
  }

  std::span<std::byte> bytes(size_t count) {
    return std::as_writable_bytes(std::span(words_).first(count));
  }

  // Compares with the words that the sender's rank and the number give.
  Expected<void> check_words(std::span<const std::byte> found,
                             int32_t from,
                             int number,
                             const std::string& of) {
    const auto wanted = std::span(wanted_).first(found.size() / sizeof(uint32_t));
    fill(wanted, from, number);
    if (std::memcmp(wanted.data(), found.data(), found.size()) == 0) return {};
    return fail("rank " + std::to_string(from) + ": " + of + " of " + size_text(found.size()) +
                " is not what it sent to rank " + std::to_string(group_.rank()));
  }

  // Rank 0 with each other: there and back, then as much as goes through each way.
  Expected<void> measure_links() {
    for (int32_t rank = 1; rank < group_.size(); ++rank) {
      std::vector<double> pings;
      for (int i = 0; i < kPings; ++i) {
        const auto begun = Clock::now();
        if (!group_.send(rank, bytes(2)) || !group_.receive(rank, bytes(2))) return failed();
        pings.push_back(seconds_since(begun) / 2);
      }
      std::vector<double> there;
      std::vector<double> back;
      for (int i = 0; i < kMessages; ++i) {
        fill(words_, 0, i);
        const auto begun = Clock::now();
        if (!group_.send(rank, bytes(kMostWords)) || !group_.receive(rank, bytes(2))) {
          return failed();
        }
        there.push_back(seconds_since(begun));
        if (!group_.receive(rank, bytes(2))) return failed();  // it has filled its message
        const auto turned = Clock::now();
        if (!group_.send(rank, bytes(2)) || !group_.receive(rank, bytes(kMostWords))) {
          return failed();
        }
        back.push_back(seconds_since(turned));
        SLUICE_TRY_VOID(check_words(bytes(kMostWords), rank, i, "a message"));
      }
      const size_t sent = kMostWords * sizeof(uint32_t);
      tell("rank 0 and rank " + std::to_string(rank) + ": " + time_text(median(pings)) +
           " one way, " + speed_text(sent, median(there)) + " there, " +
           speed_text(sent, median(back)) + " back");
    }
    return {};
  }

  Expected<void> answer_links() {
    for (int i = 0; i < kPings; ++i) {
      if (!group_.receive(0, bytes(2)) || !group_.send(0, bytes(2))) return failed();
    }
    for (int i = 0; i < kMessages; ++i) {
      if (!group_.receive(0, bytes(kMostWords)) || !group_.send(0, bytes(2))) return failed();
      SLUICE_TRY_VOID(check_words(bytes(kMostWords), 0, i, "a message"));
      fill(words_, group_.rank(), i);
      std::array<uint32_t, 2> turn{};
      if (!group_.send(0, bytes(2)) ||
          !group_.receive(0, std::as_writable_bytes(std::span(turn))) ||
          !group_.send(0, bytes(kMostWords))) {
        return failed();
      }
    }
    return {};
  }

  // Exchanges parts of all sizes between all; returns a digest of what all had, equal on all.
  Expected<uint64_t> exchange(Communicator& own, std::string_view name) {
    std::string line = std::string(name) + ": every word as it was sent;";
    uint64_t digest = 0;
    std::array<std::vector<uint32_t>, 2> parts;
    for (const PartSize& size : kSizes) {
      std::vector<double> times;
      for (int round = 0; round < size.rounds; ++round) {
        std::vector<uint32_t>& part = parts[static_cast<size_t>(round % 2)];
        part.resize(size.words);
        fill(part, group_.rank(), round);
        *own.state() = digest;
        const auto begun = Clock::now();
        const auto found = own.all_gather(std::as_bytes(std::span(part)));
        times.push_back(seconds_since(begun));
        if (found.empty()) return failed();
        for (int32_t rank = 0; rank < group_.size(); ++rank) {
          const std::span its(found[static_cast<size_t>(rank)], size.words * sizeof(uint32_t));
          SLUICE_TRY_VOID(check_words(its, rank, round, "its part by " + std::string(name)));
          digest = XXH3_64bits_withSeed(its.data(), its.size(), digest);
        }
      }
      line += " " + size_text(size.words * sizeof(uint32_t)) + " in " + time_text(median(times)) +
              (&size == &kSizes.back() ? "" : ",");
    }
    tell(line);
    *own.state() = digest;
    if (own.all_gather({}).empty()) return failed();
    return digest;
  }

  // The last rank says that it has computed something else, as a rank whose memory or processor
  // fails would: all must know which it is, and end.
  Expected<void> plant(Communicator& own) {
    const std::string last = "rank " + std::to_string(group_.size() - 1);
    say_("planted: " + last + " differs from now on, which the log calls an error");
    if (group_.rank() == group_.size() - 1) *own.state() ^= 1;
    if (!own.all_gather({}).empty()) return fail("a rank that differs is not found");
    if (group_.why().find(last + ": what it computed") == std::string::npos) return failed();
    say_("found, by name");
    return {};
  }

  const Config& config_;
  RankGroup& group_;
  const std::function<void(const std::string&)>& say_;
  std::vector<uint32_t> words_;
  std::vector<uint32_t> wanted_;
};

}  // namespace

Expected<void> check_rank_processes(const Config& config,
                                    const std::function<void(const std::string&)>& say) {
  const auto wrong = [](const std::string& message, const char* knob) {
    return make_error(ErrorCode::kInvalidArgument, message, knob);
  };
  if (config.nnodes == 1) {
    return wrong(
        "--nnodes: found 1, expected the number of processes; a launcher's counts with the "
        "same --tensor-parallel-size",
        "nnodes");
  }
  if (config.node_rank >= config.nnodes) {
    return wrong("--node-rank: found " + std::to_string(config.node_rank) +
                     ", expected less than --nnodes, " + std::to_string(config.nnodes),
                 "node-rank");
  }
  if (config.kv_transport == "cuda_ipc" || config.kv_transport == "nccl") {
    return wrong("--kv-transport: found " + config.kv_transport + ", expected auto, shm or tcp",
                 "kv-transport");
  }
  SLUICE_TRY(const auto group, RankGroup::meet(group_options(config)));
  return RanksCheck(config, *group, say).run();
}

}  // namespace sluice
