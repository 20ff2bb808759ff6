// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/token_pipeline.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/tokenizer/pipeline/end_tokens.h"
#include "engine/tokenizer/tables/token_table.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using LiteralRanges = std::span<const TextRange>;

class TokenPipeline final : public Tokenizer {
 public:
  explicit TokenPipeline(TokenizerParts parts)
      : parts_(std::move(parts)),
        pretokenizer_(std::move(parts_.stages), parts_.sees_spelling),
        names_(parts_.names) {}

  // Fills the tables; call once, before anything else.
  Expected<void> build();

  Expected<void> encode(std::string_view text,
                        SpecialText special,
                        std::vector<TokenId>& out) const override {
    const TextRange whole{0, text.size()};
    const bool is_literal = special == SpecialText::kText;
    return encode_marked(text, is_literal ? LiteralRanges(&whole, 1) : LiteralRanges(), out);
  }

  Expected<void> encode_marked(std::string_view text,
                               LiteralRanges literal_ranges,
                               std::vector<TokenId>& out) const override;

  [[nodiscard]] std::string_view token_bytes(TokenId id) const override {
    return is_token(id) ? std::string_view(parts_.bytes[id]) : std::string_view();
  }

  [[nodiscard]] std::string_view token_name(TokenId id) const override {
    return is_token(id) ? std::string_view(parts_.names[id]) : std::string_view();
  }

  [[nodiscard]] bool is_special(TokenId id) const override {
    return is_token(id) && parts_.special[id];
  }

  [[nodiscard]] TokenId find_token(std::string_view name) const override {
    return names_.find(name);
  }

  [[nodiscard]] int32_t vocab_size() const override {
    return static_cast<int32_t>(parts_.names.size());
  }

  [[nodiscard]] TokenId bos() const override { return parts_.bos; }

  [[nodiscard]] bool add_bos() const override {
    return !parts_.prefix.empty() && parts_.prefix.front() == parts_.bos;
  }

  [[nodiscard]] std::vector<TokenId> prefix_tokens() const override { return parts_.prefix; }

  [[nodiscard]] std::vector<TokenId> suffix_tokens() const override { return parts_.suffix; }

  [[nodiscard]] std::vector<TokenId> between_tokens() const override { return parts_.between; }

  [[nodiscard]] bool strips_first_space() const override { return parts_.strips_first_space; }

  [[nodiscard]] const std::vector<TokenId>& end_tokens() const override { return end_tokens_; }

  Expected<void> replace_more_ends(std::vector<TokenId> ids) override;

  [[nodiscard]] const std::vector<NamedToken>& named_tokens() const override {
    return parts_.named;
  }

 private:
  // Working state of one call of encode().
  struct Job {
    Job(size_t text_bytes, std::vector<TokenId>& tokens) : model(text_bytes), out(tokens) {}

    ModelScratch model;
    Pretokenizer::Scratch pieces;
    std::string normalized;
    std::vector<TextRange> moved_ranges;
    std::vector<TokenId>& out;
  };

  void encode_segment(std::string_view text,
                      size_t offset,
                      LiteralRanges literal_ranges,
                      Job& job) const;
  void encode_plain(std::string_view text, bool at_start, Job& job) const;
  void move_ranges(std::string_view text,
                   size_t offset,
                   LiteralRanges literal_ranges,
                   Job& job) const;

  void collect_ends();

  [[nodiscard]] bool is_token(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < parts_.names.size();
  }

  TokenizerParts parts_;
  Pretokenizer pretokenizer_;
  TokenTable names_;
  SpecialTokens raw_tokens_;         // found in the original text
  SpecialTokens normalized_tokens_;  // found in normalized text between those
  std::vector<TokenId> end_tokens_;
};

Expected<void> TokenPipeline::build() {
  // Names mostly mean special tokens: these take precedence over others with their text.
  for (const bool special : {true, false}) {
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      if (parts_.names[id].empty() || parts_.special[id] != special) continue;
      names_.insert(static_cast<TokenId>(id));
    }
  }
  std::unordered_set<std::string_view> known;
  for (const AddedToken& added : parts_.added) {
    if (added.content.empty()) continue;
    if (added.content.size() > SpecialTokens::kMaxNameBytes) {
      return make_error(ErrorCode::kDataLoss,
                        "tokenizer vocabulary: special token " + std::to_string(added.id) +
                            " has " + std::to_string(added.content.size()) + " bytes, at most " +
                            std::to_string(SpecialTokens::kMaxNameBytes) + " are allowed");
    }
    if (!known.insert(added.content).second) {
      return make_error(
          ErrorCode::kDataLoss,
          "tokenizer vocabulary: special token \"" + added.content + "\" is there twice");
    }
    SpecialTokens& tokens = added.in_normalized ? normalized_tokens_ : raw_tokens_;
    tokens.add(added.content, added.id, added.flags);
  }
  for (const auto& [name, id] : {std::pair("bos_token", parts_.bos), {"eos_token", parts_.eos}}) {
    if (is_token(id)) parts_.named.push_back({name, parts_.names[id]});
  }
  collect_ends();
  return {};
}

Expected<void> TokenPipeline::replace_more_ends(std::vector<TokenId> ids) {
  for (const TokenId id : ids) {
    if (is_token(id)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "eos_token_id: found " + std::to_string(id) + ", expected an id below " +
                          std::to_string(vocab_size()));
  }
  parts_.more_ends = std::move(ids);
  collect_ends();
  return {};
}

void TokenPipeline::collect_ends() {
  Vocabulary ends;
  ends.eos = parts_.eos;
  ends.eot = parts_.eot;
  ends.eom = parts_.eom;
  end_tokens_ = find_end_tokens(ends, *this);
  for (const std::vector<TokenId>* ids : {&parts_.own_ends, &parts_.more_ends}) {
    end_tokens_.insert(end_tokens_.end(), ids->begin(), ids->end());
  }
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
}

bool is_word_character(std::string_view text, size_t position) {
  static const Regex kWord = Regex::compile("[" + std::string(kRustWordClass) + "]").value();
  Regex::Scanner scanner;
  Regex::Range found;
  return kWord.find(text.substr(position), 0, scanner, found) && found.begin == 0;
}

// Whether a word character precedes `begin` or follows `end`.
bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (end < text.size()) {
    const Utf8Part next = next_utf8_part(text, end);
    if (next.kind == Utf8Kind::kCharacter && is_word_character(text.substr(end, next.length), 0)) {
      return true;
    }
  }
  for (size_t length = 1; length <= 4 && length <= begin; ++length) {
    const Utf8Part part = next_utf8_part(text.substr(0, begin), begin - length);
    if (part.kind != Utf8Kind::kCharacter || part.length != length) continue;
    return is_word_character(text.substr(begin - length, length), 0);
  }
  return false;
}

// Calls on_text(begin, end) for the text between tokens and on_token(id) for the tokens.
template <typename OnText, typename OnToken>
void find_tokens(const SpecialTokens& tokens,
                 std::string_view text,
                 size_t offset,
                 LiteralRanges literal_ranges,
                 OnText on_text,
                 OnToken on_token) {
  size_t plain_begin = 0;
  size_t spaces_end = 0;  // end of the spaces stripped last: each is examined once
  size_t range_idx = 0;
  for (size_t position = tokens.next_candidate(text, 0); position < text.size();
       position = tokens.next_candidate(text, position)) {
    while (range_idx < literal_ranges.size() &&
           (literal_ranges[range_idx].end <= position + offset ||
            literal_ranges[range_idx].begin >= literal_ranges[range_idx].end)) {
      ++range_idx;
    }
    // A control token must end before the next literal range; inside a range none fits.
    size_t control_end = text.size();
    if (range_idx != literal_ranges.size()) {
      const size_t begin = literal_ranges[range_idx].begin;
      control_end = begin > offset ? begin - offset : 0;
    }
    SpecialTokens::Match match = tokens.match_at(text, position, control_end);
    if (match.token == kInvalidToken) {
      ++position;
      continue;
    }
    if (match.flags.single_word && touches_word(text, match.begin, match.end)) {
      position = match.end;
      continue;
    }
    // Tokens made of spaces may also be found among spaces that the previous token stripped.
    position = match.end;
    if (match.flags.strips_left && match.begin > plain_begin) {
      match.begin -= trailing_space_bytes(text.substr(plain_begin, match.begin - plain_begin));
    }
    if (match.flags.strips_right) {
      if (match.end >= spaces_end) {
        spaces_end = match.end + leading_space_bytes(text.substr(match.end));
      }
      match.end = spaces_end;
    }
    if (match.begin > plain_begin) on_text(plain_begin, match.begin);
    on_token(match.token);
    plain_begin = match.end;
  }
  if (plain_begin < text.size()) on_text(plain_begin, text.size());
}

Expected<void> TokenPipeline::encode_marked(std::string_view text,
                                            LiteralRanges literal_ranges,
                                            std::vector<TokenId>& out) const {
  Job job(text.size(), out);
  job.pieces.scanner.limit_time(text.size());
  LiteralRanges ahead = literal_ranges;  // that end behind the segment's begin
  find_tokens(
      raw_tokens_,
      text,
      0,
      literal_ranges,
      [&](size_t begin, size_t end) {
        while (!ahead.empty() && ahead.front().end <= begin) ahead = ahead.subspan(1);
        encode_segment(text.substr(begin, end - begin), begin, ahead, job);
      },
      [&](TokenId token) { out.push_back(token); });
  const std::string_view slow = job.pieces.scanner.ended_by();
  if (slow.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "The text of " + std::to_string(text.size()) +
                        " bytes takes too long to cut into tokens by the regular expression \"" +
                        std::string(slow) + "\" of the model's tokenizer; please change it.");
}

void TokenPipeline::encode_segment(std::string_view text,
                                   size_t offset,
                                   LiteralRanges literal_ranges,
                                   Job& job) const {
  const bool at_start = offset == 0;
  if (!parts_.normalizer.empty()) {
    job.normalized.clear();
    if (parts_.normalizer.normalize(text, job.pieces.scanner, job.normalized)) {
      const std::string_view stored = job.pieces.arena.store(job.normalized);
      if (!normalized_tokens_.empty() && !literal_ranges.empty()) {
        move_ranges(text, offset, literal_ranges, job);
        literal_ranges = job.moved_ranges;
        offset = 0;
      }
      text = stored;
    }
  }
  if (normalized_tokens_.empty()) {
    encode_plain(text, at_start, job);
    return;
  }
  find_tokens(
      normalized_tokens_,
      text,
      offset,
      literal_ranges,
      [&](size_t begin, size_t end) {
        encode_plain(text.substr(begin, end - begin), at_start && begin == 0, job);
      },
      [&](TokenId token) { job.out.push_back(token); });
}

// Maps the literal ranges to the normalized form of `text`, which begins at `offset`: each border
// moves to the end of the separately normalized part before it.
void TokenPipeline::move_ranges(std::string_view text,
                                size_t offset,
                                LiteralRanges literal_ranges,
                                Job& job) const {
  job.moved_ranges.clear();
  std::string part;
  size_t source = 0;
  size_t target = 0;
  const auto move_to = [&](size_t border) {
    border = std::clamp(border, offset + source, offset + text.size()) - offset;
    const std::string_view piece = text.substr(source, border - source);
    part.clear();
    const bool changed =
        parts_.normalizer.normalize(piece, job.pieces.scanner, part, /*continues=*/source > 0);
    target += changed ? part.size() : piece.size();
    source = border;
    return target;
  };
  for (const TextRange& range : literal_ranges) {
    if (range.end <= offset || range.begin >= range.end) continue;
    if (range.begin >= offset + text.size()) break;
    const size_t begin = move_to(range.begin);
    job.moved_ranges.push_back({begin, move_to(range.end)});
  }
}

void TokenPipeline::encode_plain(std::string_view text, bool at_start, Job& job) const {
  for (size_t position = 0; position < text.size();) {
    const size_t invalid = find_invalid_utf8(text, position);
    pretokenizer_.split(
        text.substr(position, invalid - position), at_start && position == 0, job.pieces);
    if (!job.pieces.scanner.ended_by().empty()) return;
    for (const std::string_view piece : job.pieces.pieces) {
      parts_.model->encode_piece(piece, job.model, job.out);
    }
    // A run of invalid bytes is one piece.
    position = skip_invalid_utf8(text, invalid);
    if (position == invalid) continue;
    std::string_view broken = text.substr(invalid, position - invalid);
    if (parts_.sees_spelling) {
      std::string spelled;
      for (const char c : broken) spelled += spell_byte(static_cast<uint8_t>(c));
      broken = job.pieces.arena.store(spelled);
    }
    parts_.model->encode_piece(broken, job.model, job.out);
  }
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> create_pipeline(TokenizerParts parts) {
  CHECK(parts.model != nullptr && parts.names.size() == parts.bytes.size() &&
        parts.names.size() == parts.special.size());
  auto tokenizer = std::make_unique<TokenPipeline>(std::move(parts));
  SLUICE_TRY_VOID(tokenizer->build());
  return tokenizer;
}

std::string byte_token_name(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

int byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
  int byte = 0;
  for (const char c : name.substr(3, 2)) {
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_upper = c >= 'A' && c <= 'F';
    const bool is_lower = c >= 'a' && c <= 'f';
    if (!is_digit && !is_upper && !is_lower) return -1;
    byte = byte * 16 + (is_digit ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return byte;
}

}  // namespace sluice
