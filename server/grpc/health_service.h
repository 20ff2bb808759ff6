// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1.Health: Check and Watch. gRPC's own service reads what any client sends, so this
// one is served by its metadata: a caller without a key gets the whole server's status, whatever
// service the message, which is not read, may name.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "server/grpc/metadata_first.h"

namespace sluice {

class RpcContext;

inline constexpr std::string_view kHealthService = "grpc.health.v1.Health";

class HealthService final : public MetadataFirstService {
 public:
  // `rpc` outlives the calls.
  explicit HealthService(const RpcContext& rpc);
  ~HealthService() override;

  // Sets the status and notifies watchers. Any thread, like the next two.
  void set_serving(bool is_serving);
  // Ends all calls that watch; later ones end at once.
  void end_watches();
  [[nodiscard]] bool is_serving() const;

 private:
  class Watch;

  const RpcContext& rpc_;
  mutable std::mutex mutex_;  // guards what follows, and what is inside the watches
  bool is_serving_ = false;
  bool has_ended_ = false;
  std::unordered_set<Watch*> watches_;
};

}  // namespace sluice
