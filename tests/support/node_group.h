// SPDX-License-Identifier: Apache-2.0
// A model over several nodes, of which those above 0 are threads of this process that have nothing
// in common with the engine but their connections.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/parallel/parallel.h"
#include "tests/support/free_port.h"

namespace sluice::testing {

class NodeGroup {
 public:
  // Starts the other nodes, if the configuration has any.
  explicit NodeGroup(const Config& lead) {
    for (int32_t rank = 1; rank < lead.nnodes; ++rank) {
      Config own = lead;
      own.node_rank = rank;
      followers_.push_back(
          std::async(std::launch::async, [own] { return run_follower_node(own); }));
    }
  }

  // Waits for their ends, by node: node 0 has ended.
  std::vector<Expected<void>> ends() {
    std::vector<Expected<void>> ends;
    for (auto& follower : followers_) ends.push_back(follower.get());
    return ends;
  }

  void expect_in_order() {
    for (const Expected<void>& end : ends()) EXPECT_TRUE(end.has_value()) << end.error().message;
  }

 private:
  std::vector<std::future<Expected<void>>> followers_;
};

// Node 0 of such a group, or an engine without nodes; null after a failure.
inline std::unique_ptr<Engine> start_node_0(const Config& config,
                                            std::optional<int32_t> steps_in_flight) {
  Expected<std::unique_ptr<Engine>> engine = create_engine(
      config, {.on_cpu = make_local_ranks, .on_devices = {}, .steps_in_flight = steps_in_flight});
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

}  // namespace sluice::testing
