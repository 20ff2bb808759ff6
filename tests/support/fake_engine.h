// SPDX-License-Identifier: Apache-2.0
// An engine without a model: every request gets the scripted tokens, one a step. Steps run on the
// engine's thread, or one by one from the test. Tests can inspect the requests.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/byte_tokenizer.h"

namespace sluice {

class FakeEngine : public Engine {
 public:
  enum class Stepping { kAutomatic, kManual };

  explicit FakeEngine(Stepping stepping = Stepping::kAutomatic) {
    model_.architecture = "fake";
    model_.path = "/models/fake.gguf";
    model_.chat_template = kTemplate;
    model_.vocab_size = ByteTokenizer::kVocabSize;
    model_.max_model_len = 512;
    model_.num_parameters = 42;
    model_.system_fingerprint = "fp_fake";
    say("Hello");
    if (stepping == Stepping::kAutomatic) {
      thread_ = std::thread([this] { loop(); });
    }
  }

  ~FakeEngine() override { stop(); }

  // Sets the answer to later requests; the end token follows unless max_tokens is reached.
  void say(std::string_view text) {
    const std::scoped_lock lock(mutex_);
    script_.assign(reinterpret_cast<const unsigned char*>(text.data()),
                   reinterpret_cast<const unsigned char*>(text.data()) + text.size());
    script_.push_back(ByteTokenizer::kTurnEnd);
  }

  void fail_at(int32_t num_tokens) { fail_at_ = num_tokens; }

  void fail_as(ErrorCode code, int32_t retry_after_s) {
    fail_code_ = code;
    fail_retry_s_ = retry_after_s;
  }

  // Sets the log-probability of the tokens of the id-th request, from 1; the default is -0.5.
  void set_logprob(uint64_t id, float logprob) {
    const std::scoped_lock lock(mutex_);
    logprobs_[RequestId(id)] = logprob;
  }

  // Sets the vector of each text.
  void set_pooled(std::vector<float> pooled) {
    const std::scoped_lock lock(mutex_);
    pooled_ = std::move(pooled);
  }

  // Has the next submit() throw this instead, or the one after so many others.
  void throw_next(std::exception_ptr thrown, int num_others = 0) {
    const std::scoped_lock lock(mutex_);
    thrown_ = std::move(thrown);
    num_before_thrown_ = num_others;
  }

  void set_queue_limit(size_t limit) { queue_limit_ = limit; }

  // Sets whether an output with scores of the prompt also has a token, and the end if that is one,
  // which OutputSink does not promise to get apart.
  void set_scores_come_with_tokens(bool do_they) { scores_come_with_tokens_ = do_they; }

  void set_stats(const EngineStats& stats) {
    const std::scoped_lock lock(mutex_);
    stats_ = stats;
  }

  void set_state(EngineState state) {
    const std::scoped_lock lock(mutex_);
    state_ = std::move(state);
  }

  void set_step_delay(std::chrono::microseconds delay) { step_delay_us_ = delay.count(); }

  // Gives one token to every running request, in one batch to every sink.
  void step() { publish_next(/*only_ends=*/false); }

  // Publishes the ends of aborted requests, and no token.
  void end_aborted() { publish_next(/*only_ends=*/true); }

  std::vector<ValidRequest> submitted() const {
    const std::scoped_lock lock(mutex_);
    return submitted_;
  }

  // The text of the latest request's prompt.
  std::string last_prompt() const {
    const std::scoped_lock lock(mutex_);
    std::string text;
    for (const TokenId id : submitted_.back().prompt) text += tokenizer_.token_bytes(id);
    return text;
  }

  // Returns the threads that called submit(), one for each request.
  std::vector<std::thread::id> submitters() const {
    const std::scoped_lock lock(mutex_);
    return submitters_;
  }

  int num_aborted() const {
    const std::scoped_lock lock(mutex_);
    return num_aborted_;
  }

  size_t num_running() const {
    const std::scoped_lock lock(mutex_);
    return running_.size();
  }

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override {
    const std::scoped_lock lock(mutex_);
    if (thrown_ != nullptr && num_before_thrown_-- == 0) {
      std::rethrow_exception(std::exchange(thrown_, nullptr));
    }
    if (stopped_ || draining_) return make_error(ErrorCode::kUnavailable, "Draining.");
    if (running_.size() >= queue_limit_) {
      return make_error(ErrorCode::kResourceExhausted, "The queue is full.");
    }
    const RequestId id(++last_id_);
    submitted_.push_back(request);
    submitters_.push_back(std::this_thread::get_id());
    const auto num_generated = static_cast<int32_t>(request.generated.size());
    running_.emplace(id, Running{std::move(request), &sink, num_generated, false});
    changed_.notify_all();
    return id;
  }

  void abort(RequestId id) override {
    const std::scoped_lock lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    ++num_aborted_;
    found->second.aborted = true;
  }

  void watch_kv_transfers(KvTransferWatcher* watcher) override {
    const std::scoped_lock lock(mutex_);
    transfer_watcher_ = watcher;
  }

  void report_transfer(const KvTransferReport& report) {
    const std::scoped_lock lock(mutex_);
    if (transfer_watcher_ != nullptr) transfer_watcher_->transfer_ended(report);
  }

  EngineStats stats() const override {
    const std::scoped_lock lock(mutex_);
    EngineStats stats = stats_;
    stats.draining = draining_;
    return stats;
  }

  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override {
    EngineState state;
    {
      const std::scoped_lock lock(mutex_);
      state = state_;
    }
    state.stats = stats();
    const auto surplus = static_cast<int64_t>(state.steps.size()) - num_steps;
    if (surplus > 0) state.steps.erase(state.steps.begin(), state.steps.begin() + surplus);
    done(std::move(state));
  }

  const ModelInfo& model() const override { return model_; }

  const Tokenizer& tokenizer() const override { return tokenizer_; }

  Expected<std::vector<NamedFile>> tokenizer_files() const override {
    return std::vector<NamedFile>{{"tokenizer.json", std::string(200'000, 'x')},
                                  {"additional_chat_templates/tool_use.jinja", "b"}};
  }

  void flush_prefix_cache(std::function<void(bool)> done) override { done(num_running() == 0); }

  bool watch_kv_events(std::weak_ptr<KvEventWatcher> watcher, int64_t first) override {
    const std::scoped_lock lock(mutex_);
    watchers_.push_back(std::move(watcher));
    first_watched_ = first;
    return has_events_;
  }

  // Sets whether the engine publishes events of its cache.
  void set_has_events(bool has_events) { has_events_ = has_events; }

  // Publishes to the watchers that still live; returns their number.
  size_t publish(const KvEventBatch& batch) {
    const auto shared = std::make_shared<const KvEventBatch>(batch);
    const std::scoped_lock lock(mutex_);
    size_t num_watchers = 0;
    for (const auto& weak : watchers_) {
      const auto watcher = weak.lock();
      if (watcher == nullptr) continue;
      watcher->publish(shared);
      ++num_watchers;
    }
    return num_watchers;
  }

  int64_t first_watched() const {
    const std::scoped_lock lock(mutex_);
    return first_watched_;
  }

  void drain() override {
    const std::scoped_lock lock(mutex_);
    draining_ = true;
  }

  void stop() override {
    {
      const std::scoped_lock lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
      for (auto& [id, running] : running_) running.aborted = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    step();
  }

  ModelInfo& editable_model() { return model_; }

 private:
  static constexpr const char* kTemplate =
      "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content "
      "}}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

  struct Running {
    ValidRequest request;
    OutputSink* sink;
    int32_t num_tokens;
    bool aborted;
    size_t num_scored = 1;  // prompt tokens; the first one has no score
  };

  void publish_next(bool only_ends) {
    std::map<OutputSink*, OutputBatch> batches;
    {
      const std::scoped_lock lock(mutex_);
      for (auto it = running_.begin(); it != running_.end();) {
        if (only_ends && !it->second.aborted) {
          ++it;
          continue;
        }
        TokenOutput output = next_output(it->first, it->second);
        const bool ended = output.finish_reason != FinishReason::kNone;
        batches[it->second.sink].outputs.push_back(std::move(output));
        it = ended ? running_.erase(it) : std::next(it);
      }
    }
    for (auto& [sink, batch] : batches) sink->publish(std::move(batch));
  }

  TokenOutput next_output(RequestId id, Running& running) {
    TokenOutput output;
    output.request_id = id;
    if (running.aborted) {
      output.finish_reason = FinishReason::kAbort;
      return output;
    }
    if (running.num_tokens == fail_at_) {
      output.finish_reason = FinishReason::kError;
      output.error = "The logits of this request are not finite.";
      output.error_code = fail_code_;
      output.retry_after_s = fail_retry_s_;
      return output;
    }
    if (running.request.pooling) {
      output.finish_reason = FinishReason::kStop;
      output.num_cached_tokens = 3;
      output.pooled = pooled_of(running.request);
      return output;
    }
    const SamplingParams& sampling = running.request.sampling;
    if (sampling.num_prompt_logprobs >= 0 && score_prompt(running, output) &&
        !scores_come_with_tokens_) {
      return output;
    }
    output.token = script_[static_cast<size_t>(running.num_tokens) % script_.size()];
    const auto logprob = logprobs_.find(id);
    output.logprob = logprob == logprobs_.end() ? -0.5F : logprob->second;
    for (int32_t i = 0; i < sampling.num_logprobs; ++i) {
      output.top_logprobs.push_back({'a' + i, -0.5F - static_cast<float>(i)});
    }
    if (running.num_tokens == 0) output.num_cached_tokens = 3;
    ++running.num_tokens;
    // Counts as if the whole prediction had been drafted.
    const std::vector<TokenId>& prediction = running.request.prediction;
    for (size_t i = 0; i < prediction.size() && i < static_cast<size_t>(running.num_tokens); ++i) {
      const bool is_right = prediction[i] == script_[i % script_.size()];
      ++(is_right ? output.num_accepted_predictions : output.num_rejected_predictions);
    }
    output.timings = {.queued_ms = 1.5,
                      .prefill_ms = 20,
                      .decode_ms = static_cast<double>(running.num_tokens),
                      .num_preemptions = 2};
    const auto& stops = sampling.stop_token_ids;
    // A text that a grammar constrains ends with its end token.
    const bool ends = !sampling.ignore_eos || running.request.grammar != nullptr;
    const bool is_end = output.token == ByteTokenizer::kTurnEnd && ends;
    if (is_end || std::find(stops.begin(), stops.end(), output.token) != stops.end()) {
      output.finish_reason = FinishReason::kStop;
      output.stop_token = output.token;
    } else if (running.num_tokens >= sampling.max_tokens) {
      output.finish_reason = FinishReason::kLength;
    }
    if (output.finish_reason != FinishReason::kNone) output.offer = offer_of(running);
    return output;
  }

  // A vector: the prompt's length, its first and last token, and a half. A score: the last token in
  // hundredths, so that texts are ranked by their ends.
  std::vector<float> pooled_of(const ValidRequest& request) const {
    const std::vector<TokenId>& prompt = request.prompt;
    if (!pooled_.empty()) return pooled_;
    if (model_.pooling->is_classifier) {
      std::vector<float> scores(static_cast<size_t>(model_.pooling->width), 0.125F);
      scores.front() = static_cast<float>(prompt.back()) / 100;
      return scores;
    }
    const std::vector<float> vector = {static_cast<float>(prompt.size()),
                                       static_cast<float>(prompt.front()),
                                       static_cast<float>(prompt.back()),
                                       0.5F};
    const auto kept =
        static_cast<size_t>(request.pooling->dimensions > 0 ? request.pooling->dimensions : 4);
    const bool is_each =
        request.pooling->every_token || model_.pooling->type == PoolingType::kEvery;
    std::vector<float> all;
    for (size_t i = 0; i < (is_each ? prompt.size() : 1); ++i) {
      all.insert(all.end(), vector.begin(), vector.begin() + static_cast<ptrdiff_t>(kept));
    }
    return all;
  }

  // Returns an offer of blocks of four tokens if the request asks for one and the model has peers.
  std::shared_ptr<const HandoffOffer> offer_of(const Running& running) const {
    const auto& handoff = running.request.handoff;
    if (!model_.handoff || !handoff || handoff->kind != HandoffKind::kOffer) return nullptr;
    if (handoff->mode != HandoffMode::kSerial) return nullptr;
    const auto num_tokens = static_cast<int32_t>(running.request.prompt.size());
    HandoffOffer offer;
    offer.transfer.fill(0xab);
    offer.epoch = model_.handoff->epoch;
    offer.num_groups = 2;
    offer.result.key.fill(0xcd);
    offer.result.num_prompt_tokens = num_tokens;
    offer.result.num_blocks = (num_tokens - 1) / 4;
    offer.result.seed = running.request.sampling.seed;
    offer.result.first_token = script_.front();
    offer.result.check = 0xfedcba9876543210;
    return std::make_shared<const HandoffOffer>(offer);
  }

  // Scores two prompt tokens a step: -1 each, the likeliest other one is 'a'. False: none was left.
  static bool score_prompt(Running& running, TokenOutput& output) {
    const std::vector<TokenId>& prompt = running.request.prompt;
    for (int i = 0; i < 2 && running.num_scored < prompt.size(); ++i) {
      PromptLogprob& scored = output.prompt_logprobs.emplace_back();
      scored.token = prompt[running.num_scored++];
      scored.logprob = -1.0F;
      scored.rank = 2;
      for (int32_t k = 0; k < running.request.sampling.num_prompt_logprobs; ++k) {
        scored.top_logprobs.push_back({'a' + k, -0.5F - static_cast<float>(k)});
      }
    }
    return !output.prompt_logprobs.empty();
  }

  void loop() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopped_ || !running_.empty(); });
        if (stopped_) return;
      }
      if (step_delay_us_ > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(step_delay_us_));
      }
      step();
    }
  }

  ModelInfo model_;
  ByteTokenizer tokenizer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> script_;
  std::map<RequestId, Running> running_;
  std::map<RequestId, float> logprobs_;
  std::vector<float> pooled_;  // empty: what pooled_of() makes of a prompt
  std::atomic<ErrorCode> fail_code_ = ErrorCode::kInternal;
  std::atomic<int32_t> fail_retry_s_ = 0;
  std::vector<ValidRequest> submitted_;
  std::vector<std::thread::id> submitters_;
  std::vector<std::weak_ptr<KvEventWatcher>> watchers_;
  int64_t first_watched_ = -1;
  std::atomic<bool> has_events_{true};
  EngineStats stats_;
  KvTransferWatcher* transfer_watcher_ = nullptr;
  EngineState state_;
  uint64_t last_id_ = 0;
  int num_aborted_ = 0;
  bool draining_ = false;
  bool stopped_ = false;
  std::atomic<int32_t> fail_at_{-1};
  std::exception_ptr thrown_;  // guarded by mutex_
  int num_before_thrown_ = 0;  // guarded by mutex_
  std::atomic<size_t> queue_limit_{1000};
  std::atomic<bool> scores_come_with_tokens_ = false;
  std::atomic<int64_t> step_delay_us_{0};
  std::thread thread_;
};

// Returns what constrains the answer of the request that came last; kNone: nothing.
inline GrammarSpec submitted_grammar(const FakeEngine& engine) {
  const auto grammar = engine.submitted().back().grammar;
  return grammar == nullptr ? GrammarSpec() : *grammar;
}

}  // namespace sluice
