// SPDX-License-Identifier: Apache-2.0
// The CPUs and memory that an engine uses on a machine with several NUMA nodes, by --numa and
// --cpu-strict. Raw system calls; best effort where a container forbids them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Parses "0-3,8" in the format of /sys and /proc: increasing ids below 4096; empty if malformed.
std::vector<int32_t> parse_id_list(std::string_view text);

struct NumaNode {
  int32_t id = 0;
  std::vector<int32_t> cpus;  // in this process's affinity mask
  bool has_memory = true;     // usable by this process
};

// Returns the nodes that have such CPUs, in order. If the system gives no information: one node 0
// with all of them. `root` is prepended to the paths below /sys and /proc.
std::vector<NumaNode> numa_nodes(const std::string& root = "");

// kOff leaves threads and pages to the system. kDistribute spreads them evenly over all nodes.
// kIsolate puts them on the calling thread's node.
enum class NumaMode : uint8_t { kOff, kDistribute, kIsolate };
NumaMode parse_numa_mode(const std::string& name);  // "off", "distribute", "isolate"

struct Placement {
  NumaMode mode = NumaMode::kOff;
  bool is_strict = false;       // a CPU for each thread
  std::vector<NumaNode> nodes;  // nodes in use

  [[nodiscard]] int32_t num_cpus() const;

  // CPUs on which compute thread `worker` may run; empty: any CPU of the process. If there are more
  // threads than CPUs, they share CPUs in turn.
  [[nodiscard]] std::vector<int32_t> cpus_of(int32_t worker) const;

  // The placement of rank `rank` of `size` within this one: whole nodes where they divide evenly,
  // else a share of each node's CPUs; memory as here.
  [[nodiscard]] Placement share(int32_t rank, int32_t size) const;

  [[nodiscard]] std::string describe() const;  // "distributed over 2 NUMA nodes"
};

// Chooses among the given nodes; `cpu` is where the calling thread runs.
Placement make_placement(NumaMode mode, bool is_strict, std::vector<NumaNode> nodes, int32_t cpu);
// Chooses on this machine.
Placement make_placement(NumaMode mode, bool is_strict);

// Call before the memory is first written: interleaves its pages over the placement's nodes, or
// prefers its single node. Does nothing for kOff. False, with errno, where the system refuses.
bool bind_memory(std::span<std::byte> bytes, const Placement& placement);

// Binds the calling thread and threads that it creates later. Does nothing for no CPUs; false, with
// errno, where the system refuses.
bool bind_thread(const std::vector<int32_t>& cpus);

}  // namespace sluice
