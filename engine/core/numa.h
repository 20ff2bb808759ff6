// SPDX-License-Identifier: Apache-2.0
// Which CPUs and which memory an engine uses on a machine with several NUMA nodes, by --numa and
// --cpu-strict. Raw system calls; best effort where a container forbids them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// "0-3,8": increasing ids below 4096; empty for anything else. As /sys and /proc write them.
std::vector<int32_t> parse_id_list(std::string_view text);

struct NumaNode {
  int32_t id = 0;
  std::vector<int32_t> cpus;  // of this process's affinity mask
  bool has_memory = true;     // that this process may use
};

// The nodes that have such CPUs, in order. Where the system says nothing: one node 0 with all of
// them. `root` stands before /sys and /proc.
std::vector<NumaNode> numa_nodes(const std::string& root = "");

// kOff: threads and pages lie where the system puts them. kDistribute: evenly over all nodes.
// kIsolate: on the node that the calling thread runs on.
enum class NumaMode : uint8_t { kOff, kDistribute, kIsolate };
NumaMode parse_numa_mode(const std::string& name);  // "off", "distribute", "isolate"

struct Placement {
  NumaMode mode = NumaMode::kOff;
  bool is_strict = false;       // a CPU for each thread
  std::vector<NumaNode> nodes;  // that are used

  [[nodiscard]] int32_t num_cpus() const;

  // Where compute thread `worker` may run; empty: wherever the process may. More threads than CPUs
  // share them in turn.
  [[nodiscard]] std::vector<int32_t> cpus_of(int32_t worker) const;

  // Of rank `rank` of `size` that share this one: nodes of its own where they divide, else a share
  // of each node's CPUs; memory as here.
  [[nodiscard]] Placement share(int32_t rank, int32_t size) const;

  [[nodiscard]] std::string describe() const;  // "distributed over 2 NUMA nodes"
};

// Of the nodes there are; `cpu`: that the calling thread runs on.
Placement make_placement(NumaMode mode, bool is_strict, std::vector<NumaNode> nodes, int32_t cpu);
// Of this machine.
Placement make_placement(NumaMode mode, bool is_strict);

// Before the memory is first written: its pages are interleaved over the placement's nodes, or
// preferred on its one. Nothing for kOff. False, with errno, where the system refuses.
bool bind_memory(std::span<std::byte> bytes, const Placement& placement);

// The calling thread and those it makes later. Nothing for no CPUs; false, with errno, where the
// system refuses.
bool bind_thread(const std::vector<int32_t>& cpus);

}  // namespace sluice
