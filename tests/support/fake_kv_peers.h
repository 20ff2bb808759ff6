// SPDX-License-Identifier: Apache-2.0
// The control channel of KV transfers inside one process: the other worker's sink gets a message at
// once, unless it is dropped. Workers may have threads of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/handoff/kv_peer.h"

namespace sluice::testing {

class FakeKvPeers {
 public:
  // Returns true for messages that are lost.
  std::function<bool(const KvMessage&)> drop = [](const KvMessage&) { return false; };
  // Changes a message on its way.
  std::function<void(KvMessage&)> change = [](KvMessage&) {};
  // Returns the messages that replace a sent one, after `drop` and `change`. Unset: the same one.
  std::function<std::vector<KvMessage>(bool to_prefill, KvMessage)> pass;
  // Changes a prefill worker's own description.
  std::function<void(KvHello&)> introduce = [](KvHello&) {};
  std::map<std::string, int> sent;  // messages by name

  // Returns the opener of a worker that other workers find at `name`:1.
  OpenKvPeers opener(const std::string& name) {
    return [this, name](const Config&,
                        const KvHello& own,
                        KvPeerSink& sink) -> Expected<std::unique_ptr<KvPeerChannel>> {
      const std::scoped_lock lock(mutex_);
      const std::string address = name + ":1";
      workers_[address] = {.hello = own, .sink = &sink};
      return std::make_unique<Channel>(*this, address);
    };
  }

  // Ends all streams, at both ends.
  void cut() {
    const std::scoped_lock lock(mutex_);
    end_streams("");
  }

 private:
  struct Worker {
    KvHello hello;
    KvPeerSink* sink = nullptr;
  };

  struct Stream {
    std::string decode;
    std::string prefill;
    bool is_open = true;
  };

  class Channel final : public KvPeerChannel {
   public:
    Channel(FakeKvPeers& peers, std::string own) : peers_(peers), own_(std::move(own)) {}

    ~Channel() override {
      const std::scoped_lock lock(peers_.mutex_);
      peers_.workers_.erase(own_);
      peers_.end_streams(own_);
    }

    Expected<KvPeerId> connect(std::string_view address) override {
      const std::scoped_lock lock(peers_.mutex_);
      for (const auto& [id, stream] : peers_.streams_) {
        if (stream.is_open && stream.decode == own_ && stream.prefill == address) {
          return KvPeerId(id);
        }
      }
      const auto there = peers_.workers_.find(std::string(address));
      if (there == peers_.workers_.end()) {
        return make_error(ErrorCode::kPermissionDenied, "no such peer");
      }
      const uint64_t id = peers_.next_++;
      peers_.streams_[id] = {.decode = own_, .prefill = std::string(address)};
      KvHello prefill = there->second.hello;
      KvHello decode = peers_.workers_.at(own_).hello;
      prefill.session.fill(static_cast<uint8_t>(id));
      decode.session = prefill.session;
      peers_.introduce(prefill);
      peers_.workers_.at(own_).sink->deliver(
          KvPeerUp{.peer = KvPeerId(id), .is_prefill = true, .hello = prefill});
      there->second.sink->deliver(
          KvPeerUp{.peer = KvPeerId(id), .is_prefill = false, .hello = decode});
      return KvPeerId(id);
    }

    bool send(KvPeerId peer, KvMessage message) override {
      const std::scoped_lock lock(peers_.mutex_);
      static constexpr const char* kNames[] = {"Claim",
                                               "Accept",
                                               "Refuse",
                                               "Credit",
                                               "Final",
                                               "Renew",
                                               "RenewAck",
                                               "Release",
                                               "Released",
                                               "Cancel",
                                               "Drain"};
      const auto stream = peers_.streams_.find(peer.value);
      if (stream == peers_.streams_.end() || !stream->second.is_open) return false;
      ++peers_.sent[kNames[message.index()]];
      if (peers_.drop(message)) return true;
      peers_.change(message);
      const bool is_decode = stream->second.decode == own_;
      const auto to =
          peers_.workers_.find(is_decode ? stream->second.prefill : stream->second.decode);
      if (to == peers_.workers_.end()) return false;
      std::vector<KvMessage> arriving;
      if (peers_.pass) {
        arriving = peers_.pass(is_decode, std::move(message));
      } else {
        arriving.push_back(std::move(message));
      }
      for (KvMessage& one : arriving) {
        to->second.sink->deliver(KvPeerMessage{.peer = peer, .message = std::move(one)});
      }
      return true;
    }

    void report(uint64_t /*num_steps*/, const KvLoad& /*load*/) override {}

    [[nodiscard]] std::string address() const override { return own_; }

   private:
    FakeKvPeers& peers_;
    const std::string own_;
  };

  // Ends the streams of one worker, or of all if there is no name.
  void end_streams(const std::string& worker) {
    for (auto& [id, stream] : streams_) {
      const bool is_of = worker.empty() || stream.decode == worker || stream.prefill == worker;
      if (!is_of || !std::exchange(stream.is_open, false)) continue;
      for (const std::string& end : {stream.decode, stream.prefill}) {
        const auto found = workers_.find(end);
        if (found == workers_.end()) continue;
        found->second.sink->deliver(KvPeerDown{.peer = KvPeerId(id), .reason = "cut"});
      }
    }
  }

  std::mutex mutex_;
  std::map<std::string, Worker> workers_;
  std::map<uint64_t, Stream> streams_;
  uint64_t next_ = 1;
};

}  // namespace sluice::testing
