// SPDX-License-Identifier: Apache-2.0
#include "server/api/text_pairs.h"

#include <algorithm>
#include <optional>
#include <string>

#include "server/json/json_fields.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Ids = std::vector<TokenId>;

// Bytes of one query that may be tokenized for all its documents: seconds of an I/O thread.
constexpr size_t kMostRepeatedBytes = size_t{64} << 20;

// `others`: tokens beside the second text's.
tl::unexpected<Error> too_long(const InputRules& rules, size_t count, size_t others) {
  const bool has_room = others < static_cast<size_t>(rules.most);
  return make_error(ErrorCode::kInvalidArgument,
                    "This model's maximum context length is " + std::to_string(rules.most) +
                        " tokens. However, a pair of texts has " + std::to_string(count) +
                        " tokens" +
                        (has_room ? ". " + std::string(kCutAdvice)
                                  : ", " + std::to_string(others) +
                                        " of them beside the second text, which alone is cut. "
                                        "Please shorten the first."),
                    rules.param,
                    "context_length_exceeded");
}

bool cuts_second(const InputRules& rules) { return rules.cuts || rules.cuts_documents; }

// Cuts a pair to `most` tokens as tokenizers do by "longest_first": the longer text alone, as long
// as it stays the longer one, then both to halves, of which the longer text's may have one more.
void cut_longest(const InputRules& rules, size_t most, Ids& first, Ids& second) {
  if (first.size() + second.size() <= most) return;
  const bool is_first_longer = first.size() > second.size();
  Ids& longer = is_first_longer ? first : second;
  Ids& shorter = is_first_longer ? second : first;
  cut_ids(rules, most / 2, shorter);
  cut_ids(rules, most - shorter.size(), longer);
}

// The parts of a conversation before and after the document.
struct Around {
  std::vector<RenderedSpan> head;
  std::vector<RenderedSpan> tail;
};

std::string_view without_outer_space(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

// None: the template changed the document, so that it is not found.
std::optional<Around> around(const std::vector<RenderedSpan>& spans, std::string_view document) {
  for (size_t i = spans.size(); i-- > 0;) {
    const std::string& text = spans[i].text;
    const size_t at = spans[i].from_template ? std::string::npos : text.rfind(document);
    if (at == std::string::npos) continue;
    Around found;
    const auto place = spans.begin() + static_cast<ptrdiff_t>(i);
    found.head.assign(spans.begin(), place);
    found.head.push_back({.text = text.substr(0, at), .from_template = false});
    found.tail.push_back({.text = text.substr(at + document.size()), .from_template = false});
    found.tail.insert(found.tail.end(), place + 1, spans.end());
    return found;
  }
  return std::nullopt;
}

// The whole conversation is tokenized as one text, so that tokens at its borders are the model's.
// Where it is too long, tokens of the document are left out, at its end or its beginning.
Expected<Ids> judge(const ValidationContext& context,
                    const InputRules& rules,
                    const PairFront& front,
                    std::string_view document) {
  const Tokenizer& tokenizer = context.tokenizer;
  SLUICE_TRY(const auto spans, judge_spans(context, front.form, front.text, document));
  Ids ids;
  SLUICE_TRY_VOID(encode_spans(tokenizer, spans, ids));
  const auto most = static_cast<size_t>(rules.most);
  if (ids.size() <= most) return ids;
  std::optional<Around> rest = around(spans, document);
  if (!rest) rest = around(spans, without_outer_space(document));  // a template may have cut it
  if (!rest) return too_long(rules, ids.size(), ids.size());
  Ids head;
  SLUICE_TRY_VOID(encode_spans(tokenizer, rest->head, head));
  Ids tail;
  SLUICE_TRY_VOID(encode_spans(tokenizer, rest->tail, tail));
  const size_t excess = ids.size() - most;
  const size_t num_others = head.size() + tail.size();
  if (!cuts_second(rules) || num_others + excess >= ids.size()) {
    return too_long(rules, ids.size(), num_others);
  }
  const size_t from = rules.keeps_end ? head.size() : ids.size() - tail.size() - excess;
  const auto first = ids.begin() + static_cast<ptrdiff_t>(from);
  ids.erase(first, first + static_cast<ptrdiff_t>(excess));
  return ids;
}

}  // namespace

Expected<PairFront> pair_front(const ValidationContext& context,
                               const InputRules& rules,
                               std::optional<JudgeForm>& form,
                               std::string_view text,
                               size_t num_pairs) {
  PairFront front = {text};
  if (!context.model.pooling->label_tokens.empty()) {
    if (text.size() <= kMostRepeatedBytes / num_pairs) {
      if (!form) {
        SLUICE_TRY(form, judge_form(context));
      }
      front.form = *form;
      return front;
    }
    return invalid("A query of " + std::to_string(text.size()) + " bytes for " +
                       std::to_string(num_pairs) + " documents would take too long; the product " +
                       "may be at most " + std::to_string(kMostRepeatedBytes) + ".",
                   rules.param);
  }
  SLUICE_TRY_VOID(context.tokenizer.encode(text, SpecialText::kParse, front.ids));
  return front;
}

Expected<Ids> encode_pair(const ValidationContext& context,
                          const InputRules& rules,
                          const PairFront& front,
                          std::string_view second,
                          int64_t index) {
  if (front.text.empty()) {
    return invalid("The first text of a pair must not be empty" +
                       (index < 0 ? std::string() : ": number " + std::to_string(index)) + ".",
                   rules.param);
  }
  if (!rules.adds_special_tokens) {
    return invalid("add_special_tokens must be true: special tokens part the texts of a pair.",
                   "add_special_tokens");
  }
  if (!context.model.pooling->label_tokens.empty()) {
    return judge(context, rules, front, second);
  }
  const Tokenizer& tokenizer = context.tokenizer;
  Ids query = front.ids;
  Ids document;
  SLUICE_TRY_VOID(tokenizer.encode(second, SpecialText::kParse, document));
  Ids ids = tokenizer.prefix_tokens();
  const Ids between = tokenizer.between_tokens();
  const Ids suffix = tokenizer.suffix_tokens();
  const auto most = static_cast<size_t>(rules.most);
  const size_t num_marks = ids.size() + between.size() + suffix.size();
  const size_t others = num_marks + query.size();
  if (others + document.size() > most) {
    const size_t kept = rules.cuts_documents && !rules.cuts ? others : num_marks;
    if (!cuts_second(rules) || kept >= most) {
      return too_long(rules, others + document.size(), kept);
    }
    if (rules.cuts) cut_longest(rules, most - num_marks, query, document);
    if (!rules.cuts) cut_ids(rules, most - others, document);
  }
  ids.insert(ids.end(), query.begin(), query.end());
  ids.insert(ids.end(), between.begin(), between.end());
  document.insert(document.end(), suffix.begin(), suffix.end());
  if (context.model.pooling->has_segments) {
    for (TokenId& id : document) id += context.model.vocab_size;
  }
  ids.insert(ids.end(), document.begin(), document.end());
  return ids;
}

}  // namespace sluice
