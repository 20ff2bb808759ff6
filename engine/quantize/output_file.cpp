// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace sluice {
namespace {

tl::unexpected<Error> system_error(const std::string& path, const char* call) {
  const int number = errno;
  ErrorCode code = ErrorCode::kInvalidArgument;
  if (number == EACCES || number == EPERM || number == EROFS) code = ErrorCode::kPermissionDenied;
  if (number == ENOSPC || number == EDQUOT || number == EFBIG) code = ErrorCode::kResourceExhausted;
  return make_error(code, path + ": " + call + ": " + std::generic_category().message(number));
}

}  // namespace

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Expected<OutputFile> OutputFile::create(const std::string& path, int64_t bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return system_error(path, "open");
  OutputFile file(path, descriptor);
  if (::ftruncate(descriptor, bytes) != 0) return system_error(path, "ftruncate");
  return file;
}

Expected<void> OutputFile::write(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return system_error(path_, "write");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return {};
}

Expected<void> OutputFile::close() {
  const bool is_synced = ::fsync(descriptor_) == 0;
  if (!is_synced) return system_error(path_, "fsync");
  if (::close(std::exchange(descriptor_, -1)) != 0) return system_error(path_, "close");
  return {};
}

}  // namespace sluice
