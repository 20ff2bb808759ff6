// SPDX-License-Identifier: Apache-2.0
#include "server/api/choice_output.h"

#include <algorithm>
#include <utility>

namespace sluice {

ChoiceOutput::ChoiceOutput(const Tokenizer& tokenizer, const GenerationRequest& request)
    : tokenizer_(tokenizer), request_(request) {
  if (request.output_format == nullptr) {
    detokenizer_.emplace(tokenizer, request.stop, request.skip_special_tokens);
    return;
  }
  parser_.emplace(request.output_format,
                  request.tools.schemas,
                  request.prompt_tail,
                  ParserOptions{.parse_calls = request.tools.parses_calls,
                                .calls_end_reasoning = !request.tools.binds_calls,
                                .skip_special_tokens = request.skip_special_tokens});
  stops_.emplace(request.stop);
}

bool ChoiceOutput::may_call(const std::string& name) const {
  const auto& allowed = request_.tools.allowed;
  return allowed.empty() || std::ranges::find(allowed, name) != allowed.end();
}

ChoiceOutput::Ending ChoiceOutput::append(TokenId token, Pieces& pieces) {
  if (ended_) return {};
  ++num_tokens_;
  if (detokenizer_) {
    const Detokenizer::Result result = detokenizer_->append(token);
    append_text(pieces, PieceKind::kContent, -1, result.text);
    ended_ = result.matched_stop >= 0;
    return {.matched_stop = result.matched_stop};
  }
  const std::string_view bytes = tokenizer_.token_bytes(token);
  const bool is_special = tokenizer_.is_special(token);
  Pieces parsed;
  // A stop string that is the whole name of a hidden token is found at that token.
  if (is_special && request_.skip_special_tokens) {
    if (const int found = stops_->find_name(bytes, num_tokens_); found >= 0) {
      finish(FinishReason::kStop, pieces);
      if (request_.stop.include_in_output) append_text(pieces, PieceKind::kContent, -1, bytes);
      return {.matched_stop = found};
    }
  }
  parser_->feed(token, bytes, is_special, parsed);
  return pass(parsed, pieces);
}

void ChoiceOutput::finish(FinishReason reason, Pieces& pieces) {
  if (ended_) return;
  if (detokenizer_) {
    append_text(pieces, PieceKind::kContent, -1, detokenizer_->finish());
  } else {
    Pieces parsed;
    parser_->finish(reason, parsed);
    if (!pass(parsed, pieces).is_end()) {
      append_text(pieces, PieceKind::kContent, -1, stops_->release());
    }
  }
  ended_ = true;
}

int64_t ChoiceOutput::num_reasoning_tokens() const {
  return parser_ ? parser_->num_reasoning_tokens() : 0;
}

void ChoiceOutput::count(AnswerCounters& counters) const {
  const auto add = [](std::atomic<uint64_t>& counter, int64_t number) {
    counter.fetch_add(static_cast<uint64_t>(number), std::memory_order_relaxed);
  };
  add(counters.num_calls, num_closed_calls_);
  add(counters.num_cut_calls, num_calls_ - num_closed_calls_);
  add(counters.num_refused_calls, num_refused_calls_);
  add(counters.num_reasoning_tokens, num_reasoning_tokens());
}

ChoiceOutput::Ending ChoiceOutput::pass(const Pieces& parsed, Pieces& pieces) {
  for (const Piece& piece : parsed) {
    const Ending ending = pass_piece(piece, pieces);
    ended_ = ending.is_end();
    if (ended_) return ending;
  }
  return {};
}

ChoiceOutput::Ending ChoiceOutput::pass_piece(const Piece& piece, Pieces& pieces) {
  if (piece.kind == PieceKind::kContent) {
    const StopMatcher::Result result = stops_->append(piece.text, num_tokens_);
    append_text(pieces, PieceKind::kContent, -1, result.text);
    return {.matched_stop = result.matched_stop};
  }
  // No stop string reaches over another kind.
  append_text(pieces, PieceKind::kContent, -1, stops_->release());
  if (piece.kind == PieceKind::kReasoning) {
    if (request_.include_reasoning) append_text(pieces, piece.kind, -1, piece.text);
    return {};
  }
  if (piece.kind == PieceKind::kCallBegin) {
    drops_call_ = !may_call(piece.text);
    ++(drops_call_ ? num_refused_calls_ : num_calls_);
  }
  if (drops_call_) return {};
  // Numbers stay without gaps.
  const int32_t call_idx = num_calls_ - 1;
  if (piece.kind == PieceKind::kArguments) {
    append_text(pieces, piece.kind, call_idx, piece.text);
    return {};
  }
  pieces.push_back(piece);
  pieces.back().call_idx = call_idx;
  if (piece.kind != PieceKind::kCallEnd) return {};
  ++num_closed_calls_;
  return {.by_call = !request_.tools.may_call_several};
}

}  // namespace sluice
