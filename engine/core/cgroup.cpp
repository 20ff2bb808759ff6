// SPDX-License-Identifier: Apache-2.0
#include "engine/core/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int32_t kMaxCpus = 4096;

// Parses "123" or "max"; -1 for anything that is not a number.
int64_t parse_number(std::string_view word) {
  int64_t value = -1;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  return result.ec == std::errc{} && result.ptr == word.data() + word.size() ? value : -1;
}

// The first two numbers of a file; -1 for a missing one.
struct Numbers {
  int64_t first = -1;
  int64_t second = -1;
};

Numbers read_numbers(const std::string& path) {
  std::ifstream file(path);
  Numbers numbers;
  std::string word;
  if (file >> word) numbers.first = parse_number(word);
  if (file >> word) numbers.second = parse_number(word);
  return numbers;
}

// Returns the value of `key` in a file of "key value" lines; 0 if there is none.
int64_t read_keyed(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  std::string value;
  while (file >> name >> value) {
    if (name == key) return std::max<int64_t>(0, parse_number(value));
  }
  return 0;
}

bool names_controller(std::string_view list, std::string_view controller) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == controller) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// The process's group in the hierarchy of `controller`; "" is the hierarchy of version 2.
std::string own_group(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:cpu,cpuacct:/group", "0::/group"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view list = std::string_view(line).substr(first + 1, second - first - 1);
    const bool found = controller.empty() ? list.empty() : names_controller(list, controller);
    if (found) return line.substr(second + 1);
  }
  return "/";
}

// Returns the folders of the group and its ancestors up to the mount point. A group hidden by a
// namespace has no folder; the mount point itself is then the own group.
std::vector<std::string> folders_of(const std::string& mount, std::string group) {
  std::vector<std::string> folders;
  while (group.size() > 1) {
    folders.push_back(mount + group);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  folders.push_back(mount);
  return folders;
}

std::vector<std::string> groups_v2(const std::string& root) {
  return folders_of(root + "/sys/fs/cgroup", own_group(root, ""));
}

std::vector<std::string> groups_v1(const std::string& root, const std::string& controller) {
  return folders_of(root + "/sys/fs/cgroup/" + controller, own_group(root, controller));
}

int64_t free_bytes(int64_t limit, int64_t usage, int64_t reclaimable) {
  if (limit < 0) return kNoCgroupLimit;
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - reclaimable));
}

}  // namespace

int32_t cgroup_cpus(const std::string& root) {
  int64_t cpus = kMaxCpus + 1;
  const auto apply = [&cpus](int64_t quota, int64_t period) {
    if (quota > 0 && period > 0) cpus = std::min(cpus, ceil_div(quota, period));
  };
  for (const std::string& folder : groups_v2(root)) {
    const Numbers limit = read_numbers(folder + "/cpu.max");
    apply(limit.first, limit.second);
  }
  for (const std::string& folder : groups_v1(root, "cpu")) {
    apply(read_numbers(folder + "/cpu.cfs_quota_us").first,
          read_numbers(folder + "/cpu.cfs_period_us").first);
  }
  return cpus > kMaxCpus ? 0 : static_cast<int32_t>(cpus);
}

int64_t cgroup_available_memory(const std::string& root) {
  int64_t available = kNoCgroupLimit;
  for (const std::string& folder : groups_v2(root)) {
    for (const char* const limit : {"/memory.max", "/memory.high"}) {
      available = std::min(available,
                           free_bytes(read_numbers(folder + limit).first,
                                      read_numbers(folder + "/memory.current").first,
                                      read_keyed(folder + "/memory.stat", "inactive_file")));
    }
  }
  for (const std::string& folder : groups_v1(root, "memory")) {
    available = std::min(available,
                         free_bytes(read_numbers(folder + "/memory.limit_in_bytes").first,
                                    read_numbers(folder + "/memory.usage_in_bytes").first,
                                    read_keyed(folder + "/memory.stat", "total_inactive_file")));
  }
  return available;
}

}  // namespace sluice
