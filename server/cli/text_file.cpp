// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "server/cli/command.h"

namespace sluice {

Expected<std::string> read_text_file(const std::string& path) {
  const auto fail = [&path] {
    return make_error(ErrorCode::kNotFound, path + ": " + std::strerror(errno));
  };
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  const bool is_stdin = path == "-";
  // Standard input is not ours to close.
  const File file(
      is_stdin ? stdin : std::fopen(path.c_str(), "rb"),
      is_stdin ? [](std::FILE*) { return 0; } : [](std::FILE* f) { return std::fclose(f); });
  if (!file) return fail();
  std::string text;
  char buffer[64 << 10];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, count);
  }
  if (std::ferror(file.get()) != 0) return fail();
  return text;
}

Expected<void> write_text_file(const std::string& path, const std::string& text, bool appends) {
  std::FILE* file = std::fopen(path.c_str(), appends ? "ab" : "wb");
  bool written = file != nullptr;
  if (written) {
    written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    written = std::fclose(file) == 0 && written;
  }
  if (!written) return make_error(ErrorCode::kNotFound, path + ": " + std::strerror(errno));
  return {};
}

}  // namespace sluice
