// SPDX-License-Identifier: Apache-2.0
#include "server/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/core/random_name.h"

namespace sluice::hub {

namespace fs = std::filesystem;

namespace {

constexpr uintmax_t kMaxSmallFile = uintmax_t{256} << 20;

tl::unexpected<Error> failed(const std::string& path, const std::string& what, int error) {
  return make_error(error == EACCES || error == EPERM || error == EROFS
                        ? ErrorCode::kPermissionDenied
                        : ErrorCode::kUnavailable,
                    path + ": cannot " + what + ": " + std::strerror(error));
}

// "org/name" as one folder's name.
std::string folder_name(const std::string& repo) {
  std::string name = "models--" + repo;
  name.replace(name.find('/'), 1, "--");
  return name;
}

Expected<void> make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return failed(path, "make this folder", error.value());
  return {};
}

// Each writer has its own, so that two that make the same file do not meet.
std::string temporary_of(const std::string& path) { return path + "." + random_name() + ".new"; }

// Gives the whole file or link its name.
Expected<void> rename_to(const std::string& place, const std::string& temporary, const char* what) {
  if (rename(temporary.c_str(), place.c_str()) == 0) return {};
  const int error = errno;
  unlink(temporary.c_str());
  return failed(place, what, error);
}

}  // namespace

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

Expected<FileLock> FileLock::try_lock(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return failed(path, "open this lock", errno);
  FileLock lock;
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
    lock.descriptor_ = descriptor;
    return lock;
  }
  const int error = errno;
  close(descriptor);
  if (error == EWOULDBLOCK) return lock;
  return failed(path, "take this lock", error);
}

RepoCache::RepoCache(const std::string& root, const std::string& repo)
    : folder_(root + "/" + folder_name(repo)), locks_(root + "/.locks/" + folder_name(repo)) {}

std::string RepoCache::blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }

std::string RepoCache::lock_file(const std::string& etag) const {
  return locks_ + "/" + etag + ".lock";
}

std::string RepoCache::snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}

std::string RepoCache::snapshot_file(const std::string& commit, const std::string& path) const {
  return snapshot(commit) + "/" + path;
}

Expected<void> RepoCache::prepare() const {
  SLUICE_TRY_VOID(make_folder(folder_ + "/blobs"));
  return make_folder(locks_);
}

Expected<void> RepoCache::link(const std::string& commit,
                               const std::string& path,
                               const std::string& etag) const {
  const std::string place = snapshot_file(commit, path);
  SLUICE_TRY_VOID(make_folder(fs::path(place).parent_path().string()));
  std::string target = "../../";
  for (const char c : path) target += c == '/' ? "../" : "";
  target += "blobs/" + etag;
  const std::string temporary = temporary_of(place);
  constexpr const char* kWhat = "make this link";
  if (symlink(target.c_str(), temporary.c_str()) != 0) return failed(place, kWhat, errno);
  return rename_to(place, temporary, kWhat);
}

std::string RepoCache::absent_file(const std::string& commit, const std::string& path) const {
  return folder_ + "/.no_exist/" + commit + "/" + path;
}

bool RepoCache::knows(const std::string& commit, const std::string& path) const {
  std::error_code error;
  return fs::exists(snapshot_file(commit, path), error) ||
         fs::exists(absent_file(commit, path), error);
}

Expected<void> RepoCache::mark_absent(const std::string& commit, const std::string& path) const {
  const std::string place = absent_file(commit, path);
  SLUICE_TRY_VOID(make_folder(fs::path(place).parent_path().string()));
  if (!std::ofstream(place, std::ios::app)) return failed(place, "write this file", errno);
  return {};
}

Expected<void> RepoCache::set_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return {};
  const std::string place = folder_ + "/refs/" + revision;
  SLUICE_TRY_VOID(make_folder(fs::path(place).parent_path().string()));
  const std::string temporary = temporary_of(place);
  constexpr const char* kWhat = "write this file";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << commit;
    if (!out.flush()) {
      const int error = errno;
      unlink(temporary.c_str());
      return failed(place, kWhat, error);
    }
  }
  return rename_to(place, temporary, kWhat);
}

std::string RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const auto text = read_small_file(folder_ + "/refs/" + revision);
  if (!text) return {};
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n\t") + 1);
  return is_commit(commit) ? commit : std::string();
}

std::vector<std::string> RepoCache::files_of(const std::string& commit) const {
  std::vector<std::string> files;
  std::error_code error;
  const fs::path root = snapshot(commit);
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code broken;  // a link whose blob is not there yet
    if (!fs::is_regular_file(entry->path(), broken)) continue;
    files.push_back(entry->path().lexically_relative(root).generic_string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<std::string> RepoCache::find(const ModelName& name,
                                           const std::string& revision,
                                           bool with_weights,
                                           bool strict) const {
  const std::string commit = commit_of(revision);
  if (commit.empty()) return std::nullopt;
  const std::vector<std::string> files = files_of(commit);
  ModelName wanted = name;
  const auto selection = select_files(files, wanted, with_weights);
  if (!selection) return std::nullopt;
  if (!selection->gguf.empty()) {
    wanted.choice = "Q4_K_M";
    if (strict && name.choice.empty() && !select_files(files, wanted, with_weights)) {
      return std::nullopt;
    }
    return snapshot_file(commit, selection->gguf);
  }
  if (!selection->index.empty()) {
    const auto index = read_small_file(snapshot_file(commit, selection->index));
    if (!index) return std::nullopt;
    const auto shards = shards_of_index(*index);
    if (!shards) return std::nullopt;
    for (const std::string& shard : *shards) {
      if (!std::binary_search(files.begin(), files.end(), shard)) return std::nullopt;
    }
  }
  // Some clients fetch the weights alone.
  const auto has = [&](const char* file) {
    return std::binary_search(files.begin(), files.end(), file);
  };
  if (has("tokenizer.json") || has("tiktoken.model")) return snapshot(commit);
  // Others may lie beside a tokenizer.json that the client did not want.
  if (strict && !knows(commit, "tokenizer.json")) return std::nullopt;
  constexpr const char* kOthers[] = {"tokenizer.model", "tekken.json", "vocab.txt"};
  const bool has_other =
      std::ranges::any_of(kOthers, has) || (has("vocab.json") && has("merges.txt"));
  return has_other ? std::optional(snapshot(commit)) : std::nullopt;
}

Expected<std::string> read_small_file(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || size > kMaxSmallFile || !file) {
    return make_error(ErrorCode::kNotFound, path + ": cannot read this file");
  }
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace sluice::hub
