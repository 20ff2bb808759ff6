// SPDX-License-Identifier: Apache-2.0
// Turns requests' grammar specs into compiled grammars: a cache, and threads that wait for the
// processes that compile. Requests for the same grammar at the same time share one compile.
//
// Compiled grammars are kept by tenant and by all of the text, not by a hash of it: a tenant learns
// nothing of another's by how long a compile takes, and no two texts can be taken for each other. A
// grammar that the process has found small is compiled again here.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/sampling/grammar/compile_worker.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/sampling/grammar/schema_limits.h"

namespace sluice {

// A grammar that is being compiled, or has been.
class PendingGrammar {
 public:
  // Whether result() may be called. Any thread.
  [[nodiscard]] bool is_ready() const { return is_ready_.load(std::memory_order_acquire); }

  // kInvalidArgument or kUnsupported: the request is at fault; kUnavailable: try again.
  [[nodiscard]] const Expected<std::shared_ptr<const Grammar>>& result() const { return result_; }

 private:
  friend class GrammarCompiler;

  std::atomic<bool> is_ready_ = false;
  Expected<std::shared_ptr<const Grammar>> result_ = std::shared_ptr<const Grammar>();
};

class GrammarCompiler {
 public:
  struct Options {
    std::string program = "/proc/self/exe";  // the worker's, see compile_worker.h
    CompileLimits compile;
    GrammarLimits grammar;
    SchemaLimits schema;
    int64_t cache_bytes = int64_t{256} << 20;  // of which a tenant may hold half
    int32_t max_waiting = 64;
  };

  // `vocabulary` is called on a thread of the compiler, once, with the first request. `on_ready`
  // runs there whenever a grammar has become ready.
  GrammarCompiler(std::function<GrammarVocabulary()> vocabulary,
                  const Options& options,
                  std::function<void()> on_ready);
  ~GrammarCompiler();  // ends what is being compiled
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Returns at once; keeps `spec`, which is not null. Any thread. kResourceExhausted: too many
  // grammars wait.
  [[nodiscard]] Expected<std::shared_ptr<const PendingGrammar>> request(
      std::shared_ptr<const GrammarSpec> spec, TenantId tenant);

  [[nodiscard]] GrammarCounters counters() const;

 private:
  struct Key {
    TenantId tenant;
    std::shared_ptr<const GrammarSpec> spec;

    static auto compiled(const GrammarSpec& spec) {
      return std::tie(spec.kind,
                      spec.allows_whitespace,
                      spec.is_best_effort,
                      spec.control_tokens,
                      spec.text);
    }

    // By what is compiled of the specs, not where the grammar begins or who asked for it.
    std::strong_ordering operator<=>(const Key& other) const {
      if (tenant != other.tenant) return tenant <=> other.tenant;
      if (spec == other.spec) return std::strong_ordering::equal;
      return compiled(*spec) <=> compiled(*other.spec);
    }
  };

  struct Entry {
    Key key;
    std::shared_ptr<PendingGrammar> pending;
    int64_t bytes = 0;  // 0: being compiled
  };

  struct Job {
    Key key;
    std::shared_ptr<PendingGrammar> pending;
  };

  using Entries = std::list<Entry>;  // the latest used first

  bool add_thread();
  void thread_main();
  void set_up();
  Expected<std::shared_ptr<const Grammar>> try_to_compile(CompileWorker& worker, const Key& key);
  Expected<std::shared_ptr<const Grammar>> compile(CompileWorker& worker, const Key& key);
  void finish(const Job& job, Expected<std::shared_ptr<const Grammar>> result);
  void make_room(TenantId tenant);
  void erase(Entries::iterator entry);

  static constexpr size_t kMaxThreads = 2;

  const Options options_;
  const std::function<GrammarVocabulary()> vocabulary_;
  const std::function<void()> on_ready_;

  std::once_flag is_set_up_;
  CompileSetup setup_;  // both once is_set_up_
  Expected<std::unique_ptr<GrammarBackend>> backend_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All below are guarded by mutex_.
  Entries entries_;
  std::map<Key, Entries::iterator> by_key_;
  std::map<TenantId, int64_t> tenant_bytes_;
  std::deque<Job> jobs_;
  size_t num_busy_ = 0;
  std::vector<CompileWorker*> workers_;  // of the threads
  bool is_ending_ = false;
  GrammarCounters counters_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
