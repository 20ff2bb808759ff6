// SPDX-License-Identifier: Apache-2.0
#include "server/cli/node_settings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/core/config.h"

namespace sluice {
namespace {

// What was given; what was not is empty.
Config given(int32_t tensor_parallel_size,
             int32_t nnodes = 0,
             int32_t node_rank = -1,
             const std::string& address = "",
             int32_t port = 0) {
  Config config;
  clear_nodes(config);
  config.tensor_parallel_size = tensor_parallel_size;
  config.nnodes = nnodes;
  config.node_rank = node_rank;
  config.master_addr = address;
  config.master_port = port;
  return config;
}

// Stages, each of some ranks.
Config in_stages(int32_t stages, int32_t ranks = 1) {
  Config config = given(ranks);
  config.pipeline_parallel_size = stages;
  return config;
}

const Environment kLws = {{"LWS_LEADER_ADDRESS", "set-0.set.apart"},
                          {"LWS_GROUP_SIZE", "4"},
                          {"LWS_WORKER_INDEX", "2"}};
const Environment kSlurm = {{"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_STEP_NODELIST", "gnode[010-012,20],other"}};
const Environment kMpi = {{"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                          {"MASTER_ADDR", "head"},
                          {"MASTER_PORT", "4000"}};
const Environment kTorchrun = {
    {"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};

// `base` with other values; an empty value takes a variable away.
Environment with(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

std::string settled(Config config, const Environment& environment) {
  const Expected<std::string> sources = settle_nodes(config, environment);
  if (!sources) return "refused: " + sources.error().message;
  return std::to_string(config.node_rank) + "/" + std::to_string(config.nnodes) + " " +
         config.master_addr + ":" + std::to_string(config.master_port);
}

struct Case {
  const char* what;
  Config config;
  Environment environment;
  std::string wanted;
};

void check(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    EXPECT_EQ(settled(one.config, one.environment), one.wanted) << one.what;
  }
}

TEST(NodeSettings, ALauncherFillsInWhatIsNotGiven) {
  check({
      {"nobody", given(2), {}, "0/1 127.0.0.1:29501"},
      {"flags alone", given(2, 2, 1, "head", 7), {}, "1/2 head:7"},
      {"flags without a rank are node 0", given(2, 2), {}, "0/2 127.0.0.1:29501"},
      {"LeaderWorkerSet", given(4), kLws, "2/4 set-0.set.apart:29501"},
      {"Slurm", given(2), kSlurm, "1/2 gnode010:29501"},
      {"Slurm, tasks of one node",
       given(2),
       with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}}),
       "1/2 127.0.0.1:29501"},
      {"Slurm, hosts with two numbers",
       given(2),
       with(kSlurm, {{"SLURM_STEP_NODELIST", "rack[2-3]-gpu[7,9]-ib"}}),
       "1/2 rack2-gpu7-ib:29501"},
      {"Slurm, one host",
       given(2),
       with(kSlurm, {{"SLURM_STEP_NODELIST", "a-b.c,d"}}),
       "1/2 a-b.c:29501"},
      {"Slurm, a list that does not end",
       given(2),
       with(kSlurm, {{"SLURM_STEP_NODELIST", "a[1"}}),
       "1/2 a1:29501"},
      {"Open MPI", given(2), kMpi, "1/2 head:4000"},
      {"Open MPI on one machine",
       given(2),
       with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", ""}, {"MASTER_PORT", ""}}),
       "1/2 127.0.0.1:29501"},
      {"torchrun", given(2), kTorchrun, "1/2 head:29500"},
      {"torchrun whose agent has the port",
       given(2),
       with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
       "1/2 head:29501"},
      {"stages", in_stages(4), kLws, "2/4 set-0.set.apart:29501"},
      {"stages of two ranks", in_stages(4, 2), kLws, "2/4 set-0.set.apart:29501"},
      {"ranks of two stages", in_stages(2, 2), kLws, "2/4 set-0.set.apart:29501"},
      {"stages of one process", in_stages(4), {}, "0/1 127.0.0.1:29501"},
      {"two launchers that agree", given(2), with(kTorchrun, kSlurm), "1/2 gnode010:29501"},
  });
}

TEST(NodeSettings, WhatIsGivenWins) {
  check({
      {"a rank", given(4, 0, 3), kLws, "3/4 set-0.set.apart:29501"},
      {"an address and a port", given(4, 0, -1, "other", 7), kLws, "2/4 other:7"},
      {"a port over MASTER_PORT", given(2, 0, -1, "", 7), kTorchrun, "1/2 head:7"},
      {"the size, as the launcher has it", given(2, 2), kTorchrun, "1/2 head:29500"},
      {"one node: the whole model", given(4, 1), kLws, "0/1 127.0.0.1:29501"},
      {"a group that is not the launcher's", given(2, 2, 1), kLws, "1/2 127.0.0.1:29501"},
      {"a rank where two launchers disagree",
       given(2, 0, 0),
       with(kTorchrun, with(kSlurm, {{"SLURM_PROCID", "0"}})),
       "0/2 gnode010:29501"},
      {"all of it, beside what is broken",
       given(4, 4, 1, "head"),
       {{"LWS_GROUP_SIZE", "four"}},
       "1/4 head:29501"},
      {"an address that mpirun does not know",
       given(2, 0, -1, "there"),
       with(kMpi, {{"MASTER_ADDR", ""}}),
       "1/2 there:4000"},
  });
}

// A variable in a user's shell must not turn a server into a part of a group.
TEST(NodeSettings, OneServerStaysOneServer) {
  const std::string alone = "0/1 127.0.0.1:29501";
  check({
      {"the whole model in each process", given(1), kLws, alone},
      {"broken variables", given(1), {{"LWS_GROUP_SIZE", "four"}}, alone},
      {"a lone RANK", given(2), {{"RANK", "1"}}, alone},
      {"torchrun without a port", given(2), with(kTorchrun, {{"MASTER_PORT", ""}}), alone},
      {"a lone address", given(2), {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1"}}, alone},
      {"a batch script",
       given(2),
       {{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "a[1-2]"}},
       alone},
      {"a task of its own", given(2), with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}}), alone},
      {"one process of torchrun", given(2), with(kTorchrun, {{"WORLD_SIZE", "1"}}), alone},
  });
}

TEST(NodeSettings, ContradictionsNameBothSources) {
  const std::string apart = ": they contradict each other; set --node-rank";
  check({
      {"sizes",
       given(4),
       with(kTorchrun, kLws),
       "refused: LWS_GROUP_SIZE is 4, WORLD_SIZE is 2: they contradict each other; set --nnodes "
       "and --node-rank"},
      {"ranks",
       given(2),
       with(kTorchrun, with(kSlurm, {{"SLURM_PROCID", "0"}})),
       "refused: SLURM_PROCID is 0, RANK is 1" + apart},
      {"a size that was given",
       given(2, 2),
       kLws,
       "refused: --nnodes is 2, LWS_GROUP_SIZE is 4" + apart},
      {"shares of the model",
       given(2),
       kLws,
       "refused: --tensor-parallel-size is 2, LWS_GROUP_SIZE is 4: set --nnodes, 1 where each "
       "process has the whole model"},
      {"other stages",
       in_stages(2, 4),
       kLws,
       "refused: --pipeline-parallel-size is 2, --tensor-parallel-size is 4, LWS_GROUP_SIZE is 4: "
       "set --nnodes, 1 where each process has the whole model"},
      {"an index beyond the size",
       given(2),
       with(kSlurm, {{"SLURM_PROCID", "2"}}),
       "refused: SLURM_PROCID is 2, expected less than SLURM_STEP_NUM_TASKS, 2"},
      {"a size without an index",
       given(4),
       with(kLws, {{"LWS_WORKER_INDEX", ""}}),
       "refused: LWS_WORKER_INDEX is missing, LWS_GROUP_SIZE is 4"},
      {"a group without a leader",
       given(4),
       with(kLws, {{"LWS_LEADER_ADDRESS", ""}}),
       "refused: LWS_LEADER_ADDRESS is missing, LWS_GROUP_SIZE is 4"},
      {"no number",
       given(4),
       with(kLws, {{"LWS_WORKER_INDEX", "2x"}}),
       "refused: LWS_WORKER_INDEX: found 2x, expected a number"},
      {"a negative number",
       given(4),
       with(kLws, {{"LWS_WORKER_INDEX", "-1"}}),
       "refused: LWS_WORKER_INDEX: found -1, expected a number"},
      {"a port that is none",
       given(2),
       with(kTorchrun, {{"MASTER_PORT", "65536"}}),
       "refused: MASTER_PORT is 65536, expected a port, 1 to 65535"},
      {"port 0",
       given(2),
       with(kMpi, {{"MASTER_PORT", "0"}}),
       "refused: MASTER_PORT is 0, expected a port, 1 to 65535"},
      {"a list of no nodes",
       given(2),
       with(kSlurm, {{"SLURM_STEP_NODELIST", "[]"}}),
       "refused: SLURM_STEP_NODELIST: found [], expected names of nodes"},
      {"several machines without an address",
       given(2),
       with(kMpi, {{"MASTER_ADDR", ""}}),
       "refused: OMPI_COMM_WORLD_SIZE is 2, but nothing names node 0: set --master-addr, or "
       "MASTER_ADDR with mpirun -x"},
  });
}

TEST(NodeSettings, TheSentenceSaysWhereEachValueIsFrom) {
  Config config = given(4, 0, -1, "", 7);
  EXPECT_EQ(settle_nodes(config, kLws).value(),
            "nnodes 4 from LWS_GROUP_SIZE, node-rank 2 from LWS_WORKER_INDEX, master-addr "
            "set-0.set.apart from LWS_LEADER_ADDRESS, master-port 7 as given");
  config = given(2, 2);
  EXPECT_EQ(settle_nodes(config, {}).value(),
            "nnodes 2 as given, node-rank 0 by default, master-addr 127.0.0.1 by default, "
            "master-port 29501 by default");
  config = given(1);
  EXPECT_EQ(settle_nodes(config, kLws).value(),
            "LWS_GROUP_SIZE is 4, but this process has the whole model: --tensor-parallel-size is 1");
  config = given(4, 1);
  EXPECT_EQ(settle_nodes(config, kLws).value(), "");
  config = given(2);
  EXPECT_EQ(settle_nodes(config, {}).value(), "");
}

TEST(NodeSettings, AnAddressInOne) {
  Config config = given(2);
  ASSERT_TRUE(set_dist_init_addr(config, "10.0.0.1:20000"));
  EXPECT_EQ(config.master_addr, "10.0.0.1");
  EXPECT_EQ(config.master_port, 20000);
  ASSERT_TRUE(set_dist_init_addr(config, "[::1]:5"));
  EXPECT_EQ(config.master_addr, "::1");
  config = given(2, 2, 1, "[::1]", 7);
  ASSERT_TRUE(settle_nodes(config, {}));
  EXPECT_EQ(config.master_addr, "::1");
  for (const char* const text : {"host", ":5", "host:", "host:70000", "host:x", "[]:5"}) {
    const auto refused = set_dist_init_addr(config, text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().message,
              "--dist-init-addr must be host:port, got \"" + std::string(text) + "\"");
  }
}

}  // namespace
}  // namespace sluice
