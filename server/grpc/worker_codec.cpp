// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_codec.h"

#include <worker.pb.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/grpc/pooling_codec.h"

namespace sluice {
namespace {

namespace wire = worker::v1;
using Ids = google::protobuf::RepeatedField<int32_t>;

tl::unexpected<Error> invalid(const char* what) {
  return make_error(ErrorCode::kInvalidArgument,
                    std::string("A message between router and worker has ") + what + ".");
}

template <typename Enum>
Expected<Enum> to_enum(uint32_t value, Enum last, const char* what) {
  if (value > static_cast<uint32_t>(last)) return invalid(what);
  return static_cast<Enum>(value);
}

void encode(const std::vector<TokenId>& from, Ids& to) { to.Add(from.begin(), from.end()); }

std::vector<TokenId> decode(const Ids& from) { return {from.begin(), from.end()}; }

void encode(const std::vector<TokenLogprob>& from,
            google::protobuf::RepeatedPtrField<wire::TokenLogprob>& to) {
  for (const auto& [token, logprob] : from) {
    wire::TokenLogprob& item = *to.Add();
    item.set_token(token);
    item.set_logprob(logprob);
  }
}

std::vector<TokenLogprob> decode(
    const google::protobuf::RepeatedPtrField<wire::TokenLogprob>& from) {
  std::vector<TokenLogprob> to;
  for (const wire::TokenLogprob& item : from) {
    auto& [token, logprob] = to.emplace_back();
    token = item.token();
    logprob = item.logprob();
  }
  return to;
}

void encode(const SamplingParams& from, wire::Sampling& to) {
  const auto& [temperature,
               top_p,
               top_k,
               min_p,
               seed,
               max_tokens,
               min_tokens,
               ignore_eos,
               presence_penalty,
               frequency_penalty,
               repetition_penalty,
               stop_token_ids,
               logit_bias,
               allowed_token_ids,
               bad_words,
               reasoning_limit,
               num_logprobs,
               num_prompt_logprobs] = from;
  to.set_temperature(temperature);
  to.set_top_p(top_p);
  to.set_top_k(top_k);
  to.set_min_p(min_p);
  to.set_seed(seed);
  to.set_max_tokens(max_tokens);
  to.set_min_tokens(min_tokens);
  to.set_ignore_eos(ignore_eos);
  to.set_presence_penalty(presence_penalty);
  to.set_frequency_penalty(frequency_penalty);
  to.set_repetition_penalty(repetition_penalty);
  encode(stop_token_ids, *to.mutable_stop_token_ids());
  for (const auto& [token, bias] : logit_bias) {
    wire::LogitBias& item = *to.add_logit_bias();
    item.set_token(token);
    item.set_bias(bias);
  }
  encode(allowed_token_ids, *to.mutable_allowed_token_ids());
  for (const std::vector<TokenId>& word : bad_words)
    encode(word, *to.add_bad_words()->mutable_ids());
  if (reasoning_limit.is_set()) {
    const auto& [max_reasoning, begin, end] = reasoning_limit;
    wire::ReasoningLimit& limit = *to.mutable_reasoning_limit();
    limit.set_max_tokens(max_reasoning);
    encode(begin, *limit.mutable_begin());
    encode(end, *limit.mutable_end());
  }
  to.set_num_logprobs(num_logprobs);
  to.set_num_prompt_logprobs(num_prompt_logprobs);
}

SamplingParams decode(const wire::Sampling& from) {
  SamplingParams to;
  auto& [temperature,
         top_p,
         top_k,
         min_p,
         seed,
         max_tokens,
         min_tokens,
         ignore_eos,
         presence_penalty,
         frequency_penalty,
         repetition_penalty,
         stop_token_ids,
         logit_bias,
         allowed_token_ids,
         bad_words,
         reasoning_limit,
         num_logprobs,
         num_prompt_logprobs] = to;
  temperature = from.temperature();
  top_p = from.top_p();
  top_k = from.top_k();
  min_p = from.min_p();
  seed = from.seed();
  max_tokens = from.max_tokens();
  min_tokens = from.min_tokens();
  ignore_eos = from.ignore_eos();
  presence_penalty = from.presence_penalty();
  frequency_penalty = from.frequency_penalty();
  repetition_penalty = from.repetition_penalty();
  stop_token_ids = decode(from.stop_token_ids());
  for (const wire::LogitBias& item : from.logit_bias()) {
    auto& [token, bias] = logit_bias.emplace_back();
    token = item.token();
    bias = item.bias();
  }
  allowed_token_ids = decode(from.allowed_token_ids());
  for (const wire::TokenIds& word : from.bad_words()) bad_words.push_back(decode(word.ids()));
  auto& [max_reasoning, begin, end] = reasoning_limit;
  max_reasoning = from.reasoning_limit().max_tokens();
  begin = decode(from.reasoning_limit().begin());
  end = decode(from.reasoning_limit().end());
  num_logprobs = from.num_logprobs();
  num_prompt_logprobs = from.num_prompt_logprobs();
  return to;
}

void encode(const GrammarSpec& from, wire::Grammar& to) {
  const auto& [kind, text, whitespace, best_effort, begins_behind, control_tokens, param] = from;
  to.set_kind(static_cast<uint32_t>(kind));
  to.set_text(text);
  to.set_allows_whitespace(whitespace);
  to.set_is_best_effort(best_effort);
  encode(begins_behind, *to.mutable_begins_behind());
  encode(control_tokens, *to.mutable_control_tokens());
  to.set_param(param);
}

// Null: nothing is constrained.
Expected<std::shared_ptr<const GrammarSpec>> decode(const wire::Grammar& from) {
  auto to = std::make_shared<GrammarSpec>();
  auto& [kind, text, whitespace, best_effort, begins_behind, control_tokens, param] = *to;
  SLUICE_TRY(kind, to_enum(from.kind(), GrammarKind::kStructuralTag, "an unknown kind of grammar"));
  text = from.text();
  whitespace = from.allows_whitespace();
  best_effort = from.is_best_effort();
  begins_behind = decode(from.begins_behind());
  control_tokens = decode(from.control_tokens());
  param = from.param();
  if (!to->is_set()) return nullptr;
  return to;
}

template <size_t kBytes>
std::string text_of(const std::array<uint8_t, kBytes>& bytes) {
  return {bytes.begin(), bytes.end()};
}

template <size_t kBytes>
Expected<void> read_bytes(const std::string& text, std::array<uint8_t, kBytes>& to) {
  if (text.size() != kBytes) return invalid("a name of another length");
  std::copy(text.begin(), text.end(), to.begin());
  return {};
}

void encode(const HandoffResult& from, wire::HandoffResult& to) {
  const auto& [key, num_prompt_tokens, num_blocks, seed, first_token, check] = from;
  to.set_key(text_of(key));
  to.set_num_prompt_tokens(num_prompt_tokens);
  to.set_num_blocks(num_blocks);
  to.set_seed(seed);
  to.set_first_token(first_token);
  to.set_check(check);
}

Expected<HandoffResult> decode(const wire::HandoffResult& from) {
  HandoffResult to;
  auto& [key, num_prompt_tokens, num_blocks, seed, first_token, check] = to;
  SLUICE_TRY_VOID(read_bytes(from.key(), key));
  num_prompt_tokens = from.num_prompt_tokens();
  num_blocks = from.num_blocks();
  seed = from.seed();
  first_token = from.first_token();
  check = from.check();
  return to;
}

void encode(const HandoffSpec& from, wire::HandoffSpec& to) {
  const auto& [kind, door, transfer, peer, peer_epoch, peer_fingerprint, result, adopts_seed] =
      from;
  to.set_kind(static_cast<uint32_t>(kind));
  to.set_door(static_cast<uint32_t>(door));
  to.set_transfer(text_of(transfer));
  to.set_peer(peer);
  to.set_peer_epoch(peer_epoch);
  to.set_peer_fingerprint(peer_fingerprint);
  if (result) encode(*result, *to.mutable_result());
  to.set_adopts_seed(adopts_seed);
}

Expected<HandoffSpec> decode(const wire::HandoffSpec& from) {
  HandoffSpec to;
  auto& [kind, door, transfer, peer, peer_epoch, peer_fingerprint, result, adopts_seed] = to;
  SLUICE_TRY(kind, to_enum(from.kind(), HandoffKind::kFetch, "an unknown kind of handoff"));
  SLUICE_TRY(door, to_enum(from.door(), HandoffDoor::kConcurrent, "an unknown door"));
  SLUICE_TRY_VOID(read_bytes(from.transfer(), transfer));
  peer = from.peer();
  peer_epoch = from.peer_epoch();
  peer_fingerprint = from.peer_fingerprint();
  if (from.has_result()) {
    SLUICE_TRY(result, decode(from.result()));
  }
  adopts_seed = from.adopts_seed();
  return to;
}

void encode(const HandoffInfo& from, wire::HandoffInfo& to) {
  const auto& [epoch, host, port, offers, fetches] = from;
  to.set_epoch(epoch);
  to.set_host(host);
  to.set_port(port);
  to.set_offers(offers);
  to.set_fetches(fetches);
}

HandoffInfo decode(const wire::HandoffInfo& from) {
  HandoffInfo to;
  auto& [epoch, host, port, offers, fetches] = to;
  epoch = from.epoch();
  host = from.host();
  port = from.port();
  offers = from.offers();
  fetches = from.fetches();
  return to;
}

void encode(const HandoffOffer& from, wire::HandoffOffer& to) {
  const auto& [transfer, epoch, num_groups, result] = from;
  to.set_transfer(text_of(transfer));
  to.set_epoch(epoch);
  to.set_num_groups(num_groups);
  encode(result, *to.mutable_result());
}

Expected<HandoffOffer> decode(const wire::HandoffOffer& from) {
  HandoffOffer to;
  auto& [transfer, epoch, num_groups, result] = to;
  SLUICE_TRY_VOID(read_bytes(from.transfer(), transfer));
  epoch = from.epoch();
  num_groups = from.num_groups();
  SLUICE_TRY(result, decode(from.result()));
  return to;
}

}  // namespace

void encode(const ValidRequest& from, WorkerClock::time_point now, wire::Request& to) {
  const auto& [prompt,
               generated,
               sampling,
               grammar,
               adapter_id,
               tenant_salt,
               tenant,
               priority,
               max_queue_wait_ms,
               keeps_prompt,
               speculative,
               prediction,
               pooling,
               handoff,
               arrival,
               trace] = from;
  encode(prompt, *to.mutable_prompt());
  encode(generated, *to.mutable_generated());
  encode(sampling, *to.mutable_sampling());
  if (grammar != nullptr) encode(*grammar, *to.mutable_grammar());
  to.set_adapter_id(adapter_id);
  to.set_tenant_salt(tenant_salt);
  to.set_tenant(tenant.value);
  to.set_priority(priority);
  to.set_max_queue_wait_ms(max_queue_wait_ms);
  to.set_keeps_prompt(keeps_prompt);
  to.set_speculative(speculative);
  encode(prediction, *to.mutable_prediction());
  if (pooling) encode(*pooling, *to.mutable_pooling());
  if (handoff) encode(*handoff, *to.mutable_handoff());
  to.set_age_ns(std::chrono::duration_cast<std::chrono::nanoseconds>(now - arrival).count());
  if (trace.is_set()) {
    to.set_traceparent(traceparent(trace));
    to.set_tracestate(trace.state);
  }
}

Expected<ValidRequest> decode(const wire::Request& from, WorkerClock::time_point now) {
  ValidRequest to;
  auto& [prompt,
         generated,
         sampling,
         grammar,
         adapter_id,
         tenant_salt,
         tenant,
         priority,
         max_queue_wait_ms,
         keeps_prompt,
         speculative,
         prediction,
         pooling,
         handoff,
         arrival,
         trace] = to;
  prompt = decode(from.prompt());
  generated = decode(from.generated());
  sampling = decode(from.sampling());
  SLUICE_TRY(grammar, decode(from.grammar()));
  adapter_id = from.adapter_id();
  tenant_salt = from.tenant_salt();
  tenant = TenantId(from.tenant());
  priority = from.priority();
  max_queue_wait_ms = from.max_queue_wait_ms();
  keeps_prompt = from.keeps_prompt();
  speculative = from.speculative();
  prediction = decode(from.prediction());
  if (from.has_pooling()) pooling = decode(from.pooling());
  if (from.has_handoff()) {
    SLUICE_TRY(handoff, decode(from.handoff()));
  }
  constexpr int64_t kMostNs = int64_t{365} * 86400 * 1'000'000'000;
  if (from.age_ns() < 0 || from.age_ns() > kMostNs) return invalid("an age that cannot be");
  arrival = now - std::chrono::nanoseconds(from.age_ns());
  trace = parse_trace_context(from.traceparent(), from.tracestate());
  return to;
}

void encode(const TokenOutput& from, wire::TokenOutput& to) {
  const auto& [request_id,
               token,
               logprob,
               top_logprobs,
               finish_reason,
               stop_token,
               num_cached_tokens,
               num_accepted_predictions,
               num_rejected_predictions,
               timings,
               error,
               error_code,
               retry_after_s,
               error_param,
               prompt_logprobs,
               offer,
               pooled] = from;
  (void)request_id;
  to.set_token(token);
  to.set_logprob(logprob);
  encode(top_logprobs, *to.mutable_top_logprobs());
  to.set_finish_reason(static_cast<uint32_t>(finish_reason));
  to.set_stop_token(stop_token);
  to.set_num_cached_tokens(num_cached_tokens);
  to.set_num_accepted_predictions(num_accepted_predictions);
  to.set_num_rejected_predictions(num_rejected_predictions);
  const auto& [queued_ms, prefill_ms, decode_ms, num_preemptions] = timings;
  to.mutable_timings()->set_queued_ms(queued_ms);
  to.mutable_timings()->set_prefill_ms(prefill_ms);
  to.mutable_timings()->set_decode_ms(decode_ms);
  to.mutable_timings()->set_num_preemptions(num_preemptions);
  to.set_error(error);
  to.set_error_code(static_cast<uint32_t>(error_code));
  to.set_retry_after_s(retry_after_s);
  to.set_error_param(error_param);
  for (const auto& [scored, scored_logprob, rank, top] : prompt_logprobs) {
    wire::PromptLogprob& item = *to.add_prompt_logprobs();
    item.set_token(scored);
    item.set_logprob(scored_logprob);
    item.set_rank(rank);
    encode(top, *item.mutable_top_logprobs());
  }
  if (offer != nullptr) encode(*offer, *to.mutable_offer());
  to.mutable_pooled()->Add(pooled.begin(), pooled.end());
}

Expected<TokenOutput> decode(const wire::TokenOutput& from) {
  TokenOutput to;
  auto& [request_id,
         token,
         logprob,
         top_logprobs,
         finish_reason,
         stop_token,
         num_cached_tokens,
         num_accepted_predictions,
         num_rejected_predictions,
         timings,
         error,
         error_code,
         retry_after_s,
         error_param,
         prompt_logprobs,
         offer,
         pooled] = to;
  (void)request_id;
  token = from.token();
  logprob = from.logprob();
  top_logprobs = decode(from.top_logprobs());
  SLUICE_TRY(finish_reason,
             to_enum(from.finish_reason(), FinishReason::kError, "an unknown finish reason"));
  stop_token = from.stop_token();
  num_cached_tokens = from.num_cached_tokens();
  num_accepted_predictions = from.num_accepted_predictions();
  num_rejected_predictions = from.num_rejected_predictions();
  auto& [queued_ms, prefill_ms, decode_ms, num_preemptions] = timings;
  queued_ms = from.timings().queued_ms();
  prefill_ms = from.timings().prefill_ms();
  decode_ms = from.timings().decode_ms();
  num_preemptions = from.timings().num_preemptions();
  error = from.error();
  SLUICE_TRY(error_code, to_enum(from.error_code(), ErrorCode::kInternal, "an unknown error"));
  retry_after_s = from.retry_after_s();
  error_param = from.error_param();
  for (const wire::PromptLogprob& item : from.prompt_logprobs()) {
    auto& [scored, scored_logprob, rank, top] = prompt_logprobs.emplace_back();
    scored = item.token();
    scored_logprob = item.logprob();
    rank = item.rank();
    top = decode(item.top_logprobs());
  }
  if (from.has_offer()) {
    SLUICE_TRY(HandoffOffer made, decode(from.offer()));
    offer = std::make_shared<const HandoffOffer>(std::move(made));
  }
  pooled.assign(from.pooled().begin(), from.pooled().end());
  return to;
}

void encode(const Error& from, wire::Refusal& to) {
  const auto& [code, message, param, machine_code, retry_after_s] = from;
  to.set_code(static_cast<uint32_t>(code));
  to.set_message(message);
  to.set_param(param);
  to.set_machine_code(machine_code);
  to.set_retry_after_s(retry_after_s);
}

Error decode(const wire::Refusal& from) {
  Error to;
  auto& [code, message, param, machine_code, retry_after_s] = to;
  code =
      to_enum(from.code(), ErrorCode::kInternal, "an unknown error").value_or(ErrorCode::kInternal);
  message = from.message();
  param = from.param();
  machine_code = from.machine_code();
  retry_after_s = from.retry_after_s();
  return to;
}

void encode(const ModelInfo& from, wire::Description& to) {
  const auto& [architecture,
               path,
               chat_template,
               vocab_size,
               max_model_len,
               num_parameters,
               system_fingerprint,
               backend,
               memory_plan,
               sampling,
               max_output_tokens,
               handoff,
               pooling] = from;
  to.set_architecture(architecture);
  to.set_path(path);
  to.set_chat_template(chat_template);
  to.set_vocab_size(vocab_size);
  to.set_max_model_len(max_model_len);
  to.set_num_parameters(num_parameters);
  to.set_system_fingerprint(system_fingerprint);
  to.set_backend(backend);
  to.set_memory_plan(memory_plan);
  encode(sampling, *to.mutable_sampling());
  to.set_max_output_tokens(max_output_tokens);
  if (handoff) encode(*handoff, *to.mutable_handoff());
  if (pooling) encode(*pooling, *to.mutable_pooling());
}

Expected<ModelInfo> decode(const wire::Description& from) {
  ModelInfo to;
  auto& [architecture,
         path,
         chat_template,
         vocab_size,
         max_model_len,
         num_parameters,
         system_fingerprint,
         backend,
         memory_plan,
         sampling,
         max_output_tokens,
         handoff,
         pooling] = to;
  architecture = from.architecture();
  path = from.path();
  chat_template = from.chat_template();
  vocab_size = from.vocab_size();
  max_model_len = from.max_model_len();
  num_parameters = from.num_parameters();
  system_fingerprint = from.system_fingerprint();
  backend = from.backend();
  memory_plan = from.memory_plan();
  sampling = decode(from.sampling());
  max_output_tokens = from.max_output_tokens();
  if (from.has_handoff()) handoff = decode(from.handoff());
  if (from.has_pooling()) {
    SLUICE_TRY(pooling, decode(from.pooling()));
  }
  if (vocab_size < 1 || max_model_len < 1 || system_fingerprint.empty()) {
    return invalid("a model that cannot be");
  }
  return to;
}

}  // namespace sluice
