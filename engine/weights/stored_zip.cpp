// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/stored_zip.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "engine/weights/file_tensor.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"

namespace sluice {
namespace {

using Bytes = std::span<const std::byte>;

constexpr uint32_t kLocalMark = 0x04034b50;
constexpr uint32_t kEntryMark = 0x02014b50;
constexpr uint32_t kEndMark = 0x06054b50;
constexpr uint32_t kWideEndMark = 0x06064b50;
constexpr uint32_t kWidePlaceMark = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr size_t kEntryBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kWideEndBytes = 56;
constexpr size_t kWidePlaceBytes = 20;
constexpr uint64_t kMaxRecords = 1 << 20;
constexpr uint32_t kElsewhere = 0xffffffff;  // the number is in a field of Zip64

// Reads a little-endian number at a place that is inside.
template <typename T>
T number_at(Bytes bytes, size_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Where the directory of all records is.
struct Directory {
  uint64_t at = 0;
  uint64_t bytes = 0;
  uint64_t num_records = 0;
};

struct Entry {
  std::string_view name;
  uint64_t stored_bytes = 0;
  uint64_t bytes = 0;
  uint64_t at = 0;  // of the local header
};

class ZipReader {
 public:
  ZipReader(Bytes file, const std::string& file_name) : file_(file), name_(file_name) {}

  Expected<ZipRecords> read() {
    SLUICE_TRY(directory_, find_directory());
    Bytes rest = file_.subspan(directory_.at, directory_.bytes);
    ZipRecords records;
    for (uint64_t i = 0; i < directory_.num_records; ++i) {
      SLUICE_TRY(const Entry entry, take_entry(rest));
      SLUICE_TRY(const Bytes bytes, record_of(entry));
      if (!records.emplace(entry.name, bytes).second) {
        return damaged("record " + in_quotes(entry.name), "the name twice", "unique names");
      }
    }
    return records;
  }

 private:
  [[nodiscard]] tl::unexpected<Error> damaged(const std::string& field,
                                              const std::string& found,
                                              const std::string& expected) const {
    return damaged_file(name_, field, found, expected);
  }

  // torch.save() writes no comment, so that the end is where it must be.
  [[nodiscard]] Expected<Directory> find_directory() const {
    if (file_.size() < kEndBytes ||
        number_at<uint32_t>(file_, file_.size() - kEndBytes) != kEndMark) {
      return damaged("end", "no end of a ZIP archive", "that of a whole file");
    }
    const size_t end = file_.size() - kEndBytes;
    Directory directory{.at = number_at<uint32_t>(file_, end + 16),
                        .bytes = number_at<uint32_t>(file_, end + 12),
                        .num_records = number_at<uint16_t>(file_, end + 10)};
    uint64_t limit = end;
    if (end >= kWidePlaceBytes &&
        number_at<uint32_t>(file_, end - kWidePlaceBytes) == kWidePlaceMark) {
      const auto at = number_at<uint64_t>(file_, end - kWidePlaceBytes + 8);
      limit = end - kWidePlaceBytes;
      if (limit < kWideEndBytes || at > limit - kWideEndBytes ||
          number_at<uint32_t>(file_, at) != kWideEndMark) {
        return damaged("end", "a place of no Zip64 end", "one inside the file");
      }
      directory = {.at = number_at<uint64_t>(file_, at + 48),
                   .bytes = number_at<uint64_t>(file_, at + 40),
                   .num_records = number_at<uint64_t>(file_, at + 32)};
      limit = at;
    }
    if (directory.at > limit || directory.bytes > limit - directory.at) {
      return damaged("directory",
                     std::to_string(directory.bytes) + " bytes at " + std::to_string(directory.at),
                     "bytes within the first " + std::to_string(limit));
    }
    if (directory.num_records > kMaxRecords) {
      return damaged(
          "directory", std::to_string(directory.num_records) + " records", "2^20 at most");
    }
    return directory;
  }

  // Reads the numbers that Zip64 keeps apart, in their order.
  [[nodiscard]] bool take_wide(Bytes extra, Entry& entry) const {
    constexpr uint16_t kWideField = 1;
    while (extra.size() >= 4) {
      const auto id = number_at<uint16_t>(extra, 0);
      const size_t bytes = number_at<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) return false;
      Bytes field = extra.subspan(4, bytes);
      extra = extra.subspan(4 + bytes);
      if (id != kWideField) continue;
      for (uint64_t* number : {&entry.bytes, &entry.stored_bytes, &entry.at}) {
        if (*number != kElsewhere) continue;
        if (field.size() < sizeof(uint64_t)) return false;
        *number = number_at<uint64_t>(field, 0);
        field = field.subspan(sizeof(uint64_t));
      }
      return true;
    }
    return entry.bytes != kElsewhere && entry.stored_bytes != kElsewhere && entry.at != kElsewhere;
  }

  // Takes the directory's next entry from the front of `rest`.
  [[nodiscard]] Expected<Entry> take_entry(Bytes& rest) const {
    if (rest.size() < kEntryBytes || number_at<uint32_t>(rest, 0) != kEntryMark) {
      return damaged("directory", "no further record", "as many as its end says");
    }
    const auto flags = number_at<uint16_t>(rest, 8);
    const auto method = number_at<uint16_t>(rest, 10);
    Entry entry{.name = {},
                .stored_bytes = number_at<uint32_t>(rest, 20),
                .bytes = number_at<uint32_t>(rest, 24),
                .at = number_at<uint32_t>(rest, 42)};
    const size_t name_bytes = number_at<uint16_t>(rest, 28);
    const size_t extra_bytes = number_at<uint16_t>(rest, 30);
    const size_t all = kEntryBytes + name_bytes + extra_bytes + number_at<uint16_t>(rest, 32);
    if (all > rest.size()) return damaged("directory", "an entry that is cut", "whole entries");
    entry.name = {reinterpret_cast<const char*>(rest.data() + kEntryBytes), name_bytes};
    const std::string field = "record " + in_quotes(entry.name);
    if ((flags & 1U) != 0) return wrong_in_file(name_, field, "encrypted bytes", "plain ones");
    if (method != 0) {
      return wrong_in_file(name_,
                           field,
                           "compressed bytes (method " + std::to_string(method) + ")",
                           "stored ones, as torch.save() writes them");
    }
    if (!take_wide(rest.subspan(kEntryBytes + name_bytes, extra_bytes), entry)) {
      return damaged(field, "no such Zip64 field", "the numbers that the entry omits");
    }
    rest = rest.subspan(all);
    return entry;
  }

  [[nodiscard]] Expected<Bytes> record_of(const Entry& entry) const {
    const std::string field = "record " + in_quotes(entry.name);
    const uint64_t limit = directory_.at;
    if (entry.at > limit || limit - entry.at < kLocalBytes ||
        number_at<uint32_t>(file_, entry.at) != kLocalMark) {
      return damaged(field, "no header at " + std::to_string(entry.at), "that of the record");
    }
    const uint64_t begin = entry.at + kLocalBytes + number_at<uint16_t>(file_, entry.at + 26) +
                           number_at<uint16_t>(file_, entry.at + 28);
    if (entry.stored_bytes != entry.bytes || begin > limit || entry.bytes > limit - begin) {
      return damaged(field,
                     std::to_string(entry.bytes) + " bytes at " + std::to_string(begin),
                     "bytes before the directory at " + std::to_string(limit));
    }
    return file_.subspan(begin, entry.bytes);
  }

  Bytes file_;
  const std::string& name_;
  Directory directory_;
};

}  // namespace

Expected<ZipRecords> read_stored_zip(std::span<const std::byte> file,
                                     const std::string& file_name) {
  return ZipReader(file, file_name).read();
}

}  // namespace sluice
