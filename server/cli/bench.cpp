// SPDX-License-Identifier: Apache-2.0
// Prefill: one request of P random tokens; the time from submit to its first token. Decode: C
// requests at once; the tokens between the step with the last request's first token and the step
// that ended the first request, over that time: all C decode, none prefills. Medians over rounds,
// after one round that is not counted. Tokens before the prompts of decode requests (--context) are
// computed once and found in the prefix cache: beside decoding requests prompts are computed
// slowly, and the first request would end before the last begins.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/core/version.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/cli/command.h"
#include "server/cli/offline_run.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// Of rounds whose first request ends before the last begins: something else may have had the
// processor while requests were submitted.
constexpr int kMostRepeats = 20;

struct PrefillFigure {
  int32_t prompt_len;
  double ms;
};

struct DecodeFigure {
  int32_t concurrency;
  double first_token_ms;     // of the last request to get one
  double tokens_per_second;  // all requests together
  double idle_us;            // of a GPU before a step, mean of all steps
  uint64_t num_drafts = 0;   // per request and step
  std::vector<double> accepted_at;  // by position in the draft: share of the drafts
};

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// Sets the drafts between two moments.
void set_drafts(const DraftStats& before, const DraftStats& after, DecodeFigure& figure) {
  for (size_t i = 0; i < kNumDraftSources; ++i) {
    figure.num_drafts += after.num_drafts[i] - before.num_drafts[i];
  }
  if (figure.num_drafts == 0) return;
  for (size_t i = 0; i < kMaxDraftTokens; ++i) {
    const uint64_t accepted = after.num_accepted_at[i] - before.num_accepted_at[i];
    if (accepted == 0) return;
    figure.accepted_at.push_back(static_cast<double>(accepted) /
                                 static_cast<double>(figure.num_drafts));
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

class Bench {
 public:
  Bench(Engine& engine, const Invocation& invocation)
      : engine_(engine), options_(invocation.bench), random_(invocation.config.seed) {}

  Expected<PrefillFigure> prefill(int32_t prompt_len) {
    std::vector<double> times;
    for (int32_t round = -1; round < options_.rounds; ++round) {
      SLUICE_TRY(const auto answers,
                 run_requests(1, [&](size_t) { return random_prompt(prompt_len); }, 1));
      const OfflineAnswer& answer = answers.front().front();
      if (round >= 0) times.push_back(milliseconds(answer.times.front() - answer.submitted));
    }
    return PrefillFigure{prompt_len, median(std::move(times))};
  }

  // Computes one context for each of the first `count` decode requests.
  Expected<void> compute_contexts(int32_t count) {
    for (int32_t i = 0; i < count; ++i) contexts_.push_back(random_prompt(options_.context));
    if (options_.context == 0) return {};
    SLUICE_TRY_VOID(run_requests(count, [&](size_t i) { return contexts_[i]; }, 1));
    return {};
  }

  Expected<DecodeFigure> decode(int32_t concurrency) {
    std::vector<double> rates;
    std::vector<double> firsts;
    EngineStats before;
    int num_repeats = 0;
    for (int32_t round = -1; round < options_.rounds; ++round) {
      SLUICE_TRY(const auto answers,
                 run_requests(concurrency,
                              [&](size_t i) { return prompt_after(contexts_[i]); },
                              options_.output_len));
      SLUICE_TRY_VOID(check_cached(answers));
      const auto start = answers.front().front().submitted;
      auto begin = start;
      auto end = Clock::time_point::max();
      for (const Conversation& conversation : answers) {
        begin = std::max(begin, conversation.front().times.front());
        end = std::min(end, conversation.front().times.back());
      }
      int64_t num_tokens = 0;
      for (const Conversation& conversation : answers) {
        const auto& times = conversation.front().times;
        num_tokens += std::count_if(
            times.begin(), times.end(), [&](auto t) { return t > begin && t <= end; });
      }
      if (end <= begin && num_repeats++ < kMostRepeats) {
        --round;
        continue;
      }
      if (end <= begin) {
        return make_error(ErrorCode::kInvalidArgument,
                          "--output-len is too short for " + std::to_string(concurrency) +
                              " requests: the first ends before the last begins");
      }
      if (round < 0) {
        before = engine_.stats();
        continue;
      }
      rates.push_back(1e3 * static_cast<double>(num_tokens) / milliseconds(end - begin));
      firsts.push_back(milliseconds(begin - start));
    }
    const EngineStats after = engine_.stats();
    const auto steps = static_cast<double>(after.num_steps - before.num_steps);
    const auto idle = static_cast<double>(after.device_idle_ns - before.device_idle_ns);
    DecodeFigure figure = {.concurrency = concurrency,
                           .first_token_ms = median(std::move(firsts)),
                           .tokens_per_second = median(std::move(rates)),
                           .idle_us = 1e-3 * idle / std::max(1.0, steps),
                           .accepted_at = {}};
    set_drafts(before.drafts, after.drafts, figure);
    return figure;
  }

 private:
  // Returns fresh random tokens each time, so that the prefix cache finds nothing.
  std::vector<TokenId> random_prompt(int32_t length) {
    const Tokenizer& tokenizer = engine_.tokenizer();
    std::uniform_int_distribution<TokenId> any(0, engine_.model().vocab_size - 1);
    std::vector<TokenId> ids;
    while (ids.size() < static_cast<size_t>(length)) {
      const TokenId id = any(random_);
      if (!tokenizer.is_special(id)) ids.push_back(id);
    }
    return ids;
  }

  std::vector<TokenId> prompt_after(const std::vector<TokenId>& context) {
    std::vector<TokenId> ids = context;
    const std::vector<TokenId> prompt = random_prompt(options_.prompt_len);
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    return ids;
  }

  Expected<void> check_cached(const std::vector<Conversation>& answers) const {
    for (const Conversation& conversation : answers) {
      const int32_t num_cached = conversation.front().num_cached_tokens;
      if (num_cached >= options_.context) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "--context: of " + std::to_string(options_.context) +
                            " tokens computed beforehand " + std::to_string(num_cached) +
                            " were cached; see --kv-cache-memory and --enable-prefix-caching");
    }
    return {};
  }

  template <typename PromptOf>
  Expected<std::vector<Conversation>> run_requests(int32_t count,
                                                   const PromptOf& prompt_of,
                                                   int32_t output_len) {
    const auto source = [&](size_t index,
                            const Conversation& before) -> Expected<std::optional<OfflineRequest>> {
      if (!before.empty()) return std::nullopt;
      OfflineRequest request;
      request.prompt = prompt_of(index);
      request.sampling.temperature = 0;
      request.sampling.max_tokens = output_len;
      request.sampling.ignore_eos = true;
      return request;
    };
    SLUICE_TRY(auto answers, run_offline(engine_, static_cast<size_t>(count), source));
    for (const Conversation& conversation : answers) {
      const OfflineAnswer& answer = conversation.front();
      if (answer.finish_reason == FinishReason::kLength) continue;
      return make_error(ErrorCode::kInternal,
                        "a request ended with " + std::string(to_string(answer.finish_reason)) +
                            (answer.error.empty() ? "" : ": " + answer.error));
    }
    return answers;
  }

  Engine& engine_;
  const BenchOptions& options_;
  std::mt19937_64 random_;
  std::vector<std::vector<TokenId>> contexts_;  // one for each decode request
};

Expected<void> check_lengths(const Invocation& invocation, const ModelInfo& model) {
  const BenchOptions& options = invocation.bench;
  int64_t longest = int64_t{options.context} + options.prompt_len + options.output_len;
  for (const int32_t length : options.prefill_lens)
    longest = std::max<int64_t>(longest, length + 1);
  if (longest > model.max_model_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a request of " + std::to_string(longest) +
                          " tokens does not fit the context of " +
                          std::to_string(model.max_model_len) + "; see --max-model-len");
  }
  for (const int32_t concurrency : options.concurrencies) {
    if (concurrency > invocation.config.max_num_seqs) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--concurrency " + std::to_string(concurrency) + " is more than " +
                            std::to_string(invocation.config.max_num_seqs) + " (--max-num-seqs)");
    }
  }
  return {};
}

nlohmann::ordered_json to_json(const Invocation& invocation,
                               const ModelInfo& model,
                               const std::vector<PrefillFigure>& prefills,
                               const std::vector<DecodeFigure>& decodes) {
  const BenchOptions& options = invocation.bench;
  nlohmann::ordered_json json = {{"version", version()},
                                 {"model", model.path},
                                 {"backend", model.backend},
                                 {"system_fingerprint", model.system_fingerprint},
                                 {"threads", invocation.config.threads},
                                 {"activation_bits", invocation.config.activation_bits},
                                 {"rounds", options.rounds},
                                 {"prefill", nlohmann::ordered_json::array()},
                                 {"decode", nlohmann::ordered_json::array()}};
  for (const PrefillFigure& figure : prefills) {
    json["prefill"].push_back({{"prompt_len", figure.prompt_len},
                               {"ms", figure.ms},
                               {"tokens_per_second", 1e3 * figure.prompt_len / figure.ms}});
  }
  for (const DecodeFigure& figure : decodes) {
    json["decode"].push_back({{"concurrency", figure.concurrency},
                              {"context", options.context},
                              {"prompt_len", options.prompt_len},
                              {"output_len", options.output_len},
                              {"first_token_ms", figure.first_token_ms},
                              {"ms_per_token", 1e3 * figure.concurrency / figure.tokens_per_second},
                              {"tokens_per_second", figure.tokens_per_second}});
    if (model.is_on_gpu()) json["decode"].back()["device_idle_us_per_step"] = figure.idle_us;
    if (figure.num_drafts == 0) continue;
    json["decode"].back()["drafts"] = figure.num_drafts;
    json["decode"].back()["per_position_acceptance_rates"] = figure.accepted_at;
  }
  return json;
}

Expected<void> measure(Engine& engine, const Invocation& invocation) {
  const BenchOptions& options = invocation.bench;
  const ModelInfo& model = engine.model();
  SLUICE_TRY_VOID(check_lengths(invocation, model));
  Bench bench(engine, invocation);
  std::printf("%s on %s, activations of %d bits, medians of %d rounds\n\n",
              model.path.c_str(),
              model.backend.c_str(),
              invocation.config.activation_bits,
              options.rounds);

  std::vector<PrefillFigure> prefills;
  std::printf("%-12s %10s %12s\n", "prefill", "ms", "tokens/s");
  for (const int32_t length : options.prefill_lens) {
    SLUICE_TRY(prefills.emplace_back(), bench.prefill(length));
    const PrefillFigure& figure = prefills.back();
    std::printf("%-12d %10.2f %12.1f\n", length, figure.ms, 1e3 * length / figure.ms);
    std::fflush(stdout);
  }

  std::vector<DecodeFigure> decodes;
  const bool on_gpu = model.is_on_gpu();
  std::printf("\n%-12s %10s %12s %16s%s\n",
              "decode x",
              "ms/token",
              "tokens/s",
              "first token ms",
              on_gpu ? "   GPU idle us/step" : "");
  SLUICE_TRY_VOID(bench.compute_contexts(
      *std::max_element(options.concurrencies.begin(), options.concurrencies.end())));
  for (const int32_t concurrency : options.concurrencies) {
    SLUICE_TRY(decodes.emplace_back(), bench.decode(concurrency));
    const DecodeFigure& figure = decodes.back();
    std::printf("%-12d %10.3f %12.1f %16.2f",
                concurrency,
                1e3 * concurrency / figure.tokens_per_second,
                figure.tokens_per_second,
                figure.first_token_ms);
    if (on_gpu) std::printf("%19.1f", figure.idle_us);
    if (figure.num_drafts > 0) {
      std::printf("   %llu drafts, accepted by position:",
                  static_cast<unsigned long long>(figure.num_drafts));
      for (const double share : figure.accepted_at) std::printf(" %.2f", share);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  if (options.json_path.empty()) return {};
  return write_text_file(options.json_path,
                         to_json(invocation, model, prefills, decodes).dump(2) + "\n");
}

}  // namespace

Expected<void> run_bench(const Invocation& invocation) {
  SLUICE_TRY(const auto engine, create_engine(invocation.config));
  return measure(*engine, invocation);
}

}  // namespace sluice
