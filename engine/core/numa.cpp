// SPDX-License-Identifier: Apache-2.0
#include "engine/core/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int32_t kMaxIds = 4096;  // more CPUs or nodes than any Linux kernel supports

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// CPUs that this process may run on.
class Affinity {
 public:
  Affinity() : is_known_(sched_getaffinity(0, sizeof(mask_), mask_.data()) == 0) {}

  [[nodiscard]] bool allows(int32_t cpu) const {
    if (!is_known_) return cpu < sysconf(_SC_NPROCESSORS_CONF);
    return CPU_ISSET_S(static_cast<size_t>(cpu), sizeof(mask_), mask_.data());
  }

 private:
  std::array<cpu_set_t, kMaxIds / CPU_SETSIZE> mask_{};
  bool is_known_;
};

std::vector<int32_t> memory_nodes(const std::string& root) {
  constexpr std::string_view kKey = "Mems_allowed_list:";
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) return parse_id_list(std::string_view(line).substr(kKey.size()));
  }
  return {};
}

bool contains(const std::vector<int32_t>& list, int32_t value) {
  return std::ranges::find(list, value) != list.end();
}

}  // namespace

std::vector<int32_t> parse_id_list(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int32_t first = -1;
    auto read = std::from_chars(at, end, first);
    int32_t last = first;
    if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    const bool is_range = read.ec == std::errc{} && first <= last && last < kMaxIds &&
                          first > (ids.empty() ? -1 : ids.back());
    if (!is_range || (read.ptr != end && (*read.ptr != ',' || read.ptr + 1 == end))) return {};
    for (int32_t id = first; id <= last; ++id) ids.push_back(id);
    at = read.ptr == end ? end : read.ptr + 1;
  }
  return ids;
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const Affinity affinity;
  const std::string folder = root + "/sys/devices/system/node/";
  const std::vector<int32_t> with_memory = memory_nodes(root);
  std::vector<NumaNode> nodes;
  for (const int32_t id : parse_id_list(first_line(folder + "online"))) {
    const bool has_memory = with_memory.empty() || contains(with_memory, id);
    NumaNode node{.id = id, .cpus = {}, .has_memory = has_memory};
    for (const int32_t cpu :
         parse_id_list(first_line(folder + "node" + std::to_string(id) + "/cpulist"))) {
      if (affinity.allows(cpu)) node.cpus.push_back(cpu);
    }
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) {
    NumaNode node;
    for (int32_t cpu = 0; cpu < kMaxIds; ++cpu) {
      if (affinity.allows(cpu)) node.cpus.push_back(cpu);
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

NumaMode parse_numa_mode(const std::string& name) {
  if (name == "distribute") return NumaMode::kDistribute;
  if (name == "isolate") return NumaMode::kIsolate;
  CHECK_EQ(name, std::string("off"));
  return NumaMode::kOff;
}

int32_t Placement::num_cpus() const {
  size_t count = 0;
  for (const NumaNode& node : nodes) count += node.cpus.size();
  return static_cast<int32_t>(count);
}

std::vector<int32_t> Placement::cpus_of(int32_t worker) const {
  if (mode == NumaMode::kOff && !is_strict) return {};
  const auto index = static_cast<size_t>(worker);
  if (mode == NumaMode::kDistribute) {
    const std::vector<int32_t>& cpus = nodes[index % nodes.size()].cpus;
    if (!is_strict) return cpus;
    return {cpus[index / nodes.size() % cpus.size()]};
  }
  std::vector<int32_t> cpus;
  for (const NumaNode& node : nodes) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  if (!is_strict) return cpus;
  return {cpus[index % cpus.size()]};
}

Placement Placement::share(int32_t rank, int32_t size) const {
  const auto part = [rank, size](auto& list) {
    const auto count = static_cast<int32_t>(list.size());
    list = {list.begin() + count * rank / size, list.begin() + count * (rank + 1) / size};
  };
  Placement own = *this;
  if (mode == NumaMode::kDistribute && static_cast<int32_t>(nodes.size()) % size == 0) {
    part(own.nodes);
    return own;
  }
  for (NumaNode& node : own.nodes) {
    if (static_cast<int32_t>(node.cpus.size()) >= size) part(node.cpus);
  }
  return own;
}

std::string Placement::describe() const {
  const std::string count =
      std::to_string(nodes.size()) + (nodes.size() == 1 ? " NUMA node" : " NUMA nodes");
  const std::string threads = is_strict ? ", threads pinned" : "";
  switch (mode) {
    case NumaMode::kOff:
      return "as the system does on " + count + threads;
    case NumaMode::kDistribute:
      return "distributed over " + count + threads;
    case NumaMode::kIsolate:
      return "on NUMA node " + std::to_string(nodes.front().id) + threads;
  }
  SLUICE_UNREACHABLE("NumaMode");
}

Placement make_placement(NumaMode mode, bool is_strict, std::vector<NumaNode> nodes, int32_t cpu) {
  CHECK(!nodes.empty());
  Placement placement{.mode = mode, .is_strict = is_strict, .nodes = std::move(nodes)};
  if (mode == NumaMode::kIsolate) {
    auto own = std::ranges::find_if(
        placement.nodes, [cpu](const NumaNode& node) { return contains(node.cpus, cpu); });
    if (own == placement.nodes.end()) own = placement.nodes.begin();
    placement.nodes = {std::move(*own)};
  }
  return placement;
}

Placement make_placement(NumaMode mode, bool is_strict) {
  return make_placement(mode, is_strict, numa_nodes(), sched_getcpu());
}

bool bind_memory(std::span<std::byte> bytes, const Placement& placement) {
  if (placement.mode == NumaMode::kOff || bytes.empty()) return true;
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxIds / kBits> mask{};
  bool has_memory = false;
  for (const NumaNode& node : placement.nodes) {
    if (!node.has_memory) continue;
    const auto id = static_cast<size_t>(node.id);
    mask[id / kBits] |= 1UL << id % kBits;
    has_memory = true;
  }
  if (!has_memory) return true;
  // A policy covers whole pages: those that the bytes touch belong to one allocation.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  const int policy = placement.mode == NumaMode::kDistribute ? MPOL_INTERLEAVE : MPOL_PREFERRED;
  return syscall(SYS_mbind, begin, end - begin, policy, mask.data(), kMaxIds, 0) == 0;
}

bool bind_thread(const std::vector<int32_t>& cpus) {
  if (cpus.empty()) return true;
  std::array<cpu_set_t, kMaxIds / CPU_SETSIZE> mask{};
  for (const int32_t cpu : cpus) {
    CPU_SET_S(static_cast<size_t>(cpu), sizeof(mask), mask.data());
  }
  return sched_setaffinity(0, sizeof(mask), mask.data()) == 0;
}

}  // namespace sluice
