// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/unfinished.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/core/log.h"
#include "engine/core/random_name.h"
#include "engine/quantize.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".unfinished-";
constexpr size_t kNameLength = 32;  // of random_name()

// What an attempt to lock a file or a folder came to.
enum class Lock : uint8_t {
  kTaken,
  kOfAnother,
  kUnknown,  // the file system has no locks
  kFailed,   // see errno
};

Lock take_lock(int descriptor) {
  int result = 0;
  do {
    result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return Lock::kTaken;
  if (errno == EWOULDBLOCK) return Lock::kOfAnother;
  const bool has_none = errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS ||
                        errno == EINVAL || errno == EBADF;
  return has_none ? Lock::kUnknown : Lock::kFailed;
}

// Some file systems lock only what is open for writing, which folders never are.
int open_to_lock(const std::string& path, bool is_directory) {
  const int how = is_directory ? O_RDONLY | O_DIRECTORY : O_RDWR;
  return ::open(path.c_str(), how | O_CLOEXEC | O_NOFOLLOW);
}

// Whether `path` still is what was opened, not removed by another process before it was locked.
bool is_still_there(const std::string& path, int descriptor) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Whether other machines see a folder's locks. Network file systems keep these on each machine,
// unlike those of files.
bool are_locks_shared(int folder) {
  constexpr uint32_t kNfs = 0x6969;
  constexpr uint32_t kSmb = 0x517B;
  constexpr uint32_t kCifs = 0xFF534D42;
  constexpr uint32_t kSmb2 = 0xFE534D42;
  constexpr uint32_t kPlan9 = 0x01021997;
  constexpr uint32_t kFuse = 0x65735546;
  constexpr uint32_t kOfNetworks[] = {kNfs, kSmb, kCifs, kSmb2, kPlan9, kFuse};
  struct statfs system = {};
  return ::fstatfs(folder, &system) == 0 &&
         std::ranges::find(kOfNetworks, static_cast<uint32_t>(system.f_type)) ==
             std::end(kOfNetworks);
}

// Removes what no process has locked, and holds its lock meanwhile. What cannot be locked for all
// to see stays: it may be that of another machine, whose processes are not seen from here.
void remove_orphan(const fs::directory_entry& entry) {
  std::error_code ignored;
  const bool is_folder = entry.is_directory(ignored);
  const int file = open_to_lock(entry.path().string(), is_folder);
  if (file < 0) return;
  const bool is_seen = !is_folder || are_locks_shared(file);
  const Lock lock = is_seen ? take_lock(file) : Lock::kUnknown;
  if (lock == Lock::kTaken) {
    fs::remove_all(entry.path(), ignored);
  } else if (lock != Lock::kOfAnother) {
    log_event(LogLevel::kWarning, "unfinished_output_stays", "path", entry.path().string());
  }
  ::close(file);
}

void remove_orphans(const fs::path& output) {
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  const std::string start = output.filename().string() + std::string(kMark);
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start) || name.size() != start.size() + kNameLength) continue;
    if (!std::ranges::all_of(name.substr(start.size()), is_hex)) continue;
    remove_orphan(entry);
  }
}

tl::unexpected<Error> system_error(const std::string& path, const char* call, int number) {
  ErrorCode code = ErrorCode::kPermissionDenied;
  if (number == ENOSPC || number == EDQUOT) code = ErrorCode::kResourceExhausted;
  return make_error(code, path + ": " + call + ": " + std::generic_category().message(number));
}

// Makes what is not there yet, and opens it.
Expected<int> make_new(const std::string& path, bool is_directory) {
  if (!is_directory) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) return system_error(path, "open", errno);
    return file;
  }
  if (::mkdir(path.c_str(), 0777) != 0) return system_error(path, "mkdir", errno);
  return open_to_lock(path, true);
}

}  // namespace

Unfinished::Unfinished(std::string output, std::string path, int lock)
    : output_(std::move(output)), path_(std::move(path)), lock_(lock) {}

Unfinished::Unfinished(Unfinished&& other) noexcept
    : output_(std::move(other.output_)),
      path_(std::exchange(other.path_, {})),
      lock_(std::exchange(other.lock_, -1)) {}

Expected<Unfinished> Unfinished::create(const std::string& output,
                                        bool is_directory,
                                        const std::function<void(const std::string&)>& on_path) {
  remove_orphans(output);
  constexpr int kTries = 8;  // others that clean up lock what is new for a moment
  for (int i = 0; i < kTries; ++i) {
    const std::string path = output + std::string(kMark) + random_name();
    if (on_path) on_path(path);
    SLUICE_TRY(const int file, make_new(path, is_directory));
    if (file < 0 && errno == ENOENT) continue;
    if (file < 0) {
      const int number = errno;
      if (is_directory) ::rmdir(path.c_str());
      return system_error(path, "open", number);
    }
    Unfinished made(output, path, file);
    const Lock lock = take_lock(file);
    if (lock == Lock::kFailed) return system_error(path, "flock", errno);
    if (lock != Lock::kOfAnother && is_still_there(path, file)) return made;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    output + ": another process removes its temporary files");
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
  const char* const from = path_.c_str();
  const char* const to = output_.c_str();
  int result = ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {  // not on this file system
    struct stat there = {};
    errno = EEXIST;
    result = ::lstat(to, &there) == 0 ? -1 : std::rename(from, to);
  }
  if (result != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      output_ + ": rename: " + std::generic_category().message(errno));
  }
  path_.clear();
  return {};
}

void remove_unfinished(const std::string& path) {
  constexpr int kTries = 5;  // the writers' threads still make files
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    fs::remove_all(path, error);
    if (!error) return;
  }
}

}  // namespace sluice
