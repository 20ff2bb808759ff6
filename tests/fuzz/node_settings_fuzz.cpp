// SPDX-License-Identifier: Apache-2.0
// Variables of launchers, a line "NAME=value" each: nodes that are settled are whole and in range,
// and a refusal is one line, whatever a list of nodes looks like.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "engine/core/config.h"
#include "server/cli/node_settings.h"
#include "tests/fuzz/target.h"

static int node_settings_input(const uint8_t* data, size_t size) {
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  sluice::Environment environment;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  sluice::Config config;
  sluice::clear_nodes(config);
  config.tensor_parallel_size = 2;
  if (environment.contains("ADDRESS")) {
    if (!sluice::set_dist_init_addr(config, environment["ADDRESS"])) return 0;
    CHECK(!config.master_addr.empty());
  }
  const auto settled = sluice::settle_nodes(config, environment);
  if (!settled) {
    CHECK(!settled.error().message.empty());
    return 0;
  }
  CHECK(config.nnodes == 1 || config.nnodes == 2);
  CHECK(config.node_rank >= 0 && config.node_rank < config.nnodes);
  CHECK(!config.master_addr.empty());
  CHECK(config.master_port >= 1 && config.master_port <= UINT16_MAX);
  return 0;
}

const sluice::fuzz::Target node_settings_target("node_settings_fuzz", node_settings_input);
