// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/grammar_compiler.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "engine/core/log.h"
#include "engine/core/memory_reserve.h"
#include "engine/core/thread_priority.h"
#include "engine/sampling/grammar/exact_regex.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "engine/sampling/grammar/structural_tag_gate.h"

namespace sluice {
namespace {

// A client whom a full queue refuses comes again after it, in seconds.
constexpr int32_t kRetryAfterS = 5;

int64_t thread_stack_bytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(bytes);
}

}  // namespace

GrammarCompiler::GrammarCompiler(std::function<GrammarVocabulary()> vocabulary,
                                 const Options& options,
                                 std::function<void()> on_ready)
    : options_(options), vocabulary_(std::move(vocabulary)), on_ready_(std::move(on_ready)) {}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
    for (CompileWorker* worker : workers_) worker->cancel();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Expected<std::shared_ptr<const PendingGrammar>> GrammarCompiler::request(
    std::shared_ptr<const GrammarSpec> spec, TenantId tenant) {
  const Key key{.tenant = tenant, .spec = std::move(spec)};
  const std::scoped_lock lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    ++counters_.num_hits;
    return found->second->pending;
  }
  if (jobs_.size() >= static_cast<size_t>(options_.max_waiting)) {
    auto error = make_error(
        ErrorCode::kResourceExhausted, "Too many grammars wait to be compiled.", key.spec->param);
    error.value().retry_after_s = kRetryAfterS;
    return error;
  }
  ++counters_.num_misses;
  auto pending = std::make_shared<PendingGrammar>();
  entries_.push_front({.key = key, .pending = pending});
  by_key_.emplace(key, entries_.begin());
  jobs_.push_back({.key = key, .pending = pending});
  if (num_busy_ + jobs_.size() > threads_.size() && threads_.size() < kMaxThreads &&
      !add_thread() && threads_.empty()) {
    jobs_.pop_back();
    by_key_.erase(key);
    entries_.pop_front();
    return make_error(
        ErrorCode::kUnavailable,
        "The system gives no thread to compile grammars.",
        key.spec->param);
  }
  changed_.notify_one();
  return pending;
}

// Returns false where the system has no thread to give now. The caller holds the lock.
bool GrammarCompiler::add_thread() {
  try {
    threads_.emplace_back([this] { thread_main(); });
    return true;
  } catch (const std::system_error& error) {
    log_event(LogLevel::kWarning, "no_thread", "purpose", "grammars", "error", error.what());
    return false;
  }
}

GrammarCounters GrammarCompiler::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

// If this thread has no more stack than the processes, it must compile no grammar itself.
void GrammarCompiler::set_up() {
  setup_ = {.vocabulary = vocabulary_(), .grammar = options_.grammar, .limits = options_.compile};
  if (thread_stack_bytes() < 3 * kCompileStackBytes / 2) setup_.limits.small_ms = 0;
  backend_ = create_grammar_backend(setup_.vocabulary, options_.grammar);
}

void GrammarCompiler::thread_main() {
  lower_own_priority();
  CompileWorker worker(options_.program, setup_);
  std::unique_lock lock(mutex_);
  workers_.push_back(&worker);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
    if (is_ending_) {
      std::erase(workers_, &worker);
      return;
    }
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    ++num_busy_;
    lock.unlock();
    auto result = try_to_compile(worker, job.key);
    lock.lock();
    --num_busy_;
    finish(job, std::move(result));
    lock.unlock();
    on_ready_();
    lock.lock();
  }
}

// Without memory for it, it is only this request that fails.
Expected<std::shared_ptr<const Grammar>> GrammarCompiler::try_to_compile(CompileWorker& worker,
                                                                         const Key& key) {
  try {
    SLUICE_TRY_VOID(keep_memory_for(key.spec->text.size()));
    std::call_once(is_set_up_, [this] { set_up(); });
    return compile(worker, key);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kUnavailable, "There is too little memory to compile the grammar.");
  }
}

Expected<std::shared_ptr<const Grammar>> GrammarCompiler::compile(CompileWorker& worker,
                                                                  const Key& key) {
  const GrammarSpec& asked = *key.spec;
  GrammarSpec spec;
  spec.kind = asked.kind;
  spec.text = asked.text;
  spec.allows_whitespace = asked.allows_whitespace;
  spec.control_tokens = asked.control_tokens;
  std::vector<LeftOutKeyword> left_out;
  if (spec.kind == GrammarKind::kJsonSchema) {
    SLUICE_TRY(spec.text,
               gate_schema(asked.text, asked.is_best_effort, options_.schema, &left_out));
  } else if (spec.kind == GrammarKind::kStructuralTag) {
    SLUICE_TRY(spec.text,
               gate_structural_tag(
                   asked.text, asked.is_best_effort, options_.schema, &left_out));
  }
  if (spec.kind == GrammarKind::kRegex) {
    SLUICE_TRY(spec.text, gate_regex(asked.text, options_.schema));
  } else if (spec.kind == GrammarKind::kEbnf) {
    spec.text = exact_ebnf(asked.text);
  }
  for (const auto& [keyword, place] : left_out) {
    log_event(LogLevel::kInfo, "schema_keyword_left_out", "keyword", keyword, "at", place);
  }
  if (!backend_) return tl::unexpected(backend_.error());
  SLUICE_TRY(std::string bytes, worker.compile(spec));
  if (bytes.empty()) return (*backend_)->compile(spec);
  return (*backend_)->load(std::move(bytes), spec);
}

// The caller holds the lock.
void GrammarCompiler::finish(const Job& job, Expected<std::shared_ptr<const Grammar>> result) {
  const bool may_differ_next_time = !result && result.error().code == ErrorCode::kUnavailable;
  if (!result) ++counters_.num_refused;
  if (const auto found = by_key_.find(job.key); found != by_key_.end()) {
    Entry& entry = *found->second;
    if (may_differ_next_time) {
      erase(found->second);
    } else {
      entry.bytes = static_cast<int64_t>(job.key.spec->text.size() + sizeof(Entry)) +
                    (result ? (*result)->bytes() : 0);
      tenant_bytes_[job.key.tenant] += entry.bytes;
      counters_.cached_bytes += entry.bytes;
      make_room(job.key.tenant);
    }
  }
  job.pending->result_ = std::move(result);
  job.pending->is_ready_.store(true, std::memory_order_release);
}

// Drops the least recently used, first `tenant`'s beyond its share. The caller holds the lock.
void GrammarCompiler::make_room(TenantId tenant) {
  const auto drop_last = [this](auto may_go) {
    const auto last = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& entry) {
      return entry.bytes > 0 && may_go(entry);
    });
    if (last == entries_.rend()) return false;
    erase(std::prev(last.base()));
    return true;
  };
  const auto is_own = [&](const Entry& entry) { return entry.key.tenant == tenant; };
  const auto is_any = [](const Entry&) { return true; };
  while (tenant_bytes_[tenant] > options_.cache_bytes / 2 && drop_last(is_own)) {
  }
  while (counters_.cached_bytes > options_.cache_bytes && drop_last(is_any)) {
  }
}

// The caller holds the lock. Answers that follow the grammar keep it alive.
void GrammarCompiler::erase(Entries::iterator entry) {
  counters_.cached_bytes -= entry->bytes;
  const auto held = tenant_bytes_.find(entry->key.tenant);
  if (held != tenant_bytes_.end()) {
    held->second -= entry->bytes;
    if (held->second == 0) tenant_bytes_.erase(held);
  }
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace sluice
