// SPDX-License-Identifier: Apache-2.0
// An output's temporary name, "OUT.unfinished-" and random_name() beside it, until the output is
// whole.
#pragma once

#include <functional>
#include <string>

#include "engine/core/status.h"

namespace sluice {

class Unfinished {
 public:
  // Makes an empty file or directory under a name that no process has, locked while this object
  // lives, and removes those of the same output that no process has locked any more: a run that was
  // killed left them. `on_path`, unless empty, is called with the name before there is anything of
  // it, again where another one is needed. kPermissionDenied, kResourceExhausted or
  // kInvalidArgument, in one line with the path.
  static Expected<Unfinished> create(const std::string& output,
                                     bool is_directory,
                                     const std::function<void(const std::string&)>& on_path = {});

  // Removes what rename() has not given its name.
  ~Unfinished();
  Unfinished(Unfinished&& other) noexcept;
  Unfinished& operator=(Unfinished&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Empties a directory, to write it again.
  void clear() const;

  // Gives the whole output its name. kInvalidArgument: there is something of that name.
  Expected<void> rename();

 private:
  Unfinished(std::string output, std::string path, int lock);

  std::string output_;
  std::string path_;
  int lock_ = -1;
};

}  // namespace sluice
