// SPDX-License-Identifier: Apache-2.0
// Watches files that other programs write while this process runs: keys and certificates, from a
// Kubernetes Secret (a link that moves to a new file) or an editor (the same file, longer).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

class FileWatch {
 public:
  // Records the present state of the files; empty paths name none.
  explicit FileWatch(const std::vector<std::string>& paths);

  // Returns true once for each change, when two calls in a row have found the same state, so that a
  // file is not read while it is written. A missing file counts as a change. Called again and again
  // on one thread.
  [[nodiscard]] bool has_changed();

 private:
  // The values that tell one state of a file from another; links are followed.
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
  Stamps known_;  // the state that has_changed() last reported
  Stamps last_;   // the state that the last call found
};

}  // namespace sluice
