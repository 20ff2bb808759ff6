// SPDX-License-Identifier: Apache-2.0
// A connection whose payloads follow their headers in its byte stream (a socket, a ring in shared
// memory). A frame of which a part was sent is sent once more by another connection if this one
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/transport_connection.h"

namespace sluice {

class StreamConnection final : public KvConnection {
 public:
  // `scratch`: for payloads that are discarded; outlives it.
  StreamConnection(uint64_t id,
                   std::unique_ptr<KvStream> stream,
                   bool is_receiver,
                   std::span<std::byte> scratch)
      : KvConnection(id, std::move(stream), is_receiver), scratch_(scratch) {}

  bool receive(const KvFrame& frame, std::span<std::byte> memory) override;
  bool drop_landing() override;
  Sent send(KvOutgoing& outgoing) override;
  bool write(std::vector<KvDone>& done) override;

 private:
  size_t read_part(size_t budget, std::vector<KvDone>& done) override;

  const std::span<std::byte> scratch_;
  KvFrame frame_;                // frame whose payload is read
  uint64_t payload_left_ = 0;    // 0: a header is next
  std::span<std::byte> memory_;  // empty: the payload is discarded
  kernels::KvChecksum payload_sum_;
};

}  // namespace sluice
