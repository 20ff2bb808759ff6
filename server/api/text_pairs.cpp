// SPDX-License-Identifier: Apache-2.0
#include "server/api/text_pairs.h"

#include <string>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Ids = std::vector<TokenId>;

// The conversation by which Qwen3-Reranker was trained to answer "yes" or "no".
constexpr std::string_view kJudgeBefore =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: ";
constexpr std::string_view kJudgeBetween = "\n<Document>: ";
constexpr std::string_view kJudgeBehind =
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

// The whole conversation is tokenized as one text, so that tokens at its borders are the model's.
// Texts never become control tokens.
Ids encode_judgement(const Tokenizer& tokenizer,
                     std::string_view query,
                     std::string_view document) {
  std::string text(kJudgeBefore);
  std::vector<TextRange> literal;
  literal.push_back({text.size(), text.size() + query.size()});
  text += query;
  text += kJudgeBetween;
  literal.push_back({text.size(), text.size() + document.size()});
  text += document;
  text += kJudgeBehind;
  Ids ids;
  tokenizer.encode_marked(text, literal, ids);
  return ids;
}

tl::unexpected<Error> too_long(const InputRules& rules, size_t count) {
  return make_error(ErrorCode::kInvalidArgument,
                    "This model's maximum context length is " + std::to_string(rules.most) +
                        " tokens. However, a pair of texts has " + std::to_string(count) +
                        " tokens. Please shorten it, or send truncate_prompt_tokens.",
                    rules.param,
                    "context_length_exceeded");
}

// Cuts the document, as a text, until the conversation fits.
Expected<Ids> judge(const ValidationContext& context,
                    const InputRules& rules,
                    std::string_view query,
                    std::string_view document) {
  const auto most = static_cast<size_t>(rules.most);
  Ids ids = encode_judgement(context.tokenizer, query, document);
  if (ids.size() <= most) return ids;
  if (!rules.cuts) return too_long(rules, ids.size());
  Ids own;
  context.tokenizer.encode(document, SpecialText::kText, own);
  const size_t excess = ids.size() - most;
  if (excess >= own.size()) return too_long(rules, ids.size());
  // The conversation's end is kept: its tokens, after as much of the document as fits.
  Ids tail;
  context.tokenizer.encode(kJudgeBehind, SpecialText::kParse, tail);
  if (tail.size() + excess >= ids.size()) return too_long(rules, ids.size());
  const auto end = ids.end() - static_cast<ptrdiff_t>(tail.size());
  ids.erase(end - static_cast<ptrdiff_t>(excess), end);
  return ids;
}

}  // namespace

Expected<Ids> encode_pair(const ValidationContext& context,
                          const InputRules& rules,
                          std::string_view first,
                          std::string_view second,
                          int64_t index) {
  if (first.empty() || second.empty()) {
    return invalid("A text of a pair must not be empty" +
                       (index < 0 ? std::string() : ": number " + std::to_string(index)) + ".",
                   rules.param);
  }
  if (!context.model.pooling->label_tokens.empty()) return judge(context, rules, first, second);
  const Tokenizer& tokenizer = context.tokenizer;
  Ids ids = tokenizer.prefix_tokens();
  tokenizer.encode(first, SpecialText::kParse, ids);
  const Ids between = tokenizer.between_tokens();
  ids.insert(ids.end(), between.begin(), between.end());
  Ids document;
  tokenizer.encode(second, SpecialText::kParse, document);
  const Ids suffix = tokenizer.suffix_tokens();
  const auto most = static_cast<size_t>(rules.most);
  const size_t others = ids.size() + suffix.size();
  if (others + document.size() > most) {
    if (!rules.cuts || others >= most) return too_long(rules, others + document.size());
    document.resize(most - others);
  }
  document.insert(document.end(), suffix.begin(), suffix.end());
  if (context.model.pooling->has_segments) {
    for (TokenId& id : document) id += context.model.vocab_size;
  }
  ids.insert(ids.end(), document.begin(), document.end());
  return ids;
}

}  // namespace sluice
