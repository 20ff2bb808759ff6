// SPDX-License-Identifier: Apache-2.0
#include "server/hub/partial_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/core/hex.h"

namespace sluice::hub {
namespace {

constexpr size_t kReadBytes = 1 << 20;

}  // namespace

// A hash of the kind that the etag is.
class PartialFile::Hash {
 public:
  explicit Hash(const RemoteFile& file)
      : kind_(!is_hex(file.etag)       ? nullptr
              : file.etag.size() == 64 ? EVP_sha256()
              : file.etag.size() == 40 ? EVP_sha1()
                                       : nullptr),
        prefix_(file.etag.size() == 40 ? "blob " + std::to_string(file.size) + '\0' : ""),
        state_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    restart();
  }

  void restart() {
    if (kind_ == nullptr) return;
    CHECK(EVP_DigestInit_ex(state_.get(), kind_, nullptr) == 1);
    add(prefix_);
  }

  void add(std::string_view bytes) {
    if (kind_ == nullptr) return;
    CHECK(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()) == 1);
  }

  // Empty: the etag is not a hash.
  std::string digest() {
    if (kind_ == nullptr) return {};
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(state_.get(), bytes, &size) == 1);
    return to_hex({bytes, size});
  }

 private:
  const EVP_MD* kind_;
  const std::string prefix_;  // Git hashes the length first
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> state_;
};

PartialFile::PartialFile(std::string blob, RemoteFile file)
    : blob_(std::move(blob)),
      path_(blob_ + ".incomplete"),
      file_(std::move(file)),
      hash_(std::make_unique<Hash>(file_)) {}

PartialFile::~PartialFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

tl::unexpected<Error> PartialFile::disk_error(const char* what) const {
  const int error = errno;
  return make_error(ErrorCode::kInternal, path_ + ": cannot " + what + ": " + std::strerror(error));
}

Expected<std::unique_ptr<PartialFile>> PartialFile::open(const std::string& blob,
                                                         const RemoteFile& file) {
  std::unique_ptr<PartialFile> partial(new PartialFile(blob, file));
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  partial->descriptor_ = ::open(partial->path_.c_str(), kFlags, 0644);
  if (partial->descriptor_ < 0) return partial->disk_error("make this file");
  SLUICE_TRY_VOID(partial->hash_what_is_there());
  return partial;
}

Expected<void> PartialFile::hash_what_is_there() {
  std::vector<char> buffer(kReadBytes);
  while (true) {
    const ssize_t count = ::read(descriptor_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error("read this file");
    if (count == 0) return {};
    size_ += count;
    if (size_ > file_.size) return restart();  // of another version, or no part at all
    hash_->add({buffer.data(), static_cast<size_t>(count)});
  }
}

Expected<void> PartialFile::append(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > file_.size - size_) {
    return make_error(ErrorCode::kDataLoss,
                      file_.path + ": size: found more than the announced " +
                          std::to_string(file_.size) + " bytes");
  }
  hash_->add(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error("write this file");
    bytes.remove_prefix(static_cast<size_t>(count));
    size_ += count;
  }
  return {};
}

Expected<void> PartialFile::restart() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) != 0) {
    return disk_error("empty this file");
  }
  size_ = 0;
  hash_->restart();
  return {};
}

Expected<void> PartialFile::finish() {
  const std::string found = hash_->digest();
  if (!found.empty() && found != file_.etag) {
    unlink(path_.c_str());
    return make_error(ErrorCode::kDataLoss,
                      file_.path + ": hash: found " + found + ", expected " + file_.etag);
  }
  // A blob's name promises its bytes, also after a power cut.
  if (fsync(descriptor_) != 0) return disk_error("write this file");
  if (std::rename(path_.c_str(), blob_.c_str()) != 0) return disk_error("rename this file");
  return {};
}

}  // namespace sluice::hub
