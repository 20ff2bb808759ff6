// SPDX-License-Identifier: Apache-2.0
// The transports of one worker, the preferred first, and the one that each of its sessions goes by.
// The sender does not know at first which one its peer dials: it opens its half of a session by
// each that both have, all under one number and token, and use() says which it is.
//
// Calls are those of KvTransport, on the owner's thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "kvcache/kv_transport.h"

namespace sluice {

class KvTransports {
 public:
  explicit KvTransports(std::vector<std::unique_ptr<KvTransport>> transports)
      : all_(std::move(transports)) {}

  [[nodiscard]] size_t size() const { return all_.size(); }

  [[nodiscard]] const KvTransport& operator[](size_t index) const { return *all_[index]; }

  // As KvTransport::open(), by one of them. The first that is opened is used until use().
  Expected<void> open(size_t index, const KvSessionOptions& options);
  // What is called from now on for this session is for that one. False: it is not open by that, or
  // by another one in use already.
  bool use(KvSession session, size_t index);
  // Of the one in use; of a session that is not open, of none.
  [[nodiscard]] bool moves_device_memory(KvSession session) const;

  [[nodiscard]] bool post(KvSession session, const KvLanding& landing);
  [[nodiscard]] bool send(KvSession session, const KvFrame& frame, KvPayload payload);
  void abort(KvSession session, const KvTransferRef& ref);
  // By all that have it; kClosed comes once.
  void close(KvSession session);
  void poll(std::vector<KvCompletion>& out);
  [[nodiscard]] KvTransportCounts counts() const;

 private:
  struct Session {
    size_t used = 0;
    bool is_chosen = false;     // by use()
    std::vector<size_t> open;   // transports that have it
    size_t num_closed = 0;      // of those
  };

  const std::vector<std::unique_ptr<KvTransport>> all_;
  std::map<KvSession, Session> sessions_;
  std::vector<KvCompletion> fresh_;
};

}  // namespace sluice
