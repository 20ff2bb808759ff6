// SPDX-License-Identifier: Apache-2.0
// Requests that run on one node and on several of one model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/node_group.h"
#include "tests/support/same_bits.h"

namespace sluice::testing {

inline Config base_config(const std::string& model) {
  Config config;
  config.model = model;
  config.max_model_len = 256;
  config.kv_cache_memory = int64_t{2} << 20;
  config.threads = 1;
  config.rank_init_timeout_s = 20;
  return config;
}

inline std::vector<ValidRequest> requests() {
  std::vector<ValidRequest> list = seeded_requests(3);
  for (ValidRequest& request : list) {
    request.sampling.max_tokens = 6;
    request.sampling.num_logprobs = 4;
  }
  list.front().sampling.num_prompt_logprobs = 2;
  return list;
}

struct Run {
  std::vector<Collected> answers;
  std::string key;
};

inline Run run_on_one(const Config& config,
                      const std::vector<ValidRequest>& list = requests(),
                      std::optional<int32_t> steps_in_flight = {}) {
  const std::unique_ptr<Engine> engine = start_node_0(config, steps_in_flight);
  if (engine == nullptr) return {};
  return {run_together(*engine, list), engine->model().system_fingerprint};
}

// Each node has one rank, or unless `by_rank` one stage, if there are several.
inline Run run_spread(Config config,
                      const std::string& transport,
                      const std::vector<ValidRequest>& list = requests(),
                      std::optional<int32_t> steps_in_flight = {},
                      bool by_rank = false) {
  const int32_t stages = config.pipeline_parallel_size;
  config.kv_transport = transport;
  config.master_port = free_port();
  config.nnodes = stages;
  if (by_rank || stages == 1) config.nnodes *= config.tensor_parallel_size;
  NodeGroup others(config);
  Run run = run_on_one(config, list, steps_in_flight);
  others.expect_in_order();
  return run;
}

inline Run run_on_nodes(Config config,
                        int32_t size,
                        const std::string& transport,
                        const std::vector<ValidRequest>& list = requests()) {
  config.tensor_parallel_size = size;
  return run_spread(config, transport, list);
}

}  // namespace sluice::testing
