// SPDX-License-Identifier: Apache-2.0
// An output's temporary name, "OUT.unfinished-PID" beside it, until the output is whole.
#pragma once

#include <string>

#include "engine/core/status.h"

namespace sluice {

class Unfinished {
 public:
  // Makes an empty file or directory, locked while this object lives, and removes those of the same
  // output that no process owns any more: a run that was killed left them. kPermissionDenied,
  // kResourceExhausted or kInvalidArgument, in one line with the path.
  static Expected<Unfinished> create(const std::string& output, bool is_directory);

  // Removes what rename() has not given its name.
  ~Unfinished();
  Unfinished(Unfinished&& other) noexcept;
  Unfinished& operator=(Unfinished&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Empties a directory, to write it again.
  void clear() const;

  // Gives the whole output its name. kInvalidArgument.
  Expected<void> rename();

 private:
  explicit Unfinished(std::string output);

  std::string output_;
  std::string path_;
  int lock_ = -1;
};

}  // namespace sluice
