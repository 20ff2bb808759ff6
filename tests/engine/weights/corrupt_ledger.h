// SPDX-License-Identifier: Apache-2.0
// Counts the corrupt files that this program makes by hand. Each must be refused in one line that
// begins with the file's name, and without an allocation beyond twice the file.
#pragma once

#include <cstddef>
#include <string>

#include "engine/core/status.h"

namespace sluice {

// A text that is corrupt in one way, and a part of the line that refuses it.
struct CorruptText {
  std::string what;
  std::string text;
  const char* message;
};

class CorruptFile {
 public:
  // `what` must be unique; the file is read between this and refused().
  CorruptFile(std::string what, size_t file_bytes);

  // Fails the test unless all of the above holds and the message includes `mentioned`.
  void refused(const Error& error, const std::string& file_name, const std::string& mentioned);

 private:
  std::string what_;
  size_t file_bytes_;
};

}  // namespace sluice
