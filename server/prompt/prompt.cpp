// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/prompt.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "engine/tokenizer/detokenizer.h"
#include "server/jinja/text.h"
#include "server/json/json_fields.h"
#include "server/prompt/generic_tools.h"
#include "server/prompt/message_forms.h"
#include "server/prompt/messages.h"
#include "server/prompt/tool_list.h"
#include "server/prompt/typescript_tools.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Prompts = std::vector<std::vector<TokenId>>;

constexpr std::array<std::string_view, 7> kReservedVariables = {"messages",
                                                                "tools",
                                                                "documents",
                                                                "chat_template",
                                                                "add_generation_prompt",
                                                                "continue_final_message",
                                                                "tokenize"};

// Members of chat_template_kwargs: a template looks names up one by one.
constexpr size_t kMaxKwargs = 128;

// Longest token of any vocabulary that is served. A text longer than the context times this cannot
// fit, which is known before it is tokenized.
constexpr int64_t kMaxTokenBytes = 1024;

Expected<void> check_text_size(const ValidationContext& context,
                               size_t num_bytes,
                               const std::string& param) {
  const int64_t least_tokens = static_cast<int64_t>(num_bytes) / kMaxTokenBytes;
  if (least_tokens < context.model.max_model_len) return {};
  return tl::unexpected(context_length_error(context, std::nullopt, least_tokens, param));
}

// Returns the documents that a template may quote; null: there are none.
Expected<Json> read_documents(const Json& body) {
  const Json* documents = find_field(body, "documents");
  if (documents == nullptr) return Json(nullptr);
  const bool are_objects =
      documents->is_array() &&
      std::ranges::all_of(*documents, [](const Json& document) { return document.is_object(); });
  if (!are_objects) return invalid("documents must be an array of objects.", "documents");
  return *documents;
}

constexpr std::array<std::string_view, 7> kEfforts = {
    "none", "minimal", "low", "medium", "high", "xhigh", "max"};

// Templates know the switch by one name or the other.
void set_thinking(bool thinks, Json& variables) {
  variables["enable_thinking"] = thinks;
  variables["thinking"] = thinks;
}

Expected<void> add_effort(const Json& effort, const std::string& name, Json& variables) {
  const bool is_known =
      effort.is_string() && std::ranges::count(kEfforts, effort.get<std::string>()) > 0;
  if (!is_known) {
    return invalid(name + " must be one of none, minimal, low, medium, high, xhigh, max, got " +
                       show_value(effort) + ".",
                   name.substr(0, name.find('.')));
  }
  variables["reasoning_effort"] = effort;
  set_thinking(effort != "none", variables);
  return {};
}

// Whether the model is to think, by the names that other servers' clients use.
Expected<void> add_thinking(const Json& body, Json& variables) {
  if (const Json* reasoning = find_field(body, "reasoning")) {
    if (!reasoning->is_object()) return invalid("reasoning must be an object.", "reasoning");
    if (const Json* effort = find_field(*reasoning, "effort")) {
      SLUICE_TRY_VOID(add_effort(*effort, "reasoning.effort", variables));
    }
    if (find_field(*reasoning, "enabled") != nullptr) {
      SLUICE_TRY(const bool thinks, read_bool(*reasoning, "enabled", true));
      set_thinking(thinks, variables);
    }
  }
  if (const Json* thinking = find_field(body, "thinking")) {
    const std::string type = string_member(*thinking, "type");
    const bool is_known = thinking->is_boolean() || type == "enabled" || type == "disabled" ||
                          type == "adaptive" || type == "auto";
    if (!is_known) {
      return invalid("thinking must be a boolean or have type enabled or disabled.", "thinking");
    }
    set_thinking(thinking->is_boolean() ? thinking->get<bool>() : type != "disabled", variables);
  }
  if (find_field(body, "enable_thinking") != nullptr) {
    SLUICE_TRY(const bool thinks, read_bool(body, "enable_thinking", true));
    set_thinking(thinks, variables);
  }
  return {};
}

Expected<void> add_kwargs(const Json& body, Json& variables) {
  if (const Json* effort = find_field(body, "reasoning_effort")) {
    SLUICE_TRY_VOID(add_effort(*effort, "reasoning_effort", variables));
  }
  SLUICE_TRY_VOID(add_thinking(body, variables));
  const Json* kwargs = find_field(body, "chat_template_kwargs");
  if (kwargs == nullptr) return {};
  if (!kwargs->is_object()) {
    return invalid("chat_template_kwargs must be an object.", "chat_template_kwargs");
  }
  if (kwargs->size() > kMaxKwargs) {
    return invalid("chat_template_kwargs may have at most " + std::to_string(kMaxKwargs) +
                       " members, got " + std::to_string(kwargs->size()) + ".",
                   "chat_template_kwargs");
  }
  for (const auto& [name, value] : kwargs->items()) {
    // Texts of tokens count as the template's own text.
    if ((name.ends_with("_token") && value.is_string()) ||
        std::ranges::find(kReservedVariables, name) != kReservedVariables.end()) {
      return invalid("chat_template_kwargs must not set `" + name + "`.", "chat_template_kwargs");
    }
    variables[name] = value;
  }
  return {};
}

// Position of a mark in the last message's text: after its last character that is not white space,
// or after all of it and before a space, like transformers' own mark.
enum class MarkPlace : uint8_t { kAfterText, kAfterAll };

// The last message's text with a mark in it: the prompt ends at the rendered mark, with the white
// space that the template kept.
struct MarkedEnd {
  std::string mark;
  std::string text;      // without white space around it
  std::string trailing;  // white space after the mark
};

constexpr std::string_view kMark = "qzvxkj";

tl::unexpected<Error> no_final_text() {
  return invalid(
      "continue_final_message is set, but the final message's text does not appear in "
      "the rendered chat.",
      "continue_final_message");
}

// Returns a mark that the request does not hold. It has letters only: templates split at other
// characters.
std::string unused_mark(const Json& body, const Json& messages) {
  const auto text_of = [](const Json& json) {
    return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  };
  const std::string all = text_of(messages) + text_of(body);
  std::string mark(kMark);
  for (size_t at = all.find(kMark); at != std::string::npos; at = all.find(kMark, at + 1)) {
    const size_t behind = at + kMark.size();
    const size_t run = std::min(all.find_first_not_of('q', behind), all.size()) - behind;
    if (kMark.size() + run >= mark.size()) mark.assign(kMark).append(run + 1, 'q');
  }
  return mark;
}

Expected<MarkedEnd> mark_end(const Json& body, MarkPlace place, Json& messages) {
  Json* content = &messages.back()["content"];
  if (content->is_array()) {
    if (content->empty()) return no_final_text();
    content = &content->back()["text"];
  }
  if (!content->is_string()) return no_final_text();
  MarkedEnd end;
  end.mark = unused_mark(body, messages);
  const auto given = content->get<std::string>();
  const size_t size = jinja::rstrip_end(given);
  end.text = given.substr(0, size);
  end.text.erase(0, jinja::skip_space(end.text, 0));
  const bool is_after_all = place == MarkPlace::kAfterAll;
  end.trailing = is_after_all ? " " : given.substr(size);
  *content = (is_after_all ? given : given.substr(0, size)) + end.mark + end.trailing;
  return end;
}

// Ends the spans at the mark and returns up to `trailing.size()` characters of the text after it.
std::optional<std::string> cut_at_mark(const MarkedEnd& end, std::vector<RenderedSpan>& spans) {
  for (size_t i = spans.size(); i-- > 0;) {
    std::string& text = spans[i].text;
    const size_t at = spans[i].from_template ? std::string::npos : text.rfind(end.mark);
    if (at == std::string::npos) continue;
    std::string behind = text.substr(at + end.mark.size(), end.trailing.size());
    text.resize(at);
    spans.resize(i + 1);
    return behind;
  }
  return std::nullopt;
}

std::string text_of(const std::vector<RenderedSpan>& spans) {
  std::string text;
  for (const RenderedSpan& span : spans) text += span.text;
  return text;
}

// Cuts at a mark that directly follows the final text.
bool cut_after_text(const MarkedEnd& end, std::vector<RenderedSpan>& spans) {
  const auto behind = cut_at_mark(end, spans);
  if (!behind || !text_of(spans).ends_with(end.text)) return false;
  auto differs =
      static_cast<size_t>(std::ranges::mismatch(*behind, end.trailing).in1 - behind->begin());
  const auto continues = [&](size_t at) {
    return at < behind->size() && (static_cast<unsigned char>((*behind)[at]) & 0xC0U) == 0x80U;
  };
  while (continues(differs)) --differs;
  spans.back().text.append(*behind, 0, differs);
  return true;
}

// Cuts by the rule of transformers: the final text may be anywhere, and white space before the mark
// is dropped if the template dropped the space after it.
bool cut_after_all(const MarkedEnd& end, std::vector<RenderedSpan>& spans) {
  if (text_of(spans).find(end.text) == std::string::npos) return false;
  const auto behind = cut_at_mark(end, spans);
  if (!behind) return false;
  if (*behind == end.trailing) return true;
  while (!spans.empty()) {
    std::string& text = spans.back().text;
    text.resize(jinja::rstrip_end(text));
    if (!text.empty()) break;
    spans.pop_back();
  }
  return true;
}

Expected<std::vector<RenderedSpan>> render_chat(const ChatTemplate& chat, const Json& variables) {
  auto spans = chat.render(variables);
  if (spans) return spans;
  // The template's limits concern this request's size, not the server's load.
  return invalid("The chat template failed: " + spans.error().message, "messages");
}

// Renders with the mark after the text and, if the template separates them, once more with the mark
// after all.
Expected<std::vector<RenderedSpan>> render_continued(const ChatTemplate& chat,
                                                     const Json& body,
                                                     const Json& messages,
                                                     Json& variables) {
  for (const MarkPlace place : {MarkPlace::kAfterText, MarkPlace::kAfterAll}) {
    Json marked = messages;
    SLUICE_TRY(const MarkedEnd end, mark_end(body, place, marked));
    variables["messages"] = std::move(marked);
    SLUICE_TRY(auto spans, render_chat(chat, variables));
    const bool is_cut =
        place == MarkPlace::kAfterText ? cut_after_text(end, spans) : cut_after_all(end, spans);
    if (is_cut) return spans;
  }
  return no_final_text();
}

std::string text_after_inputs(const std::vector<RenderedSpan>& spans) {
  size_t begin = spans.size();
  while (begin > 0 && spans[begin - 1].from_template) --begin;
  std::string text;
  for (size_t i = begin; i < spans.size(); ++i) text += spans[i].text;
  return text;
}

// Returns the part of `rendered`, which ends inside the last message, that differs from the
// conversation rendered without that message.
std::string continued_turn(const ChatTemplate& chat,
                           const Json& messages,
                           std::string rendered,
                           Json& variables) {
  Json earlier = messages;
  earlier.erase(earlier.size() - 1);
  variables["messages"] = std::move(earlier);
  const auto without = chat.render_text(variables);
  if (!without) return rendered;
  const auto differs = std::ranges::mismatch(rendered, *without).in1;
  return rendered.substr(static_cast<size_t>(differs - rendered.begin()));
}

// The prompts of a completion, whether it has one or a list of them.
Json prompt_list(const Json& body) {
  const Json& prompt = body["prompt"];
  const bool is_single = prompt.is_string() || (!prompt.empty() && prompt[0].is_number());
  return is_single ? Json::array({prompt}) : prompt;
}

void append_suffix(const Tokenizer& tokenizer, std::vector<TokenId>& ids) {
  const std::vector<TokenId> suffix = tokenizer.suffix_tokens();
  ids.insert(ids.end(), suffix.begin(), suffix.end());
}

Expected<std::vector<TokenId>> encode_text(const ValidationContext& context,
                                           const std::string& text,
                                           bool add_special_tokens) {
  SLUICE_TRY_VOID(check_text_size(context, text.size(), "prompt"));
  std::vector<TokenId> ids;
  const Tokenizer& tokenizer = context.tokenizer;
  if (add_special_tokens) ids = tokenizer.prefix_tokens();
  SLUICE_TRY_VOID(tokenizer.encode(text, SpecialText::kParse, ids));
  if (add_special_tokens) append_suffix(tokenizer, ids);
  return ids;
}

}  // namespace

Error context_length_error(const ValidationContext& context,
                           std::optional<int64_t> limit,
                           int64_t prompt_tokens,
                           const std::string& param) {
  const std::string most = std::to_string(context.model.max_model_len);
  const std::string prompt = std::to_string(prompt_tokens);
  std::string message;
  if (context.dialect == Dialect::kMessages) {
    message = "prompt is too long: " + prompt + " tokens > " + most + " maximum";
  } else if (limit) {
    message = "This model's maximum context length is " + most +
              " tokens. However, you requested " + std::to_string(*limit) +
              " output tokens and your prompt contains at least " + prompt +
              " input tokens, for a total of at least " + std::to_string(*limit + prompt_tokens) +
              " tokens. Please reduce the length of the input prompt or the number of requested "
              "output tokens.";
  } else {
    message = "This model's maximum context length is " + most +
              " tokens. However, your prompt contains at least " + prompt +
              " input tokens, which leaves no room for the output. Please reduce the length of the "
              "input prompt.";
  }
  return Error{ErrorCode::kInvalidArgument, std::move(message), param, "context_length_exceeded"};
}

void add_special_token_names(const Tokenizer& tokenizer, Json& variables) {
  for (const auto& [name, text] : tokenizer.named_tokens()) {
    if (!variables.contains(name)) variables[name] = text;
  }
  // Templates print these variables without testing for them.
  for (const char* name : {"bos_token", "eos_token"}) {
    if (!variables.contains(name)) variables[name] = "";
  }
}

Expected<std::vector<bool>> truncate_prompts(const ValidationContext& context,
                                             const Json& body,
                                             int32_t reserved,
                                             Prompts& prompts) {
  const int64_t max_len = context.model.max_model_len;
  SLUICE_TRY(const auto given, read_integer(body, "truncate_prompt_tokens", -1, max_len));
  bool keep_end = true;
  if (const Json* side = find_field(body, "truncation_side")) {
    if (*side != "left" && *side != "right") {
      return invalid(
          "truncation_side must be \"left\" or \"right\", got " + show_value(*side) + ".",
          "truncation_side");
    }
    keep_end = *side == "left";
  }
  std::vector<bool> is_cut(prompts.size(), false);
  if (!given) return is_cut;
  if (*given == 0) {
    return invalid("truncate_prompt_tokens must be -1 or at least 1, got 0.",
                   "truncate_prompt_tokens");
  }
  const auto most =
      static_cast<size_t>(*given > 0 ? *given : std::max<int64_t>(max_len - reserved, 1));
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<TokenId>& prompt = prompts[i];
    is_cut[i] = prompt.size() > most;
    if (!is_cut[i]) continue;
    if (keep_end) prompt.erase(prompt.begin(), prompt.end() - static_cast<ptrdiff_t>(most));
    prompt.resize(most);
  }
  return is_cut;
}

Expected<void> encode_spans(const Tokenizer& tokenizer,
                            const std::vector<RenderedSpan>& spans,
                            std::vector<TokenId>& out) {
  std::string text;
  std::vector<TextRange> literal;
  for (const RenderedSpan& span : spans) {
    const size_t begin = text.size();
    text += span.text;
    if (span.from_template || span.text.empty()) continue;
    literal.push_back(TextRange{begin, text.size()});
  }
  return tokenizer.encode_marked(text, literal, out);
}

std::vector<std::string> prompt_texts(const Tokenizer& tokenizer,
                                      const Json& body,
                                      const Prompts& prompts,
                                      const std::vector<bool>& is_cut) {
  const Json list = prompt_list(body);
  std::vector<std::string> texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (list[i].is_string() && !is_cut[i]) {
      texts.push_back(list[i].get<std::string>());
      continue;
    }
    const bool has_bos = tokenizer.add_bos() && prompts[i].front() == tokenizer.bos();
    texts.push_back(decode_tokens(tokenizer, std::span(prompts[i]).subspan(has_bos ? 1 : 0)));
  }
  return texts;
}

Expected<ChatPrompt> chat_prompt(const ValidationContext& context, const Json& body) {
  if (!context.chat_template) return tl::unexpected(context.chat_template.error());
  const Json* given = find_field(body, "messages");
  const MessageForms& forms = context.chat_template->forms();
  const CallArgumentRules rules = {.max_depth = context.config.max_json_depth,
                                   .keeps_text = forms.text_arguments};
  SLUICE_TRY(Json messages, normal_messages(given != nullptr ? *given : Json(), rules));
  SLUICE_TRY(const bool continue_final, read_bool(body, "continue_final_message", false));
  SLUICE_TRY(const bool add_prompt, read_bool(body, "add_generation_prompt", !continue_final));
  SLUICE_TRY(const bool add_special_tokens, read_bool(body, "add_special_tokens", false));
  if (continue_final && add_prompt) {
    return invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                   "continue_final_message");
  }
  Json variables = Json::object();
  variables["messages"] = nullptr;
  SLUICE_TRY(Json tools, read_tool_list(context, body));
  if (context.describes_tools && !tools.is_null() && may_call(body)) {
    describe_tools(forms, tools, messages);
    tools = nullptr;
  } else if (forms.system_tools && !tools.is_null() && may_call(body)) {
    put_tools_into_system(forms, tools, messages);
  }
  if (context.sorts_tools) tools = with_sorted_keys(std::move(tools));
  variables["tools"] = std::move(tools);
  SLUICE_TRY(variables["documents"], read_documents(body));
  variables["add_generation_prompt"] = add_prompt;
  add_special_token_names(context.tokenizer, variables);
  SLUICE_TRY_VOID(add_kwargs(body, variables));
  if (forms.typescript_tools && !variables["tools"].is_null()) {
    if (auto text = typescript_of_tools(variables["tools"])) {
      variables["tools_ts_str"] = std::move(*text);
    }
  }
  fit_messages(forms_of_request(forms,
                                messages,
                                [&](Json fitted) {
                                  variables["messages"] = std::move(fitted);
                                  return context.chat_template->render_text(variables);
                                }),
               messages);
  const ChatTemplate& chat = *context.chat_template;
  std::vector<RenderedSpan> spans;
  ChatPrompt prompt;
  if (continue_final) {
    SLUICE_TRY(spans, render_continued(chat, body, messages, variables));
    prompt.tail = continued_turn(chat, messages, text_of(spans), variables);
  } else {
    variables["messages"] = std::move(messages);
    SLUICE_TRY(spans, render_chat(chat, variables));
    prompt.tail = text_after_inputs(spans);
  }
  size_t num_bytes = 0;
  for (const RenderedSpan& span : spans) num_bytes += span.text.size();
  SLUICE_TRY_VOID(check_text_size(context, num_bytes, "messages"));
  if (add_special_tokens) prompt.ids = context.tokenizer.prefix_tokens();
  SLUICE_TRY_VOID(encode_spans(context.tokenizer, spans, prompt.ids));
  if (add_special_tokens) append_suffix(context.tokenizer, prompt.ids);
  if (prompt.ids.empty()) return invalid("The rendered chat is empty.", "messages");
  return prompt;
}

Expected<Prompts> completion_prompts(const ValidationContext& context, const Json& body) {
  const Json* prompt = find_field(body, "prompt");
  SLUICE_TRY(const bool add_special_tokens, read_bool(body, "add_special_tokens", true));
  const auto wrong_type = [] {
    return invalid(
        "prompt must be a string, an array of strings, an array of token ids or an "
        "array of arrays of token ids, and not empty.",
        "prompt");
  };
  if (prompt == nullptr || (!prompt->is_string() && !prompt->is_array())) return wrong_type();
  const Json list = prompt_list(body);
  if (list.empty()) return wrong_type();
  Prompts prompts;
  for (const Json& item : list) {
    if (!item.is_string() && !item.is_array()) return wrong_type();
    auto ids = item.is_string()
                   ? encode_text(context, item.get_ref<const std::string&>(), add_special_tokens)
                   : to_token_ids(item, "prompt", context.model.vocab_size);
    if (!ids) return tl::unexpected(std::move(ids).error());
    if (ids->empty()) return invalid("prompt must have at least one token.", "prompt");
    prompts.push_back(std::move(*ids));
  }
  return prompts;
}

}  // namespace sluice
