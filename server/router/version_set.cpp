// SPDX-License-Identifier: Apache-2.0
#include "server/router/version_set.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "server/router/prefill_leg.h"

namespace sluice {
namespace {

// A version without workers and requests is kept so long, for workers that return.
constexpr std::chrono::minutes kKept{10};

const std::string& content_of(const std::vector<NamedFile>& files, std::string_view name) {
  static const std::string none;
  const auto found =
      std::ranges::find_if(files, [name](const NamedFile& file) { return file.name == name; });
  return found == files.end() ? none : found->content;
}

bool are_equal(const std::vector<NamedFile>& a, const std::vector<NamedFile>& b) {
  return std::ranges::equal(a, b, [](const NamedFile& left, const NamedFile& right) {
    return left.name == right.name && left.content == right.content;
  });
}

const std::string& ranks_of(const std::vector<NamedFile>& files) {
  const std::string& ranks = content_of(files, kRankedFiles[0]);
  return ranks.empty() ? content_of(files, kRankedFiles[1]) : ranks;
}

Expected<std::unique_ptr<Tokenizer>> tokenizer_of(const std::vector<NamedFile>& files) {
  return create_hf_tokenizer({.tokenizer_json = content_of(files, "tokenizer.json"),
                              .ranks = ranks_of(files),
                              .tokenizer_config = content_of(files, "tokenizer_config.json"),
                              .config = content_of(files, "config.json"),
                              .generation_config = content_of(files, "generation_config.json")});
}

}  // namespace

Version* VersionSet::find(const std::string& fingerprint) {
  const auto found = std::ranges::find_if(versions_, [&](const Version& version) {
    return version.engine->fingerprint() == fingerprint;
  });
  return found == versions_.end() ? nullptr : &*found;
}

void VersionSet::learn(Worker& worker) {
  if (is_learning_ || !worker.description) return;
  const std::string& fingerprint = worker.description->model.system_fingerprint;
  if (is_known(fingerprint) || refused_.contains(fingerprint)) return;
  is_learning_ = true;
  const auto description = std::make_shared<const WorkerDescription>(*worker.description);
  worker.link.fetch_tokenizer([this, description](Expected<Files> files) {
    if (files) return make_tokenizer(description, std::make_shared<const Files>(std::move(*files)));
    is_learning_ = false;  // the next answer to a ping asks again
    const std::string& reason = files.error().message;
    log_event(LogLevel::kWarning, "tokenizer_not_fetched", "reason", reason);
  });
}

// A new build or number format has the tokenizer of the version before it, so nothing is made.
void VersionSet::make_tokenizer(const std::shared_ptr<const WorkerDescription>& description,
                                std::shared_ptr<const Files> files) {
  for (const Version& version : versions_) {
    const RouterVersion& known = *version.engine;
    if (are_equal(*known.shared_files(), *files) && version.end_tokens == description->end_tokens) {
      return add(*description, known.shared_files(), known.shared_tokenizer());
    }
  }
  const auto is_as_first = [&](const char* name) {
    return content_of(*first_files_, name) == content_of(*files, name);
  };
  const bool is_own = own_ && (first_files_ == nullptr ||
                               (is_as_first("tokenizer.json") &&
                                std::ranges::all_of(kRankedFiles, is_as_first)));
  maker_ = std::jthread([this, is_own, description, files = std::move(files)] {
    const auto make = [&]() -> Made {
      SLUICE_TRY(auto tokenizer, is_own ? own_() : tokenizer_of(*files));
      SLUICE_TRY_VOID(tokenizer->replace_more_ends(description->end_tokens));
      return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
    };
    loop_->post([this, description, files, made = make()] { add(*description, files, made); });
  });
}

void VersionSet::add(const WorkerDescription& description,
                     std::shared_ptr<const Files> files,
                     Made made) {
  is_learning_ = false;
  const std::string& fingerprint = description.model.system_fingerprint;
  if (made && (*made)->vocab_size() > description.model.vocab_size) {
    made = make_error(ErrorCode::kInvalidArgument,
                      "The tokenizer has " + std::to_string((*made)->vocab_size()) +
                          " tokens, the workers' model " +
                          std::to_string(description.model.vocab_size) + ".");
  }
  if (!made) {
    refused_.insert(fingerprint);
    log_event(LogLevel::kError,
              "version_refused",
              "fingerprint",
              fingerprint,
              "reason",
              made.error().message);
    return learned_(tl::unexpected(made.error()));
  }
  if (first_files_ == nullptr) first_files_ = files;
  const int64_t created =
      description.created != 0 ? description.created : static_cast<int64_t>(std::time(nullptr));
  ModelInfo model = description.model;
  model.handoff.reset();  // the worker's, not the router's
  log_event(LogLevel::kInfo,
            "version_learned",
            "fingerprint",
            fingerprint,
            "model",
            model.path,
            "backend",
            model.backend);
  versions_.push_back({.engine = std::make_shared<RouterVersion>(
                           router_, submit_, std::move(model), std::move(*made), std::move(files)),
                       .end_tokens = description.end_tokens,
                       .created = created,
                       .seen_at = std::chrono::steady_clock::now()});
  learned_({});
}

void VersionSet::update(const WorkerSet& workers, Time now) {
  count_workers(workers, now);
  share_requests(workers, now);
  note_differing(workers);
  forget_old(now);
}

void VersionSet::count_workers(const WorkerSet& workers, Time now) {
  for (const auto& worker : workers.all()) {
    if (!worker->description) continue;
    Version* const version = find(worker->description->model.system_fingerprint);
    if (version == nullptr) continue;
    version->seen_at = now;
    const int64_t created = worker->description->created;
    if (created != 0) version->created = std::min(version->created, created);
  }
}

// Workers that compute prompts for others count where no version has workers that answer.
void VersionSet::share_requests(const WorkerSet& workers, Time now) {
  std::vector<VersionReadiness> ready;
  int64_t num_answering = 0;
  for (Version& version : versions_) {
    const std::string& fingerprint = version.engine->fingerprint();
    const std::vector<Worker*> usable = workers.usable(fingerprint, now);
    version.num_usable = static_cast<int64_t>(usable.size());
    const auto answering = std::ranges::count_if(
        usable, [](const Worker* worker) { return !is_prefill_worker(*worker); });
    num_answering += answering;
    ready.push_back({fingerprint, version.created, answering});
  }
  if (num_answering == 0) {
    for (size_t i = 0; i < ready.size(); ++i) ready[i].num_ready = versions_[i].num_usable;
  }
  const std::vector<double> shares = shares_of_requests(ready, rule_);
  double largest = 0;
  for (size_t i = 0; i < versions_.size(); ++i) {
    Version& version = versions_[i];
    if (std::exchange(version.share, shares[i]) != shares[i]) {
      log_event(LogLevel::kInfo,
                "version_routed",
                "fingerprint",
                ready[i].fingerprint,
                "share",
                shares[i],
                "workers",
                ready[i].num_ready);
    }
    if (shares[i] > largest || usual_ == nullptr) usual_ = version.engine;
    largest = std::max(largest, shares[i]);
  }
}

void VersionSet::note_differing(const WorkerSet& workers) {
  const bool has_usual =
      std::ranges::any_of(versions_, [](const Version& version) { return version.share > 0; });
  for (const auto& worker : workers.all()) {
    worker->differs = false;
    if (!worker->description || usual_ == nullptr) continue;
    const ModelInfo& model = worker->description->model;
    const Version* const version = find(model.system_fingerprint);
    if (version == nullptr && !refused_.contains(model.system_fingerprint)) continue;
    worker->differs = has_usual && (version == nullptr || version->share == 0);
    if (!worker->differs || std::exchange(worker->is_logged_as_different, true)) continue;
    log_event(LogLevel::kWarning,
              "worker_differs",
              "worker",
              worker->address,
              "fingerprint",
              model.system_fingerprint,
              "model",
              model.path,
              "backend",
              model.backend,
              "usual",
              usual_->fingerprint());
  }
}

void VersionSet::forget_old(Time now) {
  std::erase_if(versions_, [&](const Version& version) {
    const bool is_old =
        version.num_streams == 0 && version.engine != usual_ && now - version.seen_at > kKept;
    if (is_old) {
      log_event(LogLevel::kInfo, "version_forgotten", "fingerprint", version.engine->fingerprint());
    }
    return is_old;
  });
}

}  // namespace sluice
