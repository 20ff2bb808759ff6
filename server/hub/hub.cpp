// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <vector>

#include "engine/core/config.h"
#include "server/hub/cache.h"
#include "server/hub/hub_client.h"
#include "server/hub/partial_file.h"

namespace sluice::hub {
namespace {

constexpr std::chrono::milliseconds kLockPoll{200};

// The first of these variables that is set and not empty.
std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

std::string home_folder() {
  const std::string home = environment({"HF_HOME"});
  if (!home.empty()) return home;
  const std::string cache = environment({"XDG_CACHE_HOME"});
  if (!cache.empty()) return cache + "/huggingface";
  return environment({"HOME"}) + "/.cache/huggingface";
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \r\n\t");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \r\n\t") + 1 - begin);
}

std::string token_of_environment() {
  const std::string token = trimmed(environment({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
  if (!token.empty()) return token;
  std::string path = environment({"HF_TOKEN_PATH"});
  if (path.empty()) path = home_folder() + "/token";
  const auto file = read_small_file(path);
  return file ? trimmed(*file) : std::string();
}

bool is_yes(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

bool has_file(const RepoInfo& info, const std::string& path) {
  return std::find(info.files.begin(), info.files.end(), path) != info.files.end();
}

bool has_modules(const RepoInfo& info) { return has_file(info, kModulesFile); }

// The download of one model.
class Fetch {
 public:
  Fetch(const HubOptions& options, const ModelName& name, DownloadProgress& progress)
      : options_(options),
        name_(name),
        progress_(progress),
        cache_(options.cache_dir, name.repo),
        client_(options, name.repo) {}

  Expected<std::string> run(bool with_weights);

 private:
  Expected<std::string> download(const RepoInfo& info, bool with_weights);
  // Asks once for the modules of a snapshot that was filled without asking for modules.json or what
  // it names, by another client or an older version. Where that fails, a note says so.
  void complete(const std::string& snapshot);
  [[nodiscard]] std::string missing_module() const;
  Expected<void> get_modules();
  Expected<void> get_all(const std::vector<std::string>& paths);
  // `counted`: the bytes of it that are in done_ already.
  Expected<void> get(const RemoteFile& file, int64_t counted);
  Expected<FileLock> wait_for_lock(const RemoteFile& file);
  Expected<void> check_space(const std::vector<RemoteFile>& files) const;
  [[nodiscard]] int64_t bytes_present(const RemoteFile& file) const;

  const HubOptions& options_;
  const ModelName& name_;
  DownloadProgress& progress_;
  RepoCache cache_;
  HubClient client_;
  std::string commit_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

Expected<std::string> Fetch::run(bool with_weights) {
  const auto cached = cache_.find(name_, options_.revision, with_weights, !options_.offline);
  if (cached) {
    complete(*cached);
    return *cached;
  }
  if (options_.offline) {
    return make_error(ErrorCode::kNotFound,
                      name_.repo + ": not complete in " + options_.cache_dir +
                          ", and HF_HUB_OFFLINE forbids to download it");
  }
  const auto info = client_.repo_info(options_.revision, /*patient=*/true);
  if (!info) {
    // Only a name without a choice can still be answered: by whichever file there is.
    const auto any = cache_.find(name_, options_.revision, with_weights, /*strict=*/false);
    if (!any || info.error().code != ErrorCode::kUnavailable) return tl::unexpected(info.error());
    progress_.on_note("using " + *any + " of the cache: " + info.error().message);
    return *any;
  }
  return download(*info, with_weights);
}

Expected<std::string> Fetch::download(const RepoInfo& info, bool with_weights) {
  commit_ = info.commit;
  SLUICE_TRY(FileSelection selection, select_files(info.files, name_, with_weights));
  SLUICE_TRY_VOID(cache_.prepare());
  SLUICE_TRY_VOID(get_all(selection.files));
  if (!selection.index.empty()) {
    const std::string path = cache_.snapshot_file(commit_, selection.index);
    SLUICE_TRY(const std::string index, read_small_file(path));
    SLUICE_TRY(const std::vector<std::string> shards, shards_of_index(index));
    const std::set<std::string> there(info.files.begin(), info.files.end());
    for (const std::string& shard : shards) {
      if (there.contains(shard)) continue;
      return make_error(ErrorCode::kDataLoss,
                        name_.repo + ": " + selection.index + ": found " + shard +
                            ", expected files that the repository has");
    }
    SLUICE_TRY_VOID(get_all(shards));
  }
  for (const char* file : {kModulesFile, "tokenizer.json"}) {
    if (!has_file(info, file)) SLUICE_TRY_VOID(cache_.mark_absent(commit_, file));
  }
  SLUICE_TRY_VOID(cache_.set_ref(options_.revision, commit_));
  if (!selection.gguf.empty()) return cache_.snapshot_file(commit_, selection.gguf);
  return cache_.snapshot(commit_);
}

// The first file of modules that a snapshot may lack; empty: it has all, or there are none.
std::string Fetch::missing_module() const {
  if (!cache_.knows(commit_, kModulesFile)) return kModulesFile;
  const auto modules = read_small_file(cache_.snapshot_file(commit_, kModulesFile));
  if (!modules) return {};
  for (const std::string& file : module_configs(*modules)) {
    if (!cache_.knows(commit_, file)) return file;
  }
  return {};
}

void Fetch::complete(const std::string& snapshot) {
  const auto config = read_small_file(snapshot + "/config.json");
  if (!config || !(options_.pools || modules_matter(*config))) return;
  commit_ = std::filesystem::path(snapshot).filename().string();
  const std::string file = missing_module();
  if (file.empty()) return;
  const std::string missing = name_.repo + ": the cache has no " + file +
                              ", and does not say that there is none, so vectors or scores may be "
                              "others than the model's: ";
  if (options_.offline) {
    progress_.on_note(missing + "HF_HUB_OFFLINE forbids to ask for it");
    return;
  }
  if (const auto asked = get_modules(); !asked) {
    progress_.on_note(missing + asked.error().message);
  }
}

Expected<void> Fetch::get_modules() {
  SLUICE_TRY(const RepoInfo info, client_.repo_info(commit_, /*patient=*/false));
  if (info.commit != commit_) {
    return make_error(ErrorCode::kDataLoss,
                      name_.repo + ": sha: found " + info.commit + ", expected " + commit_);
  }
  SLUICE_TRY(const FileSelection selection, select_files(info.files, name_, false));
  SLUICE_TRY_VOID(cache_.prepare());
  std::vector<std::string> wanted;
  for (const std::string& file : selection.files) {
    if (file != kModulesFile && !cache_.knows(commit_, file)) wanted.push_back(file);
  }
  // This file is last, so that a snapshot that has it has what it names.
  if (has_modules(info)) wanted.emplace_back(kModulesFile);
  SLUICE_TRY_VOID(get_all(wanted));
  if (!has_modules(info)) return cache_.mark_absent(commit_, kModulesFile);
  for (std::string file = missing_module(); !file.empty(); file = missing_module()) {
    SLUICE_TRY_VOID(has_file(info, file) ? get_all({file}) : cache_.mark_absent(commit_, file));
  }
  return {};
}

int64_t Fetch::bytes_present(const RemoteFile& file) const {
  std::error_code error;
  const std::string blob = cache_.blob(file.etag);
  for (const std::string& path : {blob, blob + ".incomplete"}) {
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (!error && size <= static_cast<uintmax_t>(file.size)) return static_cast<int64_t>(size);
  }
  return 0;
}

Expected<void> Fetch::check_space(const std::vector<RemoteFile>& files) const {
  int64_t needed = 0;
  for (const RemoteFile& file : files) needed += file.size - bytes_present(file);

  struct statvfs disk {};

  if (statvfs(options_.cache_dir.c_str(), &disk) != 0) return {};
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  if (needed <= free) return {};
  return make_error(ErrorCode::kResourceExhausted,
                    options_.cache_dir + ": space: found " + std::to_string(free) +
                        " bytes, expected " + std::to_string(needed) + " for " + name_.repo +
                        "; --download-dir names another folder");
}

Expected<void> Fetch::get_all(const std::vector<std::string>& paths) {
  std::vector<RemoteFile> files;
  std::vector<int64_t> counted;
  for (const std::string& path : paths) {
    SLUICE_TRY(RemoteFile file, client_.describe(commit_, path));
    total_ += file.size;
    counted.push_back(bytes_present(file));
    done_ += counted.back();
    files.push_back(std::move(file));
  }
  SLUICE_TRY_VOID(check_space(files));
  for (size_t i = 0; i < files.size(); ++i) {
    SLUICE_TRY_VOID(get(files[i], counted[i]));
    SLUICE_TRY_VOID(cache_.link(commit_, files[i].path, files[i].etag));
  }
  return {};
}

Expected<FileLock> Fetch::wait_for_lock(const RemoteFile& file) {
  const std::string path = cache_.lock_file(file.etag);
  SLUICE_TRY(FileLock lock, FileLock::try_lock(path));
  if (lock.holds()) return lock;
  progress_.on_note("another process downloads " + file.path + "; waiting for it");
  while (!lock.holds()) {
    client::pause_for(kLockPoll);
    SLUICE_TRY(lock, FileLock::try_lock(path));
  }
  return lock;
}

Expected<void> Fetch::get(const RemoteFile& file, int64_t counted) {
  SLUICE_TRY(const FileLock lock, wait_for_lock(file));
  const std::string blob = cache_.blob(file.etag);
  std::error_code error;
  if (std::filesystem::file_size(blob, error) == static_cast<uintmax_t>(file.size) && !error) {
    done_ += file.size - counted;
    return {};
  }
  const auto on_bytes = [&](int64_t count) {
    done_ += count;
    progress_.on_bytes(file.path, done_, total_);
  };
  for (bool again = true;; again = false) {
    SLUICE_TRY(const auto partial, PartialFile::open(blob, file));
    const bool resumed = partial->size() > 0;
    done_ += partial->size() - counted;
    counted = file.size;
    SLUICE_TRY_VOID(client_.download(commit_, file, *partial, on_bytes));
    auto finished = partial->finish();
    // What an earlier run left may be the wrong part; a whole download may not.
    if (finished || !again || !resumed || finished.error().code != ErrorCode::kDataLoss) {
      return finished;
    }
  }
}

}  // namespace

Expected<HubOptions> hub_options(const Config& config) {
  HubOptions options;
  options.url = config.hub_url.empty() ? environment({"HF_ENDPOINT"}) : config.hub_url;
  if (options.url.empty()) options.url = "https://huggingface.co";
  while (options.url.ends_with('/')) options.url.pop_back();
  if (client::origin_of(options.url).empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--hub-url must look like https://huggingface.co, got \"" + options.url + "\"",
        "hub-url");
  }
  options.token = config.hf_token.empty() ? token_of_environment() : config.hf_token;
  if (options.token.find_first_of(" \r\n\t") != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument, "--hf-token must be one word", "hf-token");
  }
  options.revision = config.revision;
  if (!is_safe_path(options.revision)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--revision must be a branch, a tag or a commit, got \"" + options.revision + "\"",
        "revision");
  }
  options.cache_dir = config.download_dir;
  if (options.cache_dir.empty()) {
    options.cache_dir = environment({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  }
  if (options.cache_dir.empty()) options.cache_dir = home_folder() + "/hub";
  options.offline = is_yes(environment({"HF_HUB_OFFLINE"}));
  options.pools = config.runner == "pooling" || config.convert == "embed" ||
                  config.convert == "classify" || config.pooling != "auto";
  return options;
}

Expected<std::string> fetch_model(const HubOptions& options,
                                  const ModelName& name,
                                  bool with_weights,
                                  DownloadProgress& progress) {
  return Fetch(options, name, progress).run(with_weights);
}

std::string commit_of_path(const std::string& path) {
  const std::filesystem::path parts(path);
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    if (*part == "snapshots" && std::next(part) != parts.end()) return std::next(part)->string();
  }
  return {};
}

}  // namespace sluice::hub
