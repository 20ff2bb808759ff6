// SPDX-License-Identifier: Apache-2.0
#include "server/api/text_pairs.h"

#include <string>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Ids = std::vector<TokenId>;

// Bytes of one query that may be tokenized for all its documents: seconds of an I/O thread.
constexpr size_t kMostRepeatedBytes = size_t{64} << 20;

// The conversation by which Qwen3-Reranker was trained to answer "yes" or "no".
constexpr std::string_view kJudgeBefore =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: ";
constexpr std::string_view kJudgeBetween = "\n<Document>: ";
constexpr std::string_view kJudgeBehind =
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

// A text with ranges in which nothing is a control token.
struct MarkedText {
  std::string text;
  std::vector<TextRange> literal;

  void add_literal(std::string_view more) {
    literal.push_back({text.size(), text.size() + more.size()});
    text += more;
  }

  [[nodiscard]] Expected<Ids> encode(const Tokenizer& tokenizer) const {
    Ids ids;
    SLUICE_TRY_VOID(tokenizer.encode_marked(text, literal, ids));
    return ids;
  }
};

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

// The whole conversation is tokenized as one text, so that tokens at its borders are the model's.
// Where it is too long, tokens of the document are left out, at its end or its beginning.
Expected<Ids> judge(const ValidationContext& context,
                    const InputRules& rules,
                    std::string_view query,
                    std::string_view document) {
  const Tokenizer& tokenizer = context.tokenizer;
  MarkedText whole{std::string(kJudgeBefore), {}};
  whole.add_literal(query);
  whole.text += kJudgeBetween;
  const MarkedText head = whole;
  whole.add_literal(document);
  whole.text += kJudgeBehind;
  SLUICE_TRY(Ids ids, whole.encode(tokenizer));
  const auto most = static_cast<size_t>(rules.most);
  if (ids.size() <= most) return ids;
  Ids tail;
  SLUICE_TRY_VOID(tokenizer.encode(kJudgeBehind, SpecialText::kParse, tail));
  const size_t excess = ids.size() - most;
  SLUICE_TRY(const Ids head_ids, head.encode(tokenizer));
  const size_t num_others = head_ids.size() + tail.size();
  if (!cuts_second(rules) || num_others + excess >= ids.size()) {
    return too_long(rules, ids.size(), num_others);
  }
  const size_t from =
      rules.keeps_end ? num_others - tail.size() : ids.size() - tail.size() - excess;
  const auto first = ids.begin() + static_cast<ptrdiff_t>(from);
  ids.erase(first, first + static_cast<ptrdiff_t>(excess));
  return ids;
}

}  // namespace

Expected<PairFront> pair_front(const ValidationContext& context,
                               const InputRules& rules,
                               std::string_view text,
                               size_t num_pairs) {
  PairFront front = {text};
  if (!context.model.pooling->label_tokens.empty()) {
    if (text.size() <= kMostRepeatedBytes / num_pairs) return front;
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
    return judge(context, rules, front.text, second);
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
