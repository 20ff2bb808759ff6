// SPDX-License-Identifier: Apache-2.0
// A file that is being downloaded: grows at its end, is hashed as it grows, and becomes a blob of
// the cache only if its hash is the one it was announced with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice::hub {

// A file as the hub announces it.
struct RemoteFile {
  std::string path;  // inside the repository
  std::string etag;  // SHA-256 (64 digits), Git's SHA-1 of a blob (40), or a name without meaning
  int64_t size = 0;
};

class PartialFile {
 public:
  // Opens or makes <blob>.incomplete and hashes what an earlier download left in it.
  static Expected<std::unique_ptr<PartialFile>> open(const std::string& blob,
                                                     const RemoteFile& file);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  [[nodiscard]] int64_t size() const { return size_; }

  // kDataLoss: more than was announced. kInternal: the disk refuses, with its reason.
  Expected<void> append(std::string_view bytes);
  // From the first byte again.
  Expected<void> restart();
  // The file in its place. kDataLoss, and no file: its hash is not the announced one.
  Expected<void> finish();

 private:
  class Hash;
  PartialFile(std::string blob, RemoteFile file);

  Expected<void> hash_what_is_there();
  [[nodiscard]] tl::unexpected<Error> disk_error(const char* what) const;

  const std::string blob_;
  const std::string path_;
  const RemoteFile file_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  std::unique_ptr<Hash> hash_;
};

}  // namespace sluice::hub
