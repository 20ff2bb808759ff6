// SPDX-License-Identifier: Apache-2.0
#include "server/front/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace sluice {
namespace {

// When the machine started, in seconds since the Unix epoch; negative: not known.
double boot_time_s() {
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return -1;
}

// The fields of /proc/self/stat after the program's name, which may contain blanks and parentheses:
// the first one is the third of proc(5).
std::vector<double> stat_fields() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(line.substr(end + 1));
  std::string state;
  rest >> state;
  std::vector<double> fields = {0};
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

}  // namespace

ProcessFigures process_figures() {
  ProcessFigures figures;
  // Indices are those of proc(5) less 3.
  constexpr size_t kUserTime = 11;
  constexpr size_t kSystemTime = 12;
  constexpr size_t kStartTime = 19;
  constexpr size_t kVirtualSize = 20;
  constexpr size_t kResidentSize = 21;
  const std::vector<double> fields = stat_fields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (fields.size() > kResidentSize && ticks > 0) {
    figures.cpu_seconds = (fields[kUserTime] + fields[kSystemTime]) / ticks;
    figures.virtual_bytes = fields[kVirtualSize];
    figures.resident_bytes = fields[kResidentSize] * static_cast<double>(sysconf(_SC_PAGESIZE));
    if (const double boot = boot_time_s(); boot > 0) {
      figures.start_time_s = boot + fields[kStartTime] / ticks;
    }
  }
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error) figures.num_files = static_cast<double>(std::distance(begin(files), end(files))) - 1;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    figures.max_files = static_cast<double>(limit.rlim_cur);
  return figures;
}

}  // namespace sluice
