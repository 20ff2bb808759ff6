// SPDX-License-Identifier: Apache-2.0
// The transports of one worker, the preferred first, and the one that each session of it uses. The
// sender does not know at first which one its peer dials: it opens its half of a session by each
// that both have, all under one number and token, and use() tells which it is.
//
// All calls are like those of KvTransport, on the owner's thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace sluice {

class KvTransports {
 public:
  explicit KvTransports(std::vector<std::unique_ptr<KvTransport>> transports)
      : all_(std::move(transports)) {}

  [[nodiscard]] size_t size() const { return all_.size(); }

  [[nodiscard]] const KvTransport& operator[](size_t index) const { return *all_[index]; }

  // Opens a session by one transport. The first that is opened is used until use().
  Expected<void> open(size_t index, const KvSessionOptions& options);
  // Makes later calls for this session go to that transport. False: that one has not opened it, or
  // another one is in use already.
  bool use(KvSession session, size_t index);
  // Asks the transport in use; false for a session that is not open.
  [[nodiscard]] bool moves_device_memory(KvSession session) const;

  [[nodiscard]] bool post(KvSession session, const KvLanding& landing);
  [[nodiscard]] bool send(KvSession session, const KvFrame& frame, KvPayload payload);
  void abort(KvSession session, const KvTransferRef& ref);
  // Closes the session of each transport that has it; kClosed is reported once.
  void close(KvSession session);
  void poll(std::vector<KvCompletion>& out);
  [[nodiscard]] KvTransportCounts counts() const;

 private:
  struct Session {
    size_t used = 0;
    bool is_chosen = false;     // by use()
    std::vector<size_t> open;   // transports that have it
    size_t num_closed = 0;      // of `open`
  };

  const std::vector<std::unique_ptr<KvTransport>> all_;
  std::map<KvSession, Session> sessions_;
  std::vector<KvCompletion> fresh_;
};

}  // namespace sluice
