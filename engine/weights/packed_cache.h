// SPDX-License-Identifier: Apache-2.0
// Packed weights in a file, so that a start maps them instead of repacking: one file for a model in
// a folder, read-only, its pages shared by every process that maps it. Engine thread, at start,
// except where said.
//
// A file is used only by the build that wrote it, and only while every file of the checkpoint has
// the inode, size, times of change (mtime and ctime) and header it had then: whoever writes to a
// file on Linux changes its ctime and cannot set it back. It is not written while a file of the
// checkpoint changed less than two seconds before it was opened, which is the coarsest step of
// those times, so that a later change always shows. Not seen: a clock that was set back, and a disk
// that returns other bytes than were written; a start without the cache reads and hashes every byte
// of the checkpoint.
//
// The file keeps the hash of each matrix as the checkpoint has it (pack.h), from which the content
// hash of the model is made as if it had been packed. Each byte that is used is under a checksum,
// compared at the speed of reading the file, which the first step needs anyway. Anything else than
// the expected file is refused, and replaced. The folder is trusted as the model is: who can write
// there can put other weights into it.
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

// The matrices of a model in the order in which they lie in the arena.
struct ArenaLayout {
  uint64_t hash = 0;  // of their names, rows, formats and shapes
  uint64_t num_matrices = 0;
  uint64_t bytes = 0;
};

// What a file of packed weights must say to be the one that is looked for.
struct PackedKey {
  uint64_t build = 0;
  uint64_t source = 0;  // identity and headers of the checkpoint's files
  ArenaLayout layout;
};

PackedKey packed_key(const Checkpoint& checkpoint, const ArenaLayout& layout);

// By the model's path, headers and layout: another build, or changed weights, replace the file.
std::string packed_cache_path(const std::string& folder,
                              const Checkpoint& checkpoint,
                              const ArenaLayout& layout);

// Whether later changes of the checkpoint's files would show in the key.
bool is_settled(const Checkpoint& checkpoint);

// The parts of a file whose header is right. `hashes` and `checksums` may lie at any address.
struct PackedParts {
  std::span<const std::byte> hashes;
  std::span<const std::byte> checksums;
  std::span<const std::byte> arena;
};

// kDataLoss: what was found. Any bytes; reads none of the arena.
Expected<PackedParts> parse_packed_cache(std::span<const std::byte> file, const PackedKey& key);

// A mapped file, every byte of it checked.
class PackedCache {
 public:
  // kNotFound: there is none. kDataLoss: it is another one, or damaged. Reads it over a few
  // short-lived threads.
  static Expected<PackedCache> open(const std::string& path, const PackedKey& key);

  [[nodiscard]] std::span<const std::byte> arena() const { return parts_.arena; }

  // Of matrix `index` in the checkpoint.
  [[nodiscard]] uint64_t content_hash(size_t index) const;

 private:
  PackedCache(MappedFile file, const PackedParts& parts) : file_(std::move(file)), parts_(parts) {}

  MappedFile file_;
  PackedParts parts_;
};

struct PackedContents {
  PackedKey key;
  std::vector<uint64_t> content_hashes;  // of the matrices
  std::span<const std::byte> arena;
  uint64_t max_folder_bytes = std::numeric_limits<uint64_t>::max();
};

// Any thread. The file appears complete or not at all; of several that write it at once one does.
// kUnavailable: another process writes it, or `stop` was set. Makes the folder if there is none,
// and room in it, where models that moved or went leave files that nobody maps again: those used
// longest ago go until all are at most max_folder_bytes. A process that has mapped one keeps its
// bytes; what is not a file of packed weights stays. kResourceExhausted: this file alone is more.
Expected<void> write_packed_cache(const std::string& path,
                                  const PackedContents& contents,
                                  const std::atomic<bool>& stop);

// Writes the file from a thread of its own while requests run. Why it could not is one line in the
// log.
class PackedCacheWriter {
 public:
  // `contents.arena` stays as it is until the writer is gone.
  PackedCacheWriter(std::string path, PackedContents contents);
  ~PackedCacheWriter();  // stops early, and leaves no file then
  PackedCacheWriter(const PackedCacheWriter&) = delete;
  PackedCacheWriter& operator=(const PackedCacheWriter&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// The file of one model; made without arguments, there is none and none is written. What it finds
// wrong is one line in the log.
class PackedPlace {
 public:
  PackedPlace() = default;
  PackedPlace(const std::string& folder,
              uint64_t max_folder_bytes,
              const Checkpoint& checkpoint,
              const ArenaLayout& layout);

  // Whether there is a file with the right header; open() says whether it is whole.
  [[nodiscard]] bool has_file() const;

  // The file's time of change is then that of its last use, and others are gone that are too much.
  std::optional<PackedCache> open();

  // Null unless open() found nothing, or where the checkpoint is not settled.
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
