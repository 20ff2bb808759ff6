// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/file_descriptor.h"
#include "engine/core/hex.h"
#include "engine/core/log.h"
#include "engine/core/random_name.h"

namespace sluice {
namespace {

constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kUnfinished = ".tmp";
constexpr int64_t kUnfinishedSeconds = 600;  // no process writes one file for so long
constexpr std::string_view kLock = "in-use.lock";
constexpr int64_t kAbandonedSeconds = int64_t{30} * 24 * 3600;  // a folder without a lock

std::string error_text(int error) { return std::generic_category().message(error); }

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

std::optional<TierIndex::Name> parse_file_name(std::string_view text) {
  constexpr size_t kHex = 2 * sizeof(KvKey);
  if (text.size() != 2 * kHex + 1 + kSuffix.size() || text[kHex] != '-' ||
      !text.ends_with(kSuffix)) {
    return std::nullopt;
  }
  const auto read = [&](size_t at, KvKey& key) {
    const std::string_view digits = text.substr(at, kHex);
    return is_hex(digits) && from_hex(digits, key);
  };
  TierIndex::Name name;
  if (!read(0, name.key) || !read(kHex + 1, name.parent)) return std::nullopt;
  return name;
}

class Folder final : public KvPlace {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  bool put(const KvFileName& name, std::span<std::byte> block) override;
  bool get(const KvFileName& name, std::span<std::byte> block) override;

  void remove(const TierIndex::Name& name) override { ::unlink(path_of(name).c_str()); }

  // Lists the files of this size whose names are those of blocks, the oldest use first.
  [[nodiscard]] Expected<std::vector<TierIndex::Name>> list(int64_t file_bytes);

 private:
  std::error_code prepare();
  [[nodiscard]] int write_file(const std::string& path, std::span<const std::byte> bytes) const;

  [[nodiscard]] std::string path_of(const TierIndex::Name& name) const {
    return path_ + "/" + to_hex(name.key) + "-" + to_hex(name.parent) + std::string(kSuffix);
  }

  std::string path_;
  std::string writer_ = random_name();  // names its unfinished files
  FileDescriptor lock_;  // shared, while this folder is used
  bool writing_fails_ = false;  // as of the last write; one line is logged when failures begin
};

// Takes the shared lock of a file. false: the file system has no locks.
bool lock_shared(const FileDescriptor& file) {
  int status = 0;
  while ((status = ::flock(file.get(), LOCK_SH)) != 0 && errno == EINTR) continue;
  return status == 0;
}

// Whether `file` is still what `name` names.
bool is_at(const std::string& name, const FileDescriptor& file) {
  struct stat opened{};
  struct stat named{};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(name.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Makes the lock's file, which is locked before others can see it: they would remove the folder of
// one that is not. Gives an error number, or 0, also where the file system has no locks or hard
// links and no file is made. ENOENT: the folder was removed. EEXIST: another was first.
int make_lock(const std::string& name, const std::string& writer, FileDescriptor& lock) {
  const std::string unfinished = name + "." + writer + std::string(kUnfinished);
  lock = FileDescriptor(::open(unfinished.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (lock.get() < 0) return errno;
  int error = 0;
  if (lock_shared(lock) && ::link(unfinished.c_str(), name.c_str()) != 0) error = errno;
  ::unlink(unfinished.c_str());
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS ? 0 : error;
}

// Makes the folder, and takes the shared lock of its file. Both may be removed at any moment before
// that; what is made here then stays, so that few tries are enough.
std::error_code lock_folder(const std::string& path,
                            const std::string& writer,
                            FileDescriptor& lock) {
  constexpr int kTries = 100;
  const std::string name = path + "/" + std::string(kLock);
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return error;
    lock = FileDescriptor(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock.get() < 0) {
      const int status = errno == ENOENT ? make_lock(name, writer, lock) : errno;
      if (status == ENOENT || status == EEXIST) continue;
      return {status, std::generic_category()};
    }
    if (!lock_shared(lock) || is_at(name, lock)) return {};
  }
  return std::make_error_code(std::errc::device_or_resource_busy);
}

std::error_code Folder::prepare() {
  std::error_code error = lock_folder(path_, writer_, lock_);
  if (error) return error;
  if (::access(path_.c_str(), R_OK | W_OK | X_OK) != 0) return {errno, std::generic_category()};
  // The folder is private: a conversation can be reconstructed from its KV.
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all, error);
  return error;
}

// Reads names, sizes and times only; contents are checked when they are read.
Expected<std::vector<TierIndex::Name>> Folder::list(int64_t file_bytes) {
  std::error_code error = prepare();
  std::filesystem::directory_iterator entries;
  if (!error) entries = std::filesystem::directory_iterator(path_, error);
  if (error) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--kv-disk-path: " + path_ + ": " + error.message(),
                      "kv-disk-path");
  }
  std::vector<std::pair<int64_t, TierIndex::Name>> found;  // names with their time of last use
  int64_t num_ignored = 0;
  std::string first_ignored;
  const auto now = static_cast<int64_t>(::time(nullptr));
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    struct stat info{};
    if (name == kLock || ::lstat(entries->path().c_str(), &info) != 0) continue;
    if (name.ends_with(kUnfinished)) {
      if (now - info.st_mtime > kUnfinishedSeconds) ::unlink(entries->path().c_str());
      continue;
    }
    const auto parsed = parse_file_name(name);
    if (parsed && S_ISREG(info.st_mode) && info.st_size == file_bytes) {
      found.emplace_back(info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec, *parsed);
    } else if (num_ignored++ == 0) {
      first_ignored = name;
    }
  }
  if (num_ignored > 0) {
    log_event(LogLevel::kWarning,
              "kv_files_ignored",
              "folder",
              path_,
              "count",
              num_ignored,
              "first",
              first_ignored,
              "reason",
              "not a block of this model by name and size");
  }
  std::ranges::sort(found, {}, [](const auto& file) { return file.first; });
  std::vector<TierIndex::Name> names;
  for (const auto& file : found) names.push_back(file.second);
  return names;
}

// Writes a whole file under another name and renames it. Gives an error number, or 0.
int Folder::write_file(const std::string& path, std::span<const std::byte> bytes) const {
  const std::string unfinished = path + "." + writer_ + std::string(kUnfinished);
  int error = 0;
  {
    const FileDescriptor fd(
        ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0) return errno;
    if (!write_all(fd.get(), bytes)) error = errno;
  }
  if (error == 0 && ::rename(unfinished.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(unfinished.c_str());
  return error;
}

bool Folder::put(const KvFileName& name, std::span<std::byte> block) {
  seal_kv_file(name, block);
  const std::string path = path_of({name.key, name.parent});
  int error = write_file(path, block);
  if (error == ENOENT && !prepare()) error = write_file(path, block);  // the folder was removed
  if (error != 0 && !writing_fails_) {
    log_event(LogLevel::kWarning, "kv_file_not_written", "file", path, "reason", error_text(error));
  }
  writing_fails_ = error != 0;
  return error == 0;
}

bool Folder::get(const KvFileName& name, std::span<std::byte> block) {
  const std::string path = path_of({name.key, name.parent});
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == ENOENT) return false;  // another process removed it to make room
    log_event(LogLevel::kWarning, "kv_file_ignored", "file", path, "reason", error_text(errno));
    return false;
  }
  struct stat info{};
  Expected<void> status;
  if (::fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(block.size()) ||
      !read_all(fd.get(), block)) {
    status = make_error(ErrorCode::kDataLoss, "another size, or it cannot be read");
  } else {
    status = check_kv_file(name, block);
  }
  if (!status) {
    log_event(
        LogLevel::kWarning, "kv_file_ignored", "file", path, "reason", status.error().message);
    return false;
  }
  ::futimens(fd.get(), nullptr);  // keeps the order of use across a restart
  return true;
}

bool is_of_tier(const std::string& name) {
  return parse_file_name(name) || name.ends_with(kUnfinished);
}

// Whether a folder without a lock, such as builds made that had none, has files of a tier alone and
// was not used for very long. Where there are no locks, a tier that begins to use a folder makes a
// file in it all the same, for a moment, which gives the folder its time.
bool is_abandoned(const std::filesystem::path& folder) {
  const auto now = static_cast<int64_t>(::time(nullptr));
  const auto is_old = [now](const std::filesystem::path& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0 && now - info.st_mtime > kAbandonedSeconds;
  };
  if (!is_old(folder)) return false;
  int64_t num_files = 0;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (!is_of_tier(entries->path().filename().string()) || !is_old(entries->path())) return false;
    ++num_files;
  }
  return !error && num_files > 0;
}

// Empties a folder of what a tier writes. The lock goes last. false: stopped before that.
bool remove_files(const std::filesystem::path& folder, const std::stop_token& stop) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (is_of_tier(entries->path().filename().string())) files.push_back(entries->path());
  }
  for (const std::filesystem::path& file : files) {
    if (stop.stop_requested()) return false;
    ::unlink(file.c_str());
  }
  ::unlink((folder / kLock).c_str());
  return true;
}

void remove_if_unused(const std::filesystem::path& folder, const std::stop_token& stop) {
  const std::string name = (folder / kLock).string();
  const FileDescriptor lock(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock.get() < 0) {
    if (errno != ENOENT || !is_abandoned(folder)) return;
  } else if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || !is_at(name, lock)) {
    return;  // in use, or removed by another and perhaps made anew
  }
  if (!remove_files(folder, stop)) return;
  if (::rmdir(folder.c_str()) == 0) {
    log_event(LogLevel::kInfo, "kv_folder_removed", "folder", folder.string());
  } else {
    log_event(LogLevel::kWarning,
              "kv_folder_not_removed",
              "folder",
              folder.string(),
              "reason",
              error_text(errno));
  }
}

}  // namespace

void remove_unused_kv_folders(const std::string& path, const std::stop_token& stop) {
  std::error_code error;
  std::vector<std::filesystem::path> folders;
  std::filesystem::directory_iterator entries(path, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (entries->symlink_status(error).type() == std::filesystem::file_type::directory) {
      folders.push_back(entries->path());
    }
  }
  for (const std::filesystem::path& folder : folders) remove_if_unused(folder, stop);
}

Expected<std::unique_ptr<KvTier>> create_kv_disk_tier(const KvTierOptions& options,
                                                      const std::string& folder,
                                                      std::function<void()> wake) {
  const int64_t file_bytes = kv_tier_block_bytes(options);
  if (options.max_bytes < file_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--kv-disk-size: found " + std::to_string(options.max_bytes) +
                          " bytes, one block takes " + std::to_string(file_bytes),
                      "kv-disk-size");
  }
  auto place = std::make_unique<Folder>(folder);
  SLUICE_TRY(const std::vector<TierIndex::Name> found, place->list(file_bytes));
  SLUICE_TRY(auto tier, KvTier::create(options, std::move(place), std::move(wake)));
  tier->add_found(found);
  log_event(LogLevel::kInfo, "kv_disk_tier", "folder", folder, "blocks", tier->num_blocks());
  return tier;
}

}  // namespace sluice
