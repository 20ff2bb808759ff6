// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

namespace sluice {
namespace {

tl::unexpected<Error> system_error(const std::string& path, const char* call) {
  const int number = errno;
  ErrorCode code = ErrorCode::kDataLoss;
  if (number == ENOENT || number == ENOTDIR) code = ErrorCode::kNotFound;
  if (number == EACCES || number == EPERM) code = ErrorCode::kPermissionDenied;
  return make_error(code,
                    path + ": " + call + ": found \"" + std::generic_category().message(number) +
                        "\", expected a readable file");
}

int64_t nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

// Advises on whole pages: those that the bytes touch, or only those that they fill.
void advise(std::span<const std::byte> bytes, int advice, bool touched) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  uintptr_t end = begin + bytes.size();
  if (touched) {
    begin = begin / page * page;
  } else {
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
  }
  // A failure only costs speed.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void advise_needed(std::span<const std::byte> bytes) { advise(bytes, MADV_WILLNEED, true); }

void advise_read(std::span<const std::byte> bytes) { advise(bytes, MADV_COLD, false); }

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Expected<MappedFile> MappedFile::open(const std::string& path) {
  // Opens without blocking, so that a pipe in place of the file is an error instead of a wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "open");

  struct stat status {};

  const bool known = fstat(fd, &status) == 0;
  if (!known || !S_ISREG(status.st_mode) || status.st_size == 0) {
    auto error =
        known ? make_error(ErrorCode::kDataLoss,
                           path + ": file: found " +
                               (S_ISREG(status.st_mode) ? "0 bytes" : "a directory or device") +
                               ", expected a regular file with contents")
              : system_error(path, "stat");
    close(fd);
    return error;
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  auto error = system_error(path, "mmap");
  close(fd);  // the mapping keeps the file
  if (address == MAP_FAILED) return error;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return MappedFile({static_cast<const std::byte*>(address), size},
                    {.inode = status.st_ino,
                     .modified_ns = nanoseconds(status.st_mtim),
                     .changed_ns = nanoseconds(status.st_ctim),
                     .opened_ns = nanoseconds(now)});
}

}  // namespace sluice
