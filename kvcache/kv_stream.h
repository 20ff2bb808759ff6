// SPDX-License-Identifier: Apache-2.0
// Bytes in both directions between two workers, and who makes such streams: what a kind of
// transport over streams (transport_stream.h) is made of.
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

// The transport's thread.
class KvStream {
 public:
  virtual ~KvStream() = default;  // closes it
  // Adds its descriptors to the epoll set, edge by edge for reading and writing, with this datum.
  // False: not now.
  virtual bool watch(int epoll, uint64_t datum) = 0;
  // How many bytes it took or gave; 0: none now, and a later edge says when to try again. Nothing:
  // the stream has ended.
  virtual std::optional<size_t> write(std::span<const iovec> parts) = 0;
  // `sum`, if there is one, also gets the bytes.
  virtual std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum) = 0;

  enum class Copied : uint8_t {
    kAll,
    kNotNow,  // a later edge says when to try again
    kNever,   // write() it
    kEnded,   // the stream
  };

  // A payload behind room for a header, and its sum: then the header, with end_copy(), at once. For
  // streams that read a payload where it lies, so that it is read once and not twice.
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
  [[nodiscard]] virtual int32_t num_streams() const = 0;  // of a session
  // The transport's thread:
  [[nodiscard]] virtual int listener() const = 0;  // readable when somebody dials
  virtual std::unique_ptr<KvStream> accept() = 0;  // null: nobody is waiting
  virtual std::unique_ptr<KvStream> dial(const std::string& address) = 0;  // null: not now
};

}  // namespace sluice
