// SPDX-License-Identifier: Apache-2.0
// The name that two workers use for the transfer of one prompt's KV.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

using KvTransferId = std::array<uint8_t, 16>;

// One transfer of one receiver: `attempt` tells a second try from leftovers of the first.
struct KvTransferRef {
  KvTransferId transfer{};
  uint32_t attempt = 0;

  friend bool operator==(const KvTransferRef&, const KvTransferRef&) = default;
};

}  // namespace sluice
