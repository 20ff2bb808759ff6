// SPDX-License-Identifier: Apache-2.0
// The versions of the model that a router's workers have: learns each from its first worker, and
// keeps what new requests go to. Lives on the router's thread; a tokenizer that has to be made is
// made beside it, so that streams continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/status.h"
#include "server/router/router_loop.h"
#include "server/router/router_version.h"
#include "server/router/version_chooser.h"
#include "server/router/worker_set.h"

namespace sluice {

struct Version {
  std::shared_ptr<RouterVersion> engine;
  std::vector<TokenId> end_tokens;  // as its first worker described them
  int64_t created = 0;              // Unix time in seconds: the start of its first worker
  int64_t num_usable = 0;           // workers that may get its requests
  int64_t num_streams = 0;  // requests that only these can continue; the owner counts them
  double share = 0;         // of new requests
  std::chrono::steady_clock::time_point seen_at{};  // when it had a worker last
};

class VersionSet {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using MakeTokenizer = std::function<Expected<std::unique_ptr<Tokenizer>>()>;

  // `submit`: the router's. `own`: makes the tokenizer of --model, on any thread; it is used for
  // the first version, and for others with the same tokenizer.json. Empty: the workers' files make
  // each.
  // `learned`: called after a version was added, or could not be made from its workers' files.
  VersionSet(Engine& router,
             RouterVersion::Submit submit,
             RouteRule rule,
             std::shared_ptr<RouterLoop> loop,
             MakeTokenizer own,
             std::function<void(Expected<void>)> learned)
      : router_(router),
        submit_(std::move(submit)),
        rule_(std::move(rule)),
        loop_(std::move(loop)),
        own_(std::move(own)),
        learned_(std::move(learned)) {}

  // Learns the worker's version, if it is described and neither known nor refused.
  void learn(Worker& worker);

  // Chooses the versions that new requests go to, by the workers that are usable. Logs changes, and
  // once each worker that gets no new requests because it has another fingerprint.
  void update(const WorkerSet& workers, Time now);

  [[nodiscard]] std::vector<Version>& all() { return versions_; }

  // Returns the version with the largest share; while none has a share, the latest that had the
  // largest. Null: no version has been learned.
  [[nodiscard]] const std::shared_ptr<RouterVersion>& usual() const { return usual_; }

  [[nodiscard]] bool is_known(const std::string& fingerprint) {
    return find(fingerprint) != nullptr;
  }

 private:
  using Files = RouterVersion::Files;
  using Made = Expected<std::shared_ptr<const Tokenizer>>;

  Version* find(const std::string& fingerprint);
  void make_tokenizer(const std::shared_ptr<const WorkerDescription>& description,
                      std::shared_ptr<const Files> files);
  void add(const WorkerDescription& description, std::shared_ptr<const Files> files, Made made);
  void count_workers(const WorkerSet& workers, Time now);
  void share_requests(const WorkerSet& workers, Time now);
  void note_differing(const WorkerSet& workers);
  void forget_old(Time now);

  Engine& router_;
  const RouterVersion::Submit submit_;
  const RouteRule rule_;
  std::shared_ptr<RouterLoop> loop_;
  const MakeTokenizer own_;
  const std::function<void(Expected<void>)> learned_;
  std::vector<Version> versions_;  // in the order in which they were learned
  std::set<std::string> refused_;  // fingerprints of which no version could be made
  std::shared_ptr<RouterVersion> usual_;
  std::shared_ptr<const Files> first_files_;  // of the first version
  bool is_learning_ = false;
  std::jthread maker_;  // last: it ends before what it uses
};

}  // namespace sluice
