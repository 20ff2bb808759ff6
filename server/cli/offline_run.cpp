// SPDX-License-Identifier: Apache-2.0
#include "server/cli/offline_run.h"

#include <map>
#include <utility>

#include "server/cli/output_queue.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kProgressEvery = std::chrono::milliseconds(250);

class OfflineRun {
 public:
  OfflineRun(Engine& engine,
             size_t num_conversations,
             const TurnSource& source,
             const OfflineOptions& options)
      : engine_(engine), source_(source), options_(options), conversations_(num_conversations) {}

  ~OfflineRun() {
    // Outputs are written to a member: none may arrive after it is destroyed.
    for (const auto& [id, index] : running_) engine_.abort(id);
    while (!running_.empty()) {
      if (const auto next = outputs_.pop(kProgressEvery)) forget_ended(next->output);
    }
  }

  OfflineRun(const OfflineRun&) = delete;
  OfflineRun& operator=(const OfflineRun&) = delete;

  Expected<std::vector<Conversation>> run() {
    start_ = Clock::now();
    size_t num_begun = 0;
    while (true) {
      while (!waiting_.empty() && !is_queue_full_) {
        SLUICE_TRY(const bool is_taken, take_turn(waiting_.back()));
        if (is_taken) waiting_.pop_back();
      }
      while (num_begun < conversations_.size() && has_room() && !is_queue_full_) {
        SLUICE_TRY(const bool is_taken, take_turn(num_begun));
        if (is_taken) ++num_begun;
      }
      if (running_.empty()) break;
      show_progress(num_begun);
      if (const auto next = outputs_.pop(kProgressEvery)) record(*next);
    }
    return std::move(conversations_);
  }

 private:
  [[nodiscard]] bool has_room() const {
    return options_.max_concurrency == 0 || running_.size() < options_.max_concurrency;
  }

  // False: the engine's queue is full; an answer must end first.
  Expected<bool> take_turn(size_t index) {
    SLUICE_TRY(std::optional<OfflineRequest> turn, source_(index, conversations_[index]));
    if (!turn) return true;
    const int64_t room = engine_.model().max_model_len;
    const auto prompt_len = static_cast<int64_t>(turn->prompt.size());
    if (prompt_len == 0 || prompt_len + turn->sampling.max_tokens > room) {
      return make_error(ErrorCode::kInvalidArgument,
                        "request " + std::to_string(index) + " has " + std::to_string(prompt_len) +
                            " prompt and " + std::to_string(turn->sampling.max_tokens) +
                            " answer tokens; the context has " + std::to_string(room) +
                            " (--max-model-len)");
    }
    OfflineAnswer answer;
    answer.prompt = turn->prompt;
    answer.max_tokens = turn->sampling.max_tokens;
    ValidRequest request;
    request.prompt = std::move(turn->prompt);
    request.sampling = std::move(turn->sampling);
    request.arrival = answer.submitted = Clock::now();
    const auto id = engine_.submit(std::move(request), outputs_);
    if (!id && id.error().code == ErrorCode::kResourceExhausted && !running_.empty()) {
      is_queue_full_ = true;
      return false;
    }
    if (!id) return tl::unexpected(id.error());
    conversations_[index].push_back(std::move(answer));
    running_[*id] = index;
    return true;
  }

  // A failed turn ends its conversation.
  void record(const TimedOutput& timed) {
    const TokenOutput& output = timed.output;
    const size_t index = running_.at(output.request_id);
    OfflineAnswer& answer = conversations_[index].back();
    if (answer.tokens.empty()) answer.num_cached_tokens = output.num_cached_tokens;
    if (output.token != kInvalidToken) {
      answer.tokens.push_back(output.token);
      answer.times.push_back(timed.at);
      ++num_tokens_;
    }
    if (output.finish_reason == FinishReason::kNone) return;
    answer.finish_reason = output.finish_reason;
    answer.error = output.error;
    answer.ended = timed.at;
    forget_ended(output);
    is_queue_full_ = false;
    if (has_failed(output)) {
      ++num_failed_;
    } else {
      ++num_completed_;
      waiting_.push_back(index);
    }
  }

  void forget_ended(const TokenOutput& output) {
    if (output.finish_reason != FinishReason::kNone) running_.erase(output.request_id);
  }

  void show_progress(size_t num_begun) {
    const auto now = Clock::now();
    if (!options_.on_progress || now < next_progress_) return;
    next_progress_ = now + kProgressEvery;
    options_.on_progress({.elapsed_s = std::chrono::duration<double>(now - start_).count(),
                          .num_started = num_begun,
                          .num_active = running_.size(),
                          .num_completed = num_completed_,
                          .num_failed = num_failed_,
                          .num_planned = conversations_.size(),
                          .num_chunks = num_tokens_});
  }

  Engine& engine_;
  const TurnSource& source_;
  const OfflineOptions& options_;
  OutputQueue outputs_;
  std::vector<Conversation> conversations_;
  std::map<RequestId, size_t> running_;  // to the conversation
  std::vector<size_t> waiting_;          // conversations whose next turn is to be taken
  bool is_queue_full_ = false;
  Clock::time_point start_;
  Clock::time_point next_progress_;
  size_t num_completed_ = 0;
  size_t num_failed_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace

Expected<std::vector<Conversation>> run_offline(Engine& engine,
                                                size_t num_conversations,
                                                const TurnSource& source,
                                                const OfflineOptions& options) {
  return OfflineRun(engine, num_conversations, source, options).run();
}

}  // namespace sluice
