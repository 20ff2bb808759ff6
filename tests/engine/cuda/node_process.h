// SPDX-License-Identifier: Apache-2.0
// A model over processes with a device of the shim each: node 0 is the test's own, the others run
// this program again. NCCL is tests/support/fake_nccl_nodes.cpp.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/parallel/nccl_node.h"
#include "engine/parallel/parallel.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_nccl_nodes.h"
#include "tests/support/node_group.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/simt.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing {

inline constexpr const char* kNodeFolder = "SLUICE_TEST_NODE_FOLDER";

// Shim devices connect by the fake library.
inline RankGroups node_groups(const Config& config) {
  return {.on_cpu = make_local_ranks,
          .on_devices = {},
          .on_nodes = [within = std::chrono::seconds(config.rank_init_timeout_s)] {
            return open_nccl_node({.library = SLUICE_FAKE_NCCL_NODES, .within = within});
          }};
}

inline void use_fake_nodes(const FakeNodeFaults& faults) {
  const FakeEnqueue enqueue =
      [](CUstream_st* stream, std::function<void()> work, std::span<std::byte> written) {
        simt::enqueue(stream, [work = std::move(work), written] {
          work();
          simt::note_copied(written.data(), std::ssize(written));  // no later launch reads it early
        });
      };
  set_fake_nodes(SLUICE_FAKE_NCCL_NODES, faults, enqueue);
}

using FaultNumbers = std::array<int32_t, sizeof(FakeNodeFaults) / sizeof(int32_t)>;

// Serves a request as node 0, and returns what ended the nodes.
inline std::string serve_one(const Config& config) {
  const auto engine = create_engine(config, node_groups(config));
  if (!engine) return engine.error().message;
  CollectingSink sink;
  ValidRequest request = tiny_requests()[0];
  request.sampling.max_tokens = 100;
  const auto id = (*engine)->submit(std::move(request), sink);
  if (id) sink.wait(*id);
  return (*engine)->failure();
}

// What the process of a node does; a disabled test calls it. The device of a node above 0 works by
// itself: no thread waits for it while node 0 does.
inline void run_node_process() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* const folder = std::getenv(kNodeFolder);
  ASSERT_NE(folder, nullptr);
  Config config;
  const Expected<void> applied = apply_yaml(config, std::string(folder) + "/node.yaml");
  ASSERT_TRUE(applied.has_value()) << applied.error().message;
  FaultNumbers numbers{};
  std::ifstream in(std::string(folder) + "/faults");
  for (int32_t& number : numbers) in >> number;
  simt::set_device_options({.first_runs_at_once = config.node_rank > 0, .gpu = config.node_rank});
  use_fake_nodes(std::bit_cast<FakeNodeFaults>(numbers));
  std::string why;
  if (config.node_rank == 0) {
    why = serve_one(config);
  } else if (const auto ended = run_follower_node(config, node_groups(config)); !ended) {
    why = ended.error().message;
  }
  std::ofstream(std::string(folder) + "/end") << (why.empty() ? "in order" : why);
}

class NodeProcess {
 public:
  explicit NodeProcess(const Config& config, const FakeNodeFaults& faults = {}) {
    std::ofstream(folder_.at("node.yaml")) << print_config(config);
    std::ofstream out(folder_.at("faults"));
    for (const int32_t number : std::bit_cast<FaultNumbers>(faults)) out << number << ' ';
    out.close();
    std::vector<std::string> variables = {std::string(kNodeFolder) + "=" + folder_.path()};
    for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::array<std::string, 3> arguments = {
        "node", "--gtest_filter=NcclNodes.DISABLED_Node", "--gtest_also_run_disabled_tests"};
    std::array<char*, 4> pointers = {
        arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(
        &actions, STDOUT_FILENO, folder_.at("out").c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    CHECK_EQ(
        posix_spawn(
            &process_, "/proc/self/exe", &actions, nullptr, pointers.data(), environment.data()),
        0);
    posix_spawn_file_actions_destroy(&actions);
  }

  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  ~NodeProcess() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  void signal(int number) const { CHECK_EQ(kill(process_, number), 0); }

  // Waits for its end and returns why it ended; empty: it was killed.
  std::string end() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int status = 0;
    while (waitpid(process_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) return "it lives on";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    process_ = 0;
    if (status != 0 && status != SIGKILL) return "wait status " + std::to_string(status);
    std::ostringstream text;
    text << std::ifstream(folder_.at("end")).rdbuf();
    return text.str();
  }

 private:
  TemporaryFolder folder_;
  pid_t process_ = 0;
};

// Node 0's settings of a model over `size` processes, and the other processes. `faults` are those
// of the rank that they name.
class NodeProcesses {
 public:
  NodeProcesses(Config config, int32_t size, const FakeNodeFaults& faults = {})
      : lead_(std::move(config)) {
    lead_.nnodes = lead_.tensor_parallel_size = size;
    lead_.master_port = free_port();
    lead_.max_num_batched_tokens = std::min(lead_.max_num_batched_tokens, 64);  // all run at start
    use_fake_nodes(faults);
    for (int32_t rank = 1; rank < size; ++rank) {
      Config own = lead_;
      own.node_rank = rank;
      others_.push_back(std::make_unique<NodeProcess>(own, faults));
    }
  }

  Expected<std::unique_ptr<Engine>> try_start() { return create_engine(lead_, node_groups(lead_)); }

  // Null, with a failure of the test, if it does not start.
  std::unique_ptr<Engine> start() {
    auto engine = try_start();
    EXPECT_TRUE(engine.has_value()) << engine.error().message;
    return engine ? std::move(*engine) : nullptr;
  }

  NodeProcess& other(int32_t rank) { return *others_[static_cast<size_t>(rank - 1)]; }

  // Waits for the others, by rank, and returns why they ended.
  std::vector<std::string> ends() {
    std::vector<std::string> ends;
    for (const auto& other : others_) ends.push_back(other->end());
    return ends;
  }

  void expect_in_order() {
    for (const std::string& end : ends()) EXPECT_EQ(end, "in order");
  }

 private:
  Config lead_;
  std::vector<std::unique_ptr<NodeProcess>> others_;
};

}  // namespace sluice::testing
