// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_secret.h"

#include <cstddef>
#include <string>

#include "engine/core/config.h"

namespace sluice {

Expected<void> check_worker_secret(const Config& config) {
  constexpr size_t kLeast = 16;
  const size_t size = config.worker_secret.size();
  if (size == 0 || size >= kLeast) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "--worker-secret: needs at least " + std::to_string(kLeast) +
                        " characters, and has " + std::to_string(size) +
                        "; `openssl rand -hex 32` makes a good one.",
                    "worker-secret");
}

}  // namespace sluice
