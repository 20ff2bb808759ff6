// SPDX-License-Identifier: Apache-2.0
// Byte streams in both directions between two workers and their factory: what a kind of transport
// implements (transport_sessions.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kv_checksum.h"

struct iovec;

namespace sluice {

// All calls are made on the transport's thread.
class KvStream {
 public:
  virtual ~KvStream() = default;  // closes it
  // Adds its descriptors to the epoll set with this datum, edge-triggered for reading and writing.
  // Returns false where that fails now.
  virtual bool watch(int epoll, uint64_t datum) = 0;
  // Returns the number of bytes written or read; 0: none now, retry at a later edge; nullopt: the
  // stream has ended.
  virtual std::optional<size_t> write(std::span<const iovec> parts) = 0;
  // Also adds the bytes to `sum` if it is not null.
  virtual std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) = 0;

  // Sender: shuts down writing. The peer reads the end after what was written; its writes are still
  // read.
  virtual void finish() {}

  enum class Copied : uint8_t {
    kAll,
    kNotNow,  // retry at a later edge
    kNever,   // the caller must use write()
    kEnded,   // the stream has ended
  };

  // Writes a payload after space reserved for a header, and sums it; end_copy() then writes the
  // header and sends both. Only streams that can sum a payload while copying it override this.
  virtual Copied copy(size_t /*header_bytes*/,
                      std::span<const std::span<const std::byte>> /*payload*/,
                      kernels::KvChecksum& /*sum*/) {
    return Copied::kNever;
  }

  virtual void end_copy(std::span<const std::byte> /*header*/) {}
};

class KvStreamMaker {
 public:
  virtual ~KvStreamMaker() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;
  [[nodiscard]] virtual std::string address() const = 0;  // of the listener
  [[nodiscard]] virtual bool is_address(std::string_view address) const = 0;
  [[nodiscard]] virtual int32_t num_streams() const = 0;  // streams of one session
  // The transport's thread makes all calls below.
  [[nodiscard]] virtual int listener() const = 0;  // readable when a peer dials
  virtual std::unique_ptr<KvStream> accept() = 0;  // null: no peer is waiting
  virtual std::unique_ptr<KvStream> dial(const std::string& address) = 0;  // null: not possible now
};

}  // namespace sluice
