// SPDX-License-Identifier: Apache-2.0
// Files that others write while this process runs: keys and certificates, as a Kubernetes Secret
// brings them (another file behind the same link) or an editor leaves them (the same file, longer).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

class FileWatch {
 public:
  // What the files are now is known; empty paths name none.
  explicit FileWatch(const std::vector<std::string>& paths);

  // One thread, which asks again and again: true once for each change, when two calls in a row have
  // found the same, so that a file is not taken while it is written. A file that has gone has
  // changed.
  [[nodiscard]] bool has_changed();

 private:
  // What tells one state of a file from another; links are followed.
  struct Stamp {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;

    bool operator==(const Stamp&) const = default;
  };

  using Stamps = std::vector<std::optional<Stamp>>;  // none: no such file

  [[nodiscard]] Stamps look() const;

  std::vector<std::string> paths_;
  Stamps known_;  // what has_changed() has told of
  Stamps last_;   // what the last call has found
};

}  // namespace sluice
