// SPDX-License-Identifier: Apache-2.0
#include "server/api/pooled_inputs.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/core/config.h"
#include "server/api/request_validator.h"
#include "server/front/served_model.h"
#include "server/json/json_fields.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// Longest token of any vocabulary that is served; a longer text is known to be too long before it
// is tokenized.
constexpr int64_t kMaxTokenBytes = 1024;

std::string place_of(const InputRules& rules, int64_t index) {
  return index < 0 ? rules.param : rules.param + "[" + std::to_string(index) + "]";
}

Error too_long(const InputRules& rules, int64_t index, int64_t num_tokens) {
  return Error{ErrorCode::kInvalidArgument,
               "This model's maximum context length is " + std::to_string(rules.most) +
                   " tokens. However, " + place_of(rules, index) + " has at least " +
                   std::to_string(num_tokens) +
                   " tokens. " + std::string(kCutAdvice),
               rules.param,
               "context_length_exceeded"};
}

// Where a token is the score, the default prompt is a part of the conversation about a pair.
std::string usual_prompt(const PoolingInfo& info) {
  return info.label_tokens.empty() ? info.default_prompt : std::string();
}

// A string, or Jina's {"text": ...}; null: another value.
const std::string* text_in(const Json& value) {
  const Json* text = &value;
  if (value.is_object() && value.size() == 1) text = find_field(value, "text");
  return text == nullptr ? nullptr : text->get_ptr<const std::string*>();
}

Expected<Ids> check_ids(const ValidationContext& context,
                        const InputRules& rules,
                        const Json& list,
                        int64_t index) {
  const std::string place = place_of(rules, index);
  auto ids = to_token_ids(list, place, context.model.vocab_size);
  if (!ids) {
    Error error = ids.error();
    error.param = rules.param;
    return tl::unexpected(std::move(error));
  }
  if (ids->empty()) return invalid(place + " must not be empty.", rules.param);
  if (rules.cuts) cut_ids(rules, static_cast<size_t>(rules.most), *ids);
  const auto count = static_cast<int64_t>(ids->size());
  if (count > rules.most) return tl::unexpected(too_long(rules, index, count));
  return ids;
}

}  // namespace

void cut_ids(const InputRules& rules, size_t most, Ids& ids) {
  if (ids.size() <= most) return;
  if (rules.keeps_end) ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(most));
  ids.resize(most);
}

Expected<void> check_num_texts(const ValidationContext& context,
                               const std::string& param,
                               size_t count) {
  const auto most = static_cast<size_t>(context.config.max_client_batch_size);
  if (count >= 1 && count <= most) return {};
  return invalid(param + " must have 1 to " + std::to_string(most) +
                     " elements (--max-client-batch-size), got " + std::to_string(count) + ".",
                 param);
}

int64_t PooledRequest::num_tokens() const {
  int64_t sum = 0;
  for (const ValidRequest& request : requests) sum += static_cast<int64_t>(request.prompt.size());
  return sum;
}

Expected<PoolingInfo> pooling_of(const ValidationContext& context, PooledKind wanted) {
  const std::string name = context.model_names.front();
  const bool wants_vectors = wanted == PooledKind::kVectors || wanted == PooledKind::kTokens;
  if (!context.model.pooling) {
    constexpr std::string_view kVectors = "--convert embed makes vectors";
    constexpr std::string_view kScores = "--convert classify makes scores";
    std::string advice(wants_vectors ? kVectors : kScores);
    if (wanted == PooledKind::kAny) advice += ", one with " + std::string(kVectors);
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + name +
                          "` generates tokens and makes neither vectors nor scores; a server "
                          "started with " + advice + ".",
                      "model");
  }
  const PoolingInfo& info = *context.model.pooling;
  if (wants_vectors && info.is_classifier) {
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + name + "` makes scores and no vectors of texts.",
                      "model");
  }
  if (wanted == PooledKind::kVectors && info.type == PoolingType::kEvery) {
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + name +
                          "` makes a vector of each token and none of a text; /pooling has them, "
                          "and /score compares texts by them.",
                      "model");
  }
  if (wanted == PooledKind::kScores && !info.is_classifier) {
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + name + "` makes vectors of texts and no scores.",
                      "model");
  }
  return info;
}

Expected<TextSide> read_side(const Json& body) {
  const Json* const kind = find_field(body, "input_type");
  if (kind == nullptr) return TextSide::kAny;
  if (*kind == "query" || *kind == "search_query") return TextSide::kQuery;
  if (*kind == "document" || *kind == "search_document" || *kind == "passage") {
    return TextSide::kDocument;
  }
  return invalid("input_type must be \"query\" or \"document\" with this model, got " +
                     show_value(*kind) + ".",
                 "input_type");
}

// Texts are cut to the side's length, as where these models were trained.
void apply_side(const PoolingInfo& info, TextSide side, InputRules& rules) {
  if (side == TextSide::kAny) return;
  const TokenComparison& comparison = info.comparison;
  const ComparedSide& own = side == TextSide::kQuery ? comparison.query : comparison.document;
  rules.prompt = own.prompt;
  rules.marker = own.marker;
  if (own.max_tokens > 0 && own.max_tokens < rules.most) {
    rules.most = own.max_tokens;
    rules.cuts = true;
  }
  if (side != TextSide::kQuery) return;
  rules.expansion = comparison.expansion;
  rules.expanded_tokens = comparison.expanded_tokens;
}

void leave_out(const PoolingInfo& info, TextSide side, size_t index, PooledRequest& request) {
  const TokenComparison& comparison = info.comparison;
  const std::vector<TokenId>& skipped =
      side == TextSide::kQuery ? comparison.query.skipped : comparison.document.skipped;
  if (side == TextSide::kAny || skipped.empty()) return;
  request.left_out.resize(request.requests.size());
  const Ids& ids = request.requests[index].prompt;
  for (size_t row = 0; row < ids.size(); ++row) {
    if (!std::ranges::binary_search(skipped, ids[row])) continue;
    request.left_out[index].push_back(static_cast<int32_t>(row));
  }
}

Expected<std::string> read_prompt(const PoolingInfo& info, const Json& body, bool must_exist) {
  const Json* const named = find_field(body, "prompt_name");
  if (info.type == PoolingType::kEvery) {
    if (named == nullptr) return std::string();
    return invalid(
        "The model has no prompts by name; /pooling's input_type marks queries and documents.",
        "prompt_name");
  }
  const std::string otherwise = must_exist ? usual_prompt(info) : std::string();
  const Json* const kind = named != nullptr ? named : find_field(body, "input_type");
  if (kind == nullptr) return otherwise;
  const std::string param = named != nullptr ? "prompt_name" : "input_type";
  if (!kind->is_string()) {
    return invalid(param + " must be a string, got " + show_value(*kind) + ".", param);
  }
  std::vector<std::string> names = {kind->get<std::string>()};
  if (named == nullptr && names.front().starts_with("search_")) {
    names.push_back(names.front().substr(std::string_view("search_").size()));
  }
  if (named == nullptr && names.back() == "document") names.emplace_back("passage");
  if (named == nullptr && names.front() == "passage") names.emplace_back("document");
  for (const std::string& name : names) {
    const auto found = std::ranges::find(info.prompts, name, &NamedPrompt::name);
    if (found != info.prompts.end()) return found->text;
  }
  // Queries and documents of a model that has no prompt for them are texts like others.
  if (named == nullptr && (!must_exist || read_side(body))) return otherwise;
  std::string known;
  for (const NamedPrompt& prompt : info.prompts) known += " \"" + prompt.name + "\"";
  return invalid("The model has " + (known.empty() ? "no prompts" : "the prompts" + known) +
                     ", got " + show_value(*kind) + ".",
                 param);
}

Expected<void> read_cut_side(const Json& body, InputRules& rules) {
  const Json* const side = find_field(body, "truncate");
  if (side == nullptr) return {};
  if (side->is_boolean()) {
    rules.cuts = side->get<bool>();
    return {};
  }
  if (*side != "NONE" && *side != "START" && *side != "END") {
    return invalid("truncate must be true, false, NONE, START or END, got " + show_value(*side) + ".",
                   "truncate");
  }
  rules.cuts = *side != "NONE";
  rules.keeps_end = *side == "START";
  return {};
}

Expected<InputRules> read_input_rules(const ValidationContext& context,
                                      const PoolingInfo& info,
                                      const Json& body,
                                      std::string param) {
  InputRules rules;
  rules.most = info.max_tokens;
  rules.param = std::move(param);
  rules.cuts = context.config.auto_truncate;
  rules.prompt = usual_prompt(info);
  SLUICE_TRY(rules.adds_special_tokens, read_bool(body, "add_special_tokens", true));
  SLUICE_TRY_VOID(read_cut_side(body, rules));
  SLUICE_TRY(const auto most,
             read_integer(body, "truncate_prompt_tokens", -1, context.model.max_model_len));
  if (most && *most == 0) {
    return invalid("truncate_prompt_tokens must be -1 or at least 1, got 0.",
                   "truncate_prompt_tokens");
  }
  if (most) {
    rules.cuts = true;
    if (*most > 0) rules.most = std::min(rules.most, static_cast<int32_t>(*most));
  }
  for (const char* name : {"truncation_side", "truncation_direction"}) {
    const Json* const side = find_field(body, name);
    if (side == nullptr) continue;
    if (*side != "left" && *side != "right" && *side != "Left" && *side != "Right") {
      return invalid(std::string(name) + " must be \"left\" or \"right\", got " +
                         show_value(*side) + ".",
                     name);
    }
    rules.keeps_end = *side == "left" || *side == "Left";
  }
  return rules;
}

Expected<Ids> encode_input(const ValidationContext& context,
                           const InputRules& rules,
                           std::string_view text,
                           int64_t index) {
  if (text.empty() && !rules.takes_empty) {
    return invalid(place_of(rules, index) + " must not be empty.", rules.param);
  }
  const int64_t least = static_cast<int64_t>(text.size()) / kMaxTokenBytes;
  if (least > rules.most && !rules.cuts) return tl::unexpected(too_long(rules, index, least));
  const Tokenizer& tokenizer = context.tokenizer;
  Ids ids;
  if (rules.prompt.empty()) {
    SLUICE_TRY_VOID(tokenizer.encode(text, SpecialText::kParse, ids));
  } else {
    SLUICE_TRY_VOID(tokenizer.encode(rules.prompt + std::string(text), SpecialText::kParse, ids));
  }
  Ids prefix;
  Ids suffix;
  if (rules.adds_special_tokens) {
    prefix = tokenizer.prefix_tokens();
    suffix = tokenizer.suffix_tokens();
  }
  if (rules.marker != kInvalidToken) prefix.push_back(rules.marker);
  // The tokens that begin and end a text are kept when it is cut.
  const size_t num_special = prefix.size() + suffix.size();
  const auto most = static_cast<size_t>(rules.most);
  if (rules.cuts && ids.size() + num_special > most) {
    cut_ids(rules, most > num_special ? most - num_special : 0, ids);
  }
  ids.insert(ids.begin(), prefix.begin(), prefix.end());
  ids.insert(ids.end(), suffix.begin(), suffix.end());
  if (ids.size() > most && rules.cuts) ids.resize(most);
  if (ids.empty()) {
    return invalid(place_of(rules, index) + " has no tokens.", rules.param);
  }
  const auto count = static_cast<int64_t>(ids.size());
  if (count > rules.most) return tl::unexpected(too_long(rules, index, count));
  ids.resize(std::max(ids.size(), static_cast<size_t>(rules.expanded_tokens)), rules.expansion);
  return ids;
}

Expected<std::vector<Ids>> read_inputs(const ValidationContext& context,
                                       const InputRules& rules,
                                       const Json& value) {
  std::vector<Ids> prompts;
  if (value.is_string()) {
    SLUICE_TRY(Ids ids, encode_input(context, rules, value.get_ref<const std::string&>(), -1));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  if (!value.is_array() || value.empty()) {
    return invalid(rules.param +
                       " must be a string, a list of strings, a list of token ids or a list of "
                       "lists of token ids, and not empty.",
                   rules.param);
  }
  if (value.front().is_number()) {
    SLUICE_TRY(Ids ids, check_ids(context, rules, value, -1));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  SLUICE_TRY_VOID(check_num_texts(context, rules.param, value.size()));
  const bool are_texts = text_in(value.front()) != nullptr;
  for (size_t i = 0; i < value.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const std::string* const text = text_in(value[i]);
    const bool fits = are_texts ? text != nullptr : value[i].is_array();
    if (!fits) {
      return invalid(place_of(rules, index) + " must be " +
                         (are_texts ? "a string like" : "a list of token ids like") +
                         " the others, got " + show_value(value[i]) + ".",
                     rules.param);
    }
    SLUICE_TRY(Ids ids,
               are_texts ? encode_input(context, rules, *text, index)
                         : check_ids(context, rules, value[i], index));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

Expected<std::vector<std::vector<TokenId>>> read_texts(const ValidationContext& context,
                                                       const PoolingInfo& info,
                                                       Json& body) {
  SLUICE_TRY(InputRules rules, read_input_rules(context, info, body, "input"));
  SLUICE_TRY(rules.prompt, read_prompt(info, body));
  if (info.type == PoolingType::kEvery) {
    SLUICE_TRY(const TextSide side, read_side(body));
    apply_side(info, side, rules);
  }
  if (find_field(body, "messages") != nullptr) {
    if (find_field(body, "add_generation_prompt") == nullptr) body["add_generation_prompt"] = false;
    SLUICE_TRY(ChatPrompt prompt, chat_prompt(context, body));
    if (rules.cuts) cut_ids(rules, static_cast<size_t>(rules.most), prompt.ids);
    const auto count = static_cast<int64_t>(prompt.ids.size());
    if (count > rules.most) {
      return tl::unexpected(context_length_error(context, std::nullopt, count, "messages"));
    }
    return std::vector<Ids>(1, std::move(prompt.ids));
  }
  const Json* const input = find_field(body, "input");
  if (input == nullptr) return invalid("input is missing.", "input");
  return read_inputs(context, rules, *input);
}

Expected<PooledRequest> make_pooled_request(const ValidationContext& context,
                                            const Json& body,
                                            const PoolingParams& params,
                                            std::vector<Ids> prompts) {
  PooledRequest out;
  SLUICE_TRY(out.model, resolve_model(context.model_names, body));
  SLUICE_TRY(const auto priority,
             read_integer(body,
                          "priority",
                          std::numeric_limits<int32_t>::min(),
                          std::numeric_limits<int32_t>::max()));
  SLUICE_TRY(const uint64_t salt, read_cache_salt(context, body));
  out.served = context.served;
  out.requests.reserve(prompts.size());
  for (Ids& prompt : prompts) {
    ValidRequest& added = out.requests.emplace_back();
    added.prompt = std::move(prompt);
    added.pooling = params;
    added.sampling.max_tokens = 1;
    added.priority = static_cast<int32_t>(priority.value_or(0));
    added.tenant_salt = salt;
    added.arrival = context.arrival;
  }
  return out;
}

}  // namespace sluice
