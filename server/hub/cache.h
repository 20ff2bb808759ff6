// SPDX-License-Identifier: Apache-2.0
// The hub's cache on disk, in the layout that its other clients share:
//   models--org--name/blobs/<etag>               a file's bytes; <etag>.incomplete until whole
//   models--org--name/refs/<revision>            the commit it means
//   models--org--name/snapshots/<commit>/<path>  links to blobs
//   models--org--name/.no_exist/<commit>/<path>  empty: the hub said that it has no such file
//   .locks/models--org--name/<etag>.lock         held by the writer of that blob
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/hub/repo_files.h"

namespace sluice::hub {

// An advisory lock on a file, which it makes; gone with the object or the process.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  // Does not wait: an object that holds nothing where another process has the lock.
  static Expected<FileLock> try_lock(const std::string& path);

  [[nodiscard]] bool holds() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

class RepoCache {
 public:
  RepoCache(const std::string& root, const std::string& repo);

  // The path to open for a model that is here completely. `strict`: without a choice, one of
  // several GGUF files only if the hub would be asked for the same, and a tokenizer in other files
  // only where the hub has no tokenizer.json.
  [[nodiscard]] std::optional<std::string> find(const ModelName& name,
                                                const std::string& revision,
                                                bool with_weights,
                                                bool strict) const;

  [[nodiscard]] std::string blob(const std::string& etag) const;
  [[nodiscard]] std::string lock_file(const std::string& etag) const;
  [[nodiscard]] std::string snapshot(const std::string& commit) const;
  [[nodiscard]] std::string snapshot_file(const std::string& commit, const std::string& path) const;

  // Creates the folders of blobs, locks and links.
  [[nodiscard]] Expected<void> prepare() const;
  // A link in the snapshot to a blob that is there.
  [[nodiscard]] Expected<void> link(const std::string& commit,
                                    const std::string& path,
                                    const std::string& etag) const;
  // Whether the snapshot has this file, or the hub has said that there is none.
  [[nodiscard]] bool knows(const std::string& commit, const std::string& path) const;
  // Keeps that the hub has no such file.
  [[nodiscard]] Expected<void> mark_absent(const std::string& commit,
                                           const std::string& path) const;
  [[nodiscard]] Expected<void> set_ref(const std::string& revision,
                                       const std::string& commit) const;

 private:
  [[nodiscard]] std::vector<std::string> files_of(const std::string& commit) const;
  [[nodiscard]] std::string absent_file(const std::string& commit, const std::string& path) const;
  [[nodiscard]] std::string commit_of(const std::string& revision) const;

  std::string folder_;
  std::string locks_;
};

// The whole of a small file; kNotFound where it cannot be read.
Expected<std::string> read_small_file(const std::string& path);

}  // namespace sluice::hub
