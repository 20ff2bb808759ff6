// SPDX-License-Identifier: Apache-2.0
// Two transports with a session between them, and frames with payloads that identify themselves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace sluice::test {

inline constexpr KvSession kTestSession = 7;
inline constexpr uint64_t kSenderEpoch = 0x1111;
inline constexpr uint64_t kReceiverEpoch = 0x2222;

inline KvSessionToken test_token(uint8_t first = 0xa0) {
  KvSessionToken token{};
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<uint8_t>(first + i);
  return token;
}

inline KvTransferRef test_transfer(uint8_t number, uint32_t attempt = 1) {
  KvTransferRef ref;
  ref.transfer.fill(number);
  ref.attempt = attempt;
  return ref;
}

// A block of a layer and head has an odd number of bytes, since no rule forbids it.
inline KvFrameLayout test_layout(uint32_t head_bytes = 1021, uint64_t slot_bytes = 1 << 20) {
  return {.groups = {{.num_layers = 4, .num_heads = 2, .head_bytes = head_bytes}},
          .slot_bytes = slot_bytes};
}

inline KvSessionOptions sender_options(const KvFrameLayout& layout, uint8_t token = 0xa0) {
  return {.session = kTestSession,
          .token = test_token(token),
          .address = {},
          .own_epoch = kSenderEpoch,
          .peer_epoch = kReceiverEpoch,
          .layout = layout,
          .payloads = {}};
}

inline KvSessionOptions receiver_options(const KvFrameLayout& layout,
                                         std::string address,
                                         uint8_t token = 0xa0) {
  return {.session = kTestSession,
          .token = test_token(token),
          .address = std::move(address),
          .own_epoch = kReceiverEpoch,
          .peer_epoch = kSenderEpoch,
          .layout = layout,
          .payloads = {}};
}

// Returns a frame of all layers and heads of `num_blocks` blocks of group 0.
inline KvFrame test_frame(const KvFrameLayout& layout,
                          const KvTransferRef& ref,
                          uint32_t slot,
                          uint32_t generation,
                          uint32_t first_block,
                          uint32_t num_blocks) {
  KvFrame frame;
  frame.ref = ref;
  frame.slot = slot;
  frame.slot_generation = generation;
  frame.num_layers = layout.groups[0].num_layers;
  frame.num_heads = layout.groups[0].num_heads;
  frame.first_block = first_block;
  frame.num_blocks = num_blocks;
  frame.payload_bytes = *kv_frame_piece_bytes(frame, layout);
  return frame;
}

inline std::vector<std::byte> test_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Cuts bytes into spans of different lengths.
inline KvPayload in_spans(std::span<const std::byte> bytes, size_t most) {
  KvPayload payload;
  size_t length = 1;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), 1 + length++ * 37 % most);
    payload.push_back(bytes.first(count));
    bytes = bytes.subspan(count);
  }
  return payload;
}

// A transport and its completions so far.
class TransportEnd {
 public:
  explicit TransportEnd(const std::string& kind, KvTransportOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.redial_time = std::chrono::milliseconds(20);
    options.hello_time = std::chrono::milliseconds(300);
    options.wake = [this] {
      const std::scoped_lock lock(mutex_);
      is_woken_ = true;
      woken_.notify_all();
    };
    auto made = make_kv_transport(kind, std::move(options));
    CHECK(made.has_value());
    transport_ = std::move(*made);
  }

  KvTransport& operator*() { return *transport_; }

  KvTransport* operator->() { return transport_.get(); }

  // Waits until `done` accepts the completions so far. False: `time` is over.
  bool wait_until(const std::function<bool(const std::vector<KvCompletion>&)>& done,
                  std::chrono::milliseconds time = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (true) {
      std::vector<KvCompletion> fresh;
      transport_->poll(fresh);
      all_.insert(all_.end(), fresh.begin(), fresh.end());
      if (done(all_)) return true;
      std::unique_lock lock(mutex_);
      if (!woken_.wait_until(lock, end, [this] { return is_woken_; })) return false;
      is_woken_ = false;
    }
  }

  bool wait_for(KvCompletion::Kind kind, size_t count = 1) {
    return wait_until([&](const auto&) { return num(kind) >= count; });
  }

  [[nodiscard]] size_t num(KvCompletion::Kind kind) const {
    return static_cast<size_t>(std::ranges::count(all_, kind, &KvCompletion::kind));
  }

  [[nodiscard]] const std::vector<KvCompletion>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  bool is_woken_ = false;
  std::vector<KvCompletion> all_;
  std::unique_ptr<KvTransport> transport_;  // last: its thread uses the rest
};

}  // namespace sluice::test
