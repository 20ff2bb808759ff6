// SPDX-License-Identifier: Apache-2.0
#include "server/keys/file_watch.h"

#include <sys/stat.h>

#include <utility>

namespace sluice {
namespace {

int64_t nanoseconds(const timespec& time) {
  constexpr int64_t kSecond = 1'000'000'000;
  return int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

}  // namespace

FileWatch::FileWatch(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!path.empty()) paths_.push_back(path);
  }
  known_ = look();
  last_ = known_;
}

FileWatch::Stamps FileWatch::look() const {
  Stamps found;
  for (const std::string& path : paths_) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) {
      found.emplace_back();
      continue;
    }
    found.push_back(Stamp{.device = status.st_dev,
                          .inode = status.st_ino,
                          .size = status.st_size,
                          .modified_ns = nanoseconds(status.st_mtim),
                          .changed_ns = nanoseconds(status.st_ctim)});
  }
  return found;
}

bool FileWatch::has_changed() {
  Stamps now = look();
  const bool is_settled = now == last_;
  last_ = std::move(now);
  if (!is_settled || last_ == known_) return false;
  known_ = last_;
  return true;
}

}  // namespace sluice
