// SPDX-License-Identifier: Apache-2.0
// What streams do with a socket that never waits. Results are those of KvStream::read() and
// write().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/kv_checksum.h"

struct iovec;

namespace sluice {

// Adds a descriptor to an epoll set, edge-triggered for reading and writing.
bool watch_descriptor(int epoll, int fd, uint64_t datum);
std::optional<size_t> send_parts(int socket, std::span<const iovec> parts);
std::optional<size_t> receive_bytes(int socket, std::span<std::byte> out, kernels::KvChecksum* sum);
// The result of a call that returned `count`, and perhaps errno.
std::optional<size_t> socket_result(int64_t count);

}  // namespace sluice
