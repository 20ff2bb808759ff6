// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/unfinished.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/quantize.h"
#include "engine/quantize/output_file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".unfinished-";

std::string own_name(const std::string& output) {
  return output + std::string(kMark) + std::to_string(::getpid());
}

// Whether a process that may be the owner lives, by its number or, in another process namespace,
// by its lock.
bool has_owner(const fs::path& path, std::string_view number) {
  pid_t owner = 0;
  const auto [end, error] = std::from_chars(number.begin(), number.end(), owner);
  if (error != std::errc() || end != number.end() || owner <= 0) return true;
  if (owner != ::getpid() && (::kill(owner, 0) == 0 || errno != ESRCH)) return true;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return true;
  const bool is_locked = ::flock(file, LOCK_EX | LOCK_NB) != 0;
  ::close(file);
  return is_locked;
}

void remove_orphans(const fs::path& output) {
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  const std::string start = output.filename().string() + std::string(kMark);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start)) continue;
    if (has_owner(entry.path(), std::string_view(name).substr(start.size()))) continue;
    fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

Unfinished::Unfinished(std::string output) : output_(std::move(output)), path_(own_name(output_)) {}

Unfinished::Unfinished(Unfinished&& other) noexcept
    : output_(std::move(other.output_)),
      path_(std::exchange(other.path_, {})),
      lock_(std::exchange(other.lock_, -1)) {}

Expected<Unfinished> Unfinished::create(const std::string& output, bool is_directory) {
  remove_orphans(output);
  Unfinished made(output);
  if (is_directory) {
    std::error_code error;
    fs::create_directory(made.path_, error);
    if (error) {
      return make_error(ErrorCode::kPermissionDenied,
                        made.path_ + ": mkdir: " + error.message());
    }
  } else {
    SLUICE_TRY(OutputFile file, OutputFile::create(made.path_, 0));
    SLUICE_TRY_VOID(file.close());
  }
  // Where a file system has no locks, the number of the process protects it.
  made.lock_ = ::open(made.path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (made.lock_ >= 0) ::flock(made.lock_, LOCK_EX | LOCK_NB);
  return made;
}

Unfinished::~Unfinished() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void Unfinished::clear() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) fs::remove_all(entry, ignored);
}

Expected<void> Unfinished::rename() {
  std::error_code error;
  fs::rename(path_, output_, error);
  if (error) {
    return make_error(ErrorCode::kInvalidArgument, output_ + ": rename: " + error.message());
  }
  path_.clear();
  return {};
}

void remove_unfinished(std::string output) {
  while (output.size() > 1 && output.ends_with('/')) output.pop_back();
  constexpr int kTries = 5;  // the writers' threads still make files
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    fs::remove_all(own_name(output), error);
    if (!error) return;
  }
}

}  // namespace sluice
