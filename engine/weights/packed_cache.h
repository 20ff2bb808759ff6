// SPDX-License-Identifier: Apache-2.0
// Packed weights in a file, so that a start maps them instead of repacking: one file per model in a
// folder, read-only, its pages shared by every process that maps it. Engine thread, at start,
// unless stated otherwise.
//
// A file is used only by the build that wrote it, and only while every file of the checkpoint has
// the inode, size, times of change (mtime and ctime) and header it had then: writing to a file on
// Linux changes its ctime, which cannot be set back. It is not written when a file of the
// checkpoint changed less than two seconds, the coarsest step of those times, before it was opened,
// so that a later change always shows. Undetected: a clock that was set back, and a disk that
// returns other bytes than were written; a start without the cache reads and hashes every byte of
// the checkpoint.
//
// The file keeps each matrix's hash as in the checkpoint (pack.h), from which the model's content
// hash is made as if it had been packed. Each used byte is under a checksum, compared at the speed
// of reading the file, which the first step needs anyway. An unexpected file is refused and
// replaced. The folder is trusted like the model: anyone who can write there can put other weights
// into it.
//
// Little-endian, fields of 8 bytes:
//    0  magic and version                 32  matrices, how many
//    8  build                             40  bytes of the arena
//   16  source                            48  0
//   24  layout                            56  checksum of all else before the arena
//   64  hashes of the matrices, then checksums of the arena's sections of 8 MiB
// The arena begins at the next multiple of 4096; of 2 MiB where it fills a section, so that file
// systems that can keep it in huge pages. Hashes and checksums are XXH3.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

// The matrices of a model in the order of the arena.
struct ArenaLayout {
  uint64_t hash = 0;  // over their names, rows, formats and shapes
  uint64_t num_matrices = 0;
  uint64_t bytes = 0;
};

// Identity that a file of packed weights must have to be used.
struct PackedKey {
  uint64_t build = 0;
  uint64_t source = 0;  // identity and headers of the checkpoint's files
  ArenaLayout layout;
};

PackedKey packed_key(const Checkpoint& checkpoint, const ArenaLayout& layout);

// Path by the model's path, headers and layout: another build or changed weights replace the file.
std::string packed_cache_path(const std::string& folder,
                              const Checkpoint& checkpoint,
                              const ArenaLayout& layout);

// Whether later changes of the checkpoint's files would show in the key.
bool is_settled(const Checkpoint& checkpoint);

// The parts of a file whose header is right. `hashes` and `checksums` may be at any address.
struct PackedParts {
  std::span<const std::byte> hashes;
  std::span<const std::byte> checksums;
  std::span<const std::byte> arena;
};

// Parses any bytes without reading the arena. kDataLoss tells what was found.
Expected<PackedParts> parse_packed_cache(std::span<const std::byte> file, const PackedKey& key);

// A mapped file, completely checked.
class PackedCache {
 public:
  // kNotFound: no file. kDataLoss: another or a damaged file. Reads it over a few short-lived
  // threads.
  static Expected<PackedCache> open(const std::string& path, const PackedKey& key);

  [[nodiscard]] std::span<const std::byte> arena() const { return parts_.arena; }

  // The hash of matrix `index` in the checkpoint.
  [[nodiscard]] uint64_t content_hash(size_t index) const;

 private:
  PackedCache(MappedFile file, const PackedParts& parts) : file_(std::move(file)), parts_(parts) {}

  MappedFile file_;
  PackedParts parts_;
};

struct PackedContents {
  PackedKey key;
  std::vector<uint64_t> content_hashes;  // per matrix
  std::span<const std::byte> arena;
  uint64_t max_folder_bytes = std::numeric_limits<uint64_t>::max();
};

// Any thread. The file appears complete or not at all; of several concurrent writers one succeeds.
// kUnavailable: another process writes it, or `stop` was set. Creates the folder if missing, and
// removes the least recently used files until all are at most max_folder_bytes, because moved or
// removed models leave theirs. A process that has mapped one keeps its bytes; files of other kinds
// stay. kResourceExhausted: this file alone is larger.
Expected<void> write_packed_cache(const std::string& path,
                                  const PackedContents& contents,
                                  const std::atomic<bool>& stop);

// Writes the file from its own thread while requests run. A failure is one line in the log.
class PackedCacheWriter {
 public:
  // `contents.arena` must not change while the writer exists.
  PackedCacheWriter(std::string path, PackedContents contents);
  ~PackedCacheWriter();  // stops early and then leaves no file
  PackedCacheWriter(const PackedCacheWriter&) = delete;
  PackedCacheWriter& operator=(const PackedCacheWriter&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// The file of one model; default-constructed, none exists and none is written. Problems are one
// line in the log.
class PackedPlace {
 public:
  PackedPlace() = default;
  PackedPlace(const std::string& folder,
              uint64_t max_folder_bytes,
              const Checkpoint& checkpoint,
              const ArenaLayout& layout);

  // Whether a file with the right header exists; open() checks the rest.
  [[nodiscard]] bool has_file() const;

  // Opens the file, marks it as used now, and removes files beyond the folder's limit.
  std::optional<PackedCache> open();

  // Starts writing; null unless open() found nothing and the checkpoint is settled.
  [[nodiscard]] std::unique_ptr<PackedCacheWriter> write(
      std::span<const std::byte> arena, const std::vector<uint64_t>& content_hashes) const;

 private:
  std::string path_;
  uint64_t max_folder_bytes_ = 0;
  PackedKey key_;
  bool is_settled_ = false;
  bool is_missing_ = false;
};

}  // namespace sluice
