// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/packed_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/hex.h"
#include "engine/core/log.h"
#include "engine/core/types.h"
#include "engine/core/u64_fields.h"
#include "engine/core/version.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLUIPW01";
constexpr std::string_view kAnyVersion = kMagic.substr(0, 6);
constexpr const char* kEnding = ".packed";
constexpr const char* kDraftEnding = ".partial";  // appended to kEnding
constexpr size_t kBuildAt = 8;
constexpr size_t kSourceAt = 16;
constexpr size_t kLayoutAt = 24;
constexpr size_t kNumMatricesAt = 32;
constexpr size_t kArenaBytesAt = 40;
constexpr size_t kHeaderSumAt = 56;
constexpr size_t kHashesAt = 64;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kSectionBytes = uint64_t{8} << 20;
constexpr unsigned kMaxWorkers = 8;
constexpr int64_t kClockStepNs = 2'000'000'000;

uint64_t hash_of(std::span<const std::byte> bytes, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t hash_of(std::string_view text, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

// `header` ends with its tables.
uint64_t header_sum(std::span<const std::byte> header) {
  return hash_of(header.subspan(kHashesAt), hash_of(header.first(kHeaderSumAt)));
}

uint64_t num_sections(uint64_t arena_bytes) {
  return arena_bytes / kSectionBytes + (arena_bytes % kSectionBytes == 0 ? 0 : 1);
}

std::span<const std::byte> section(std::span<const std::byte> arena, uint64_t index) {
  const uint64_t begin = index * kSectionBytes;
  return arena.subspan(begin, std::min(kSectionBytes, arena.size() - begin));
}

// Offsets at which the parts of a file end.
struct FileSizes {
  uint64_t header = 0;  // including its tables
  uint64_t arena_at = 0;
  uint64_t file = 0;
};

// Nullopt: no file can be so large.
std::optional<FileSizes> file_sizes(const ArenaLayout& layout) {
  const auto numbers = checked_add(layout.num_matrices, num_sections(layout.bytes));
  const auto tables = numbers ? checked_mul(*numbers, sizeof(uint64_t)) : std::nullopt;
  const auto header = tables ? checked_add(*tables, kHashesAt) : std::nullopt;
  const uint64_t alignment = layout.bytes < kSectionBytes ? kPageBytes : kHugePageBytes;
  const auto arena_at = header ? checked_align(*header, alignment) : std::nullopt;
  const auto file = arena_at ? checked_add(*arena_at, layout.bytes) : std::nullopt;
  if (!file) return std::nullopt;
  return FileSizes{.header = *header, .arena_at = *arena_at, .file = *file};
}

tl::unexpected<Error> refuse(const std::string& what) {
  return make_error(ErrorCode::kDataLoss, what);
}

std::string system_text(int error) { return std::generic_category().message(error); }

// Populates the pages first, so that an unreadable disk is an error instead of a signal.
bool section_is_right(const PackedParts& parts, uint64_t index) {
  const std::span<const std::byte> bytes = section(parts.arena, index);
  auto* const begin = const_cast<std::byte*>(bytes.data());
  // A kernel without this advice reads pages on access.
  if (madvise(begin, bytes.size(), MADV_POPULATE_READ) != 0 && errno == EFAULT) return false;
  return hash_of(bytes) == get_u64(parts.checksums, index * sizeof(uint64_t));
}

// Returns the first damaged section.
std::optional<uint64_t> find_damage(const PackedParts& parts) {
  const uint64_t sections = num_sections(parts.arena.size());
  // Uses huge pages where the file system has them.
  madvise(const_cast<std::byte*>(parts.arena.data()), parts.arena.size(), MADV_HUGEPAGE);
  std::atomic<uint64_t> next = 0;
  std::atomic<uint64_t> damaged = sections;
  const auto work = [&] {
    for (uint64_t i = next++; i < sections && damaged == sections; i = next++) {
      if (!section_is_right(parts, i)) damaged = i;
    }
  };
  const uint64_t most = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxWorkers);
  {
    std::vector<std::jthread> workers;
    for (uint64_t i = 1; i < std::min(most, sections); ++i) workers.emplace_back(work);
    work();
  }
  return damaged == sections ? std::nullopt : std::optional<uint64_t>(damaged);
}

// A file written under another name. Its one writer holds a lock that ends with its process, so the
// remains of a dead writer are simply overwritten.
class Draft {
 public:
  static Expected<Draft> open(const std::string& path) {
    const int fd =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) return failure("cannot make", path);
    Draft draft(path, fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return failure("cannot lock", path);
      return make_error(ErrorCode::kUnavailable, path + ": another process writes it");
    }

    // The previous lock holder may have renamed the file, which is then the finished one.
    struct stat opened {};

    struct stat named {};

    if (fstat(fd, &opened) != 0) return failure("cannot read", path);
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino ||
        named.st_dev != opened.st_dev) {
      return make_error(ErrorCode::kUnavailable, path + ": another process has written it");
    }
    draft.is_ours_ = true;
    if (!S_ISREG(opened.st_mode) || ftruncate(fd, 0) != 0) return failure("cannot empty", path);
    return draft;
  }

  Draft(Draft&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        is_ours_(std::exchange(other.is_ours_, false)) {}

  Draft& operator=(Draft&&) = delete;

  ~Draft() {
    if (is_ours_) ::unlink(path_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }

  // Shows a full disk before anything is written; some file systems do not support it.
  Expected<void> reserve(uint64_t bytes) {
    if (fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP) return {};
    return failure("cannot make room in", path_);
  }

  Expected<void> write(uint64_t at, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return failure("cannot write", path_);
      at += static_cast<uint64_t>(count);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }

  // Syncs before renaming, so that the name implies the bytes even after a power cut.
  Expected<void> publish(const std::string& path) {
    if (fsync(fd_) != 0) return failure("cannot write", path_);
    if (std::rename(path_.c_str(), path.c_str()) != 0) return failure("cannot rename", path_);
    is_ours_ = false;
    return {};
  }

 private:
  Draft(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  static tl::unexpected<Error> failure(const char* what, const std::string& path) {
    const int error = errno;
    return make_error(ErrorCode::kInternal,
                      std::string(what) + " " + path + ": " + system_text(error));
  }

  std::string path_;
  int fd_;
  bool is_ours_ = false;
};

struct StoredFile {
  std::string path;
  uint64_t bytes = 0;
  int64_t last_use = 0;  // ns
};

// Nullopt: not a file of packed weights.
std::optional<StoredFile> stored_file(const std::string& path) {
  if (!path.ends_with(kEnding)) return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::array<char, kAnyVersion.size()> magic{};

  struct stat status {};

  const bool is_ours = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                       ::pread(fd, magic.data(), magic.size(), 0) ==
                           static_cast<ssize_t>(magic.size()) &&
                       std::string_view(magic.data(), magic.size()) == kAnyVersion;
  ::close(fd);
  if (!is_ours) return std::nullopt;
  return StoredFile{.path = path,
                    .bytes = static_cast<uint64_t>(status.st_size),
                    .last_use = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// Removes a draft whose writer is dead: its lock is free.
void remove_if_left(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;

  struct stat status {};

  const bool is_file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (is_file && flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  ::close(fd);
}

// Removes the least recently used files except `keep` until the rest plus `needed` bytes fit
// `max_bytes`, and drafts of dead writers; concurrent writers' drafts are not counted.
// kResourceExhausted: `needed` exceeds `max_bytes`.
Expected<void> make_room(const std::string& folder,
                         const std::string& keep,
                         uint64_t needed,
                         uint64_t max_bytes) {
  if (needed > max_bytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      keep + " takes " + std::to_string(needed) +
                          " bytes; set a larger --packed-weights-cache-size than " +
                          std::to_string(max_bytes));
  }
  std::vector<StoredFile> others;
  uint64_t total = needed;
  const std::string own = std::filesystem::path(keep).filename().native();
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    const std::string path = it->path().native();
    const std::string name = it->path().filename().native();
    if (name == own || name == own + kDraftEnding) continue;
    if (path.ends_with(std::string(kEnding) + kDraftEnding)) remove_if_left(path);
    if (const auto file = stored_file(path)) {
      total += file->bytes;
      others.push_back(*file);
    }
  }
  std::ranges::sort(others, {}, [](const StoredFile& file) { return file.last_use; });
  for (const StoredFile& file : others) {
    if (total <= max_bytes) break;
    if (::unlink(file.path.c_str()) != 0) continue;
    total -= file.bytes;
    log_event(
        LogLevel::kInfo, "packed_weights_removed", "path", file.path, "bytes", file.bytes);
  }
  return {};
}

}  // namespace

PackedKey packed_key(const Checkpoint& checkpoint, const ArenaLayout& layout) {
  PackedKey key{.layout = layout};
  key.build = hash_of(build_id(), hash_of(version()));
  if (!checkpoint.overrides().empty()) key.source = hash_of(checkpoint.overrides());
  for (const CheckpointFile& file : checkpoint.files()) {
    const FileIdentity& identity = file.identity;
    const int64_t numbers[] = {static_cast<int64_t>(identity.inode),
                               static_cast<int64_t>(file.bytes.size()),
                               identity.modified_ns,
                               identity.changed_ns};
    key.source = hash_of(std::as_bytes(std::span(numbers)), key.source);
    key.source = hash_of(file.header, key.source);
  }
  return key;
}

std::string packed_cache_path(const std::string& folder,
                              const Checkpoint& checkpoint,
                              const ArenaLayout& layout) {
  constexpr size_t kMaxStem = 100;  // leaves room in a file name's 255 bytes
  std::error_code error;
  std::filesystem::path model = std::filesystem::canonical(checkpoint.path(), error);
  if (error) model = checkpoint.path();
  uint64_t hash = hash_of(model.native(), layout.hash);
  for (const CheckpointFile& file : checkpoint.files()) {
    hash = hash_of(file.header, hash);
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&hash);
  return folder + "/" + model.filename().native().substr(0, kMaxStem) + "-" +
         to_hex({bytes, sizeof(hash)}) + kEnding;
}

bool is_settled(const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.files(), [](const CheckpointFile& file) {
    const FileIdentity& identity = file.identity;
    return identity.opened_ns - std::max(identity.changed_ns, identity.modified_ns) >= kClockStepNs;
  });
}

Expected<PackedParts> parse_packed_cache(std::span<const std::byte> file, const PackedKey& key) {
  const std::optional<FileSizes> sizes = file_sizes(key.layout);
  if (file.size() < kHashesAt) return refuse("shorter than its header");
  if (std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    return refuse("another format or version of it");
  }
  if (get_u64(file, kBuildAt) != key.build) return refuse("written by another build");
  if (get_u64(file, kLayoutAt) != key.layout.hash ||
      get_u64(file, kNumMatricesAt) != key.layout.num_matrices ||
      get_u64(file, kArenaBytesAt) != key.layout.bytes) {
    return refuse("another layout");
  }
  if (get_u64(file, kSourceAt) != key.source) return refuse("the model's files have changed");
  if (!sizes || file.size() != sizes->file) return refuse("another size than its header says");
  const std::span<const std::byte> header = file.first(sizes->header);
  if (get_u64(file, kHeaderSumAt) != header_sum(header)) {
    return refuse("the header's checksum is wrong");
  }
  const uint64_t hashes = key.layout.num_matrices * sizeof(uint64_t);
  const uint64_t checksums = num_sections(key.layout.bytes) * sizeof(uint64_t);
  return PackedParts{.hashes = header.subspan(kHashesAt, hashes),
                     .checksums = header.subspan(kHashesAt + hashes, checksums),
                     .arena = file.subspan(sizes->arena_at)};
}

Expected<PackedCache> PackedCache::open(const std::string& path, const PackedKey& key) {
  SLUICE_TRY(MappedFile file, MappedFile::open(path));
  SLUICE_TRY(const PackedParts parts, parse_packed_cache(file.bytes(), key));
  if (const auto damaged = find_damage(parts)) {
    return refuse("the checksum of section " + std::to_string(*damaged) + " is wrong");
  }
  return PackedCache(std::move(file), parts);
}

uint64_t PackedCache::content_hash(size_t index) const {
  CHECK_LT(index, parts_.hashes.size() / sizeof(uint64_t));
  return get_u64(parts_.hashes, index * sizeof(uint64_t));
}

Expected<void> write_packed_cache(const std::string& path,
                                  const PackedContents& contents,
                                  const std::atomic<bool>& stop) {
  const PackedKey& key = contents.key;
  const std::span<const std::byte> arena = contents.arena;
  CHECK_EQ(key.layout.num_matrices, contents.content_hashes.size());
  CHECK_EQ(key.layout.bytes, arena.size());
  const std::string folder = std::filesystem::path(path).parent_path().native();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return make_error(ErrorCode::kInternal, "cannot make " + folder + ": " + error.message());
  }
  SLUICE_TRY(Draft draft, Draft::open(path + kDraftEnding));
  const std::optional<FileSizes> sizes = file_sizes(key.layout);
  CHECK(sizes.has_value());
  SLUICE_TRY_VOID(make_room(folder, path, sizes->file, contents.max_folder_bytes));
  SLUICE_TRY_VOID(draft.reserve(sizes->file));

  std::vector<std::byte> header(sizes->header);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  put_u64(header, kBuildAt, key.build);
  put_u64(header, kSourceAt, key.source);
  put_u64(header, kLayoutAt, key.layout.hash);
  put_u64(header, kNumMatricesAt, key.layout.num_matrices);
  put_u64(header, kArenaBytesAt, key.layout.bytes);
  size_t at = kHashesAt;
  for (const uint64_t hash : contents.content_hashes) {
    put_u64(header, at, hash);
    at += sizeof(hash);
  }
  for (uint64_t i = 0; i < num_sections(arena.size()); ++i) {
    if (stop) return make_error(ErrorCode::kUnavailable, path + ": the engine stops");
    const std::span<const std::byte> bytes = section(arena, i);
    put_u64(header, at, hash_of(bytes));
    at += sizeof(uint64_t);
    SLUICE_TRY_VOID(draft.write(sizes->arena_at + i * kSectionBytes, bytes));
  }
  put_u64(header, kHeaderSumAt, header_sum(header));
  SLUICE_TRY_VOID(draft.write(0, header));
  return draft.publish(path);
}

PackedCacheWriter::PackedCacheWriter(std::string path, PackedContents contents) {
  thread_ = std::thread([this, path = std::move(path), contents = std::move(contents)] {
    const Expected<void> written = write_packed_cache(path, contents, stop_);
    if (written) {
      log_event(
          LogLevel::kInfo, "packed_weights_written", "path", path, "bytes", contents.arena.size());
      return;
    }
    const bool expected = written.error().code == ErrorCode::kUnavailable;
    log_event(expected ? LogLevel::kInfo : LogLevel::kWarning,
              "packed_weights_not_written",
              "reason",
              written.error().message);
  });
}

PackedCacheWriter::~PackedCacheWriter() {
  stop_ = true;
  thread_.join();
}

PackedPlace::PackedPlace(const std::string& folder,
                         uint64_t max_folder_bytes,
                         const Checkpoint& checkpoint,
                         const ArenaLayout& layout)
    : path_(packed_cache_path(folder, checkpoint, layout)),
      max_folder_bytes_(max_folder_bytes),
      key_(packed_key(checkpoint, layout)),
      is_settled_(is_settled(checkpoint)) {}

bool PackedPlace::has_file() const {
  if (path_.empty()) return false;
  const Expected<MappedFile> file = MappedFile::open(path_);
  return file && parse_packed_cache(file->bytes(), key_);
}

std::optional<PackedCache> PackedPlace::open() {
  if (path_.empty()) return std::nullopt;
  Expected<PackedCache> cache = PackedCache::open(path_, key_);
  if (cache) {
    // In a read-only folder the owner controls its size.
    (void)utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
    const std::string folder = std::filesystem::path(path_).parent_path().native();
    const auto room = make_room(folder, path_, file_sizes(key_.layout)->file, max_folder_bytes_);
    if (!room) log_event(LogLevel::kWarning, "packed_weights_kept", "reason", room.error().message);
    return std::move(*cache);
  }
  is_missing_ = true;
  if (cache.error().code != ErrorCode::kNotFound) {
    log_event(LogLevel::kWarning,
              "packed_weights_ignored",
              "path",
              path_,
              "reason",
              cache.error().message);
  }
  return std::nullopt;
}

std::unique_ptr<PackedCacheWriter> PackedPlace::write(
    std::span<const std::byte> arena, const std::vector<uint64_t>& content_hashes) const {
  if (!is_missing_) return nullptr;
  if (!is_settled_) {
    log_event(LogLevel::kInfo,
              "packed_weights_not_written",
              "reason",
              "the model's files changed less than 2 s before the start");
    return nullptr;
  }
  return std::make_unique<PackedCacheWriter>(
      path_,
      PackedContents{.key = key_,
                     .content_hashes = content_hashes,
                     .arena = arena.first(key_.layout.bytes),
                     .max_folder_bytes = max_folder_bytes_});
}

}  // namespace sluice
