// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_codec.h"

#include <worker.pb.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

namespace wire = worker::v1;
using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

// What is wrong with a message; null: nothing so far.
using Fault = const char*;

tl::unexpected<Error> invalid(Fault fault) {
  return make_error(ErrorCode::kInvalidArgument,
                    std::string("A message between router and worker has ") + fault + ".");
}

// Defines put() and take() of a structure by a list of all its fields, which a structured binding
// checks. Each row has the name of the field in the message and how it travels:
// VALUE: as it is. ENUM: as its number. PART: by its own put() and take(). OPTION: the same of what
// a pointer or std::optional has, if it has something. FLAT: its fields are the message's own.
// SKIP: not here.
#define SLUICE_NAME(how, name) name
#define SLUICE_PUT(how, name) SLUICE_PUT_##how(name)
#define SLUICE_PUT_VALUE(name) to.set_##name(name)
#define SLUICE_PUT_ENUM(name) to.set_##name(static_cast<uint32_t>(name))
#define SLUICE_PUT_PART(name) put(name, *to.mutable_##name())
#define SLUICE_PUT_OPTION(name) (name ? put(*name, *to.mutable_##name()) : void())
#define SLUICE_PUT_FLAT(name) put(name, to)
#define SLUICE_PUT_SKIP(name) (void)name
#define SLUICE_TAKE(how, name) SLUICE_TAKE_##how(name)
#define SLUICE_TAKE_VALUE(name) name = from.name()
#define SLUICE_TAKE_ENUM(name) take(from.name(), name, fault)
#define SLUICE_TAKE_PART(name) take(from.name(), name, fault)
#define SLUICE_TAKE_OPTION(name) (from.has_##name() ? take(from.name(), name, fault) : void())
#define SLUICE_TAKE_FLAT(name) take(from, name, fault)
#define SLUICE_TAKE_SKIP(name) (void)name
#define SLUICE_FIELDS(Struct, Message, FIELDS)                               \
  static void put(const Struct& value, wire::Message& to) {                  \
    const auto& [FIELDS(SLUICE_NAME)] = value;                               \
    FIELDS(SLUICE_PUT);                                                      \
  }                                                                          \
  static void take(const wire::Message& from, Struct& value, Fault& fault) { \
    auto& [FIELDS(SLUICE_NAME)] = value;                                     \
    FIELDS(SLUICE_TAKE);                                                     \
    (void)fault;                                                             \
  }

// The functions are members because they use each other in any order.
struct Codec {
  template <size_t kBytes>
  static void put(const std::array<uint8_t, kBytes>& value, std::string& to) {
    to.assign(value.begin(), value.end());
  }
  template <size_t kBytes>
  static void take(const std::string& from, std::array<uint8_t, kBytes>& value, Fault& fault) {
    if (from.size() != kBytes) {
      fault = "a name of another length";
    } else {
      std::copy(from.begin(), from.end(), value.begin());
    }
  }

  static void put(const std::string& value, std::string& to) { to = value; }
  static void take(const std::string& from, std::string& value, Fault&) { value = from; }

  template <typename T>
  static void put(const std::vector<T>& value, RepeatedField<T>& to) {
    to.Add(value.begin(), value.end());
  }
  template <typename T>
  static void take(const RepeatedField<T>& from, std::vector<T>& value, Fault&) {
    value.assign(from.begin(), from.end());
  }

  template <typename T, typename Message>
  static void put(const std::vector<T>& value, RepeatedPtrField<Message>& to) {
    for (const T& item : value) put(item, *to.Add());
  }
  template <typename T, typename Message>
  static void take(const RepeatedPtrField<Message>& from, std::vector<T>& value, Fault& fault) {
    for (const Message& item : from) take(item, value.emplace_back(), fault);
  }

  template <typename T, typename Message>
  static void take(const Message& from, std::optional<T>& value, Fault& fault) {
    take(from, value.emplace(), fault);
  }
  template <typename T, typename Message>
  static void take(const Message& from, std::shared_ptr<const T>& value, Fault& fault) {
    auto made = std::make_shared<T>();
    take(from, *made, fault);
    value = std::move(made);
  }

  template <typename Enum>
  static void take(uint32_t from, Enum& value, Enum last, Fault what, Fault& fault) {
    if (from > static_cast<uint32_t>(last)) {
      fault = what;
    } else {
      value = static_cast<Enum>(from);
    }
  }
  static void take(uint32_t from, GrammarKind& value, Fault& fault) {
    take(from, value, GrammarKind::kStructuralTag, "an unknown kind of grammar", fault);
  }
  static void take(uint32_t from, HandoffKind& value, Fault& fault) {
    take(from, value, HandoffKind::kFetch, "an unknown kind of handoff", fault);
  }
  static void take(uint32_t from, HandoffMode& value, Fault& fault) {
    take(from, value, HandoffMode::kConcurrent, "an unknown mode of handoff", fault);
  }
  static void take(uint32_t from, FinishReason& value, Fault& fault) {
    take(from, value, FinishReason::kError, "an unknown finish reason", fault);
  }
  static void take(uint32_t from, ErrorCode& value, Fault& fault) {
    take(from, value, ErrorCode::kInternal, "an unknown error", fault);
  }
  static void take(uint32_t from, PoolingType& value, Fault& fault) {
    take(from, value, PoolingType::kWeightedMean, "an unknown way to pool", fault);
  }
  static void take(uint32_t from, ScoreFunction& value, Fault& fault) {
    take(from, value, ScoreFunction::kSoftmax, "an unknown way to pool", fault);
  }

  static void put(const std::vector<TokenId>& value, wire::TokenIds& to) {
    put(value, *to.mutable_ids());
  }
  static void take(const wire::TokenIds& from, std::vector<TokenId>& value, Fault& fault) {
    take(from.ids(), value, fault);
  }

#define FIELDS(F) F(VALUE, token), F(VALUE, bias)
  SLUICE_FIELDS(LogitBias, LogitBias, FIELDS)
#undef FIELDS

#define FIELDS(F) F(VALUE, max_tokens), F(PART, begin), F(PART, end)
  SLUICE_FIELDS(ReasoningLimit, ReasoningLimit, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                         \
  F(VALUE, temperature), F(VALUE, top_p), F(VALUE, top_k), F(VALUE, min_p),               \
      F(VALUE, seed), F(VALUE, max_tokens), F(VALUE, min_tokens), F(VALUE, ignore_eos),   \
      F(VALUE, presence_penalty), F(VALUE, frequency_penalty),                            \
      F(VALUE, repetition_penalty), F(PART, stop_token_ids), F(PART, logit_bias),         \
      F(PART, allowed_token_ids), F(PART, bad_words), F(PART, reasoning_limit),           \
      F(VALUE, num_logprobs), F(VALUE, num_prompt_logprobs)
  SLUICE_FIELDS(SamplingParams, Sampling, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                               \
  F(ENUM, kind), F(VALUE, text), F(VALUE, allows_whitespace),                   \
      F(VALUE, is_best_effort), F(PART, begins_after), F(PART, control_tokens), \
      F(VALUE, param)
  SLUICE_FIELDS(GrammarSpec, Grammar, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                       \
  F(PART, key), F(VALUE, num_prompt_tokens), F(VALUE, num_blocks), F(VALUE, seed),      \
      F(VALUE, first_token), F(VALUE, check)
  SLUICE_FIELDS(HandoffResult, HandoffResult, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                   \
  F(ENUM, kind), F(ENUM, mode), F(PART, transfer), F(VALUE, peer),                  \
      F(VALUE, peer_epoch), F(VALUE, peer_fingerprint), F(OPTION, result),          \
      F(VALUE, adopts_seed)
  SLUICE_FIELDS(HandoffSpec, HandoffSpec, FIELDS)
#undef FIELDS

#define FIELDS(F) \
  F(VALUE, epoch), F(VALUE, host), F(VALUE, port), F(VALUE, offers), F(VALUE, fetches)
  SLUICE_FIELDS(HandoffInfo, HandoffInfo, FIELDS)
#undef FIELDS

#define FIELDS(F) F(PART, transfer), F(VALUE, epoch), F(VALUE, num_groups), F(PART, result)
  SLUICE_FIELDS(HandoffOffer, HandoffOffer, FIELDS)
#undef FIELDS

#define FIELDS(F) \
  F(VALUE, every_token), F(VALUE, activates), F(VALUE, forces_scale), F(VALUE, dimensions)
  SLUICE_FIELDS(PoolingParams, PoolingParams, FIELDS)
#undef FIELDS

#define FIELDS(F) F(VALUE, name), F(VALUE, text)
  SLUICE_FIELDS(NamedPrompt, NamedPrompt, FIELDS)
#undef FIELDS

#define FIELDS(F) F(VALUE, prompt), F(VALUE, marker), F(VALUE, max_tokens), F(PART, skipped)
  SLUICE_FIELDS(ComparedSide, ComparedSide, FIELDS)
#undef FIELDS

#define FIELDS(F) F(PART, query), F(PART, document), F(VALUE, expansion), F(VALUE, expanded_tokens)
  SLUICE_FIELDS(TokenComparison, PoolingInfo, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                             \
  F(VALUE, is_classifier), F(ENUM, type), F(VALUE, normalizes), F(VALUE, width),              \
      F(VALUE, max_tokens), F(VALUE, has_segments), F(VALUE, is_matryoshka),                  \
      F(PART, matryoshka_dimensions), F(ENUM, function), F(PART, labels),                     \
      F(PART, label_tokens), F(VALUE, is_qwen3_reranker), F(VALUE, begins_answer),            \
      F(PART, prompts), F(VALUE, default_prompt), F(FLAT, comparison)
  SLUICE_FIELDS(PoolingInfo, PoolingInfo, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                             \
  F(PART, prompt), F(PART, generated), F(PART, sampling), F(OPTION, grammar),                 \
      F(VALUE, adapter_id), F(VALUE, tenant_salt), F(SKIP, tenant), F(VALUE, priority),       \
      F(VALUE, max_queue_wait_ms), F(VALUE, keeps_prompt), F(VALUE, speculative),             \
      F(PART, prediction), F(OPTION, pooling), F(OPTION, handoff), F(SKIP, arrival),          \
      F(SKIP, trace)
  SLUICE_FIELDS(ValidRequest, Request, FIELDS)
#undef FIELDS

#define FIELDS(F) F(VALUE, token), F(VALUE, logprob)
  SLUICE_FIELDS(TokenLogprob, TokenLogprob, FIELDS)
#undef FIELDS

#define FIELDS(F) F(VALUE, token), F(VALUE, logprob), F(VALUE, rank), F(PART, top_logprobs)
  SLUICE_FIELDS(PromptLogprob, PromptLogprob, FIELDS)
#undef FIELDS

#define FIELDS(F) \
  F(VALUE, queued_ms), F(VALUE, prefill_ms), F(VALUE, decode_ms), F(VALUE, num_preemptions)
  SLUICE_FIELDS(RequestTimings, Timings, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                           \
  F(SKIP, request_id), F(VALUE, token), F(VALUE, logprob), F(PART, top_logprobs),           \
      F(ENUM, finish_reason), F(VALUE, stop_token), F(VALUE, num_cached_tokens),            \
      F(VALUE, num_accepted_predictions), F(VALUE, num_rejected_predictions),               \
      F(PART, timings), F(VALUE, error), F(ENUM, error_code), F(VALUE, retry_after_s),      \
      F(VALUE, error_param), F(PART, prompt_logprobs), F(OPTION, offer), F(PART, pooled)
  SLUICE_FIELDS(TokenOutput, TokenOutput, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                       \
  F(ENUM, code), F(VALUE, message), F(VALUE, param), F(VALUE, machine_code),            \
      F(VALUE, retry_after_s)
  SLUICE_FIELDS(Error, Refusal, FIELDS)
#undef FIELDS

#define FIELDS(F)                                                                         \
  F(VALUE, architecture), F(VALUE, path), F(VALUE, chat_template), F(VALUE, vocab_size),  \
      F(VALUE, max_model_len), F(VALUE, num_parameters), F(VALUE, system_fingerprint),    \
      F(VALUE, backend), F(VALUE, memory_plan), F(PART, sampling),                        \
      F(VALUE, max_output_tokens), F(OPTION, handoff), F(OPTION, pooling)
  SLUICE_FIELDS(ModelInfo, Description, FIELDS)
#undef FIELDS
};

}  // namespace

void encode(const ValidRequest& from, WorkerClock::time_point now, wire::Request& to) {
  Codec::put(from, to);
  to.set_tenant(from.tenant.value);
  to.set_age_ns(std::chrono::duration_cast<std::chrono::nanoseconds>(now - from.arrival).count());
  if (from.trace.is_set()) {
    to.set_traceparent(traceparent(from.trace));
    to.set_tracestate(from.trace.state);
  }
}

Expected<ValidRequest> decode(const wire::Request& from, WorkerClock::time_point now) {
  ValidRequest to;
  Fault fault = nullptr;
  Codec::take(from, to, fault);
  constexpr int64_t kMostNs = int64_t{365} * 86400 * 1'000'000'000;
  if (from.age_ns() < 0 || from.age_ns() > kMostNs) fault = "an age that cannot be";
  if (fault != nullptr) return invalid(fault);
  if (to.grammar != nullptr && !to.grammar->is_set()) to.grammar = nullptr;
  to.tenant = TenantId(from.tenant());
  to.arrival = now - std::chrono::nanoseconds(from.age_ns());
  to.trace = parse_trace_context(from.traceparent(), from.tracestate());
  return to;
}

void encode(const TokenOutput& from, wire::TokenOutput& to) { Codec::put(from, to); }

Expected<TokenOutput> decode(const wire::TokenOutput& from) {
  TokenOutput to;
  Fault fault = nullptr;
  Codec::take(from, to, fault);
  if (fault != nullptr) return invalid(fault);
  return to;
}

void encode(const Error& from, wire::Refusal& to) { Codec::put(from, to); }

Error decode(const wire::Refusal& from) {
  Error to;
  Fault fault = nullptr;
  Codec::take(from, to, fault);
  if (fault != nullptr) to.code = ErrorCode::kInternal;
  return to;
}

void encode(const ModelInfo& from, wire::Description& to) { Codec::put(from, to); }

Expected<ModelInfo> decode(const wire::Description& from) {
  ModelInfo to;
  Fault fault = nullptr;
  Codec::take(from, to, fault);
  if (to.vocab_size < 1 || to.max_model_len < 1 || to.system_fingerprint.empty()) {
    fault = "a model that cannot be";
  }
  if (fault != nullptr) return invalid(fault);
  return to;
}

}  // namespace sluice
