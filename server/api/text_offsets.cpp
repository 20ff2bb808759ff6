// SPDX-License-Identifier: Apache-2.0
#include "server/api/text_offsets.h"

#include <algorithm>
#include <string>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

// How far to look for the place where two texts agree again, and how many characters say so.
constexpr size_t kReach = 8;
constexpr size_t kAgreement = 2;
// Spaces that a control token may have taken, on its way to its name.
constexpr size_t kNameReach = 64;

using Characters = std::vector<std::string_view>;

Characters split(std::string_view text) {
  Characters characters;
  for (size_t at = 0; at < text.size();) {
    const size_t length = next_utf8_part(text, at).length;
    characters.push_back(text.substr(at, length));
    at += length;
  }
  return characters;
}

bool is_space(std::string_view character) {
  return character.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

size_t count_spaces(std::span<const std::string_view> characters) {
  return static_cast<size_t>(std::ranges::find_if_not(characters, is_space) - characters.begin());
}

// Whether both begin with the same characters, or end together before there are enough of them.
bool agree(std::span<const std::string_view> a, std::span<const std::string_view> b) {
  if (a.size() < kAgreement || b.size() < kAgreement) return std::ranges::equal(a, b);
  return std::ranges::equal(a.first(kAgreement), b.first(kAgreement));
}

// A text and the position that earlier tokens have reached in it.
class Walk {
 public:
  explicit Walk(std::string_view text) : text_(split(text)) {}

  [[nodiscard]] int64_t position() const { return static_cast<int64_t>(at_); }

  // Whether the text continues with `name`, perhaps after spaces; if so, moves past it.
  bool take_name(std::string_view name);

  // The positions of the characters that tokens spell, and that of the end.
  std::vector<int64_t> take(const Characters& spelled);

 private:
  [[nodiscard]] std::span<const std::string_view> rest() const {
    return std::span(text_).subspan(at_);
  }

  Characters text_;
  size_t at_ = 0;
};

bool Walk::take_name(std::string_view name) {
  const Characters wanted = split(name);
  const auto begins_at = [&](size_t skipped) {
    const auto from = rest().subspan(skipped);
    return from.size() >= wanted.size() && std::ranges::equal(from.first(wanted.size()), wanted);
  };
  const size_t spaces = count_spaces(rest().first(std::min(rest().size(), kNameReach)));
  for (const size_t skipped : {size_t{0}, spaces}) {
    if (!begins_at(skipped)) continue;
    at_ += skipped + wanted.size();
    return true;
  }
  return false;
}

// How many characters of `a` and of `b` to leave out, few of them, for the two to agree.
std::pair<size_t, size_t> skip_difference(std::span<const std::string_view> a,
                                          std::span<const std::string_view> b) {
  if (is_space(a[0]) != is_space(b[0])) {
    return is_space(a[0]) ? std::pair(size_t{1}, size_t{0}) : std::pair(size_t{0}, size_t{1});
  }
  const auto agree_after = [&](size_t from_a, size_t from_b) {
    return from_a <= a.size() && from_b <= b.size() && agree(a.subspan(from_a), b.subspan(from_b));
  };
  for (size_t most = 1; most <= kReach; ++most) {
    for (size_t least = most + 1; least-- > 0;) {
      if (agree_after(most, least)) return {most, least};
      if (agree_after(least, most)) return {least, most};
    }
  }
  return {1, 1};
}

std::vector<int64_t> Walk::take(const Characters& spelled) {
  std::vector<int64_t> positions;
  positions.reserve(spelled.size() + 1);
  const auto spelled_rest = [&] { return std::span(spelled).subspan(positions.size()); };
  // Spaces that the tokenizer put in front precede the text's own.
  const size_t own = count_spaces(rest());
  for (size_t more = count_spaces(spelled); more > own; --more) positions.push_back(position());
  while (!spelled_rest().empty()) {
    if (at_ == text_.size() || rest()[0] == spelled_rest()[0]) {
      positions.push_back(position());
      at_ += at_ == text_.size() ? 0 : 1;
      continue;
    }
    const auto [from_spelled, from_text] = skip_difference(spelled_rest(), rest());
    for (size_t i = 0; i < from_spelled; ++i) {
      positions.push_back(position() + static_cast<int64_t>(i * from_text / from_spelled));
    }
    at_ += from_text;
  }
  positions.push_back(position());
  return positions;
}

// Appends the offsets of tokens that are text, which `bytes` are all of, each beginning at one of
// `begins`.
void append_text(std::string_view bytes,
                 std::span<const size_t> begins,
                 Walk& walk,
                 std::vector<int64_t>& offsets) {
  const Characters spelled = split(bytes);
  const std::vector<int64_t> positions = walk.take(spelled);
  size_t num_complete = 0;
  size_t end = 0;  // of the next character that is not
  for (const size_t begin : begins) {
    while (num_complete < spelled.size() && end + spelled[num_complete].size() <= begin) {
      end += spelled[num_complete++].size();
    }
    offsets.push_back(positions[num_complete]);
  }
}

// How many of the tokens a text begins with were put before it: of equal ones the text has the last
// few, as many as it names.
size_t count_added(const Tokenizer& tokenizer, std::span<const TokenId> tokens, Walk walk) {
  if (tokens.empty() || !tokenizer.is_special(tokens[0])) return 0;
  size_t count = 1;
  while (count < tokens.size() && tokens[count] == tokens[0]) ++count;
  while (count > 0 && walk.take_name(tokenizer.token_bytes(tokens[0]))) --count;
  return count;
}

}  // namespace

std::vector<int64_t> text_offsets(const Tokenizer& tokenizer,
                                  std::span<const TokenId> tokens,
                                  std::string_view text) {
  Walk walk(text);
  std::vector<int64_t> offsets(count_added(tokenizer, tokens, walk), 0);
  std::string bytes;
  std::vector<size_t> begins;
  for (size_t i = offsets.size(); i < tokens.size();) {
    if (tokenizer.is_special(tokens[i])) {
      const int64_t before = walk.position();
      const std::string_view name = tokenizer.token_bytes(tokens[i]);
      const bool is_named = walk.take_name(name);
      offsets.push_back(is_named ? walk.position() - count_characters(name) : before);
      ++i;
      continue;
    }
    bytes.clear();
    begins.clear();
    for (; i < tokens.size() && !tokenizer.is_special(tokens[i]); ++i) {
      begins.push_back(bytes.size());
      bytes += tokenizer.token_bytes(tokens[i]);
    }
    append_text(bytes, begins, walk, offsets);
  }
  return offsets;
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += next_utf8_part(text, at).length) ++count;
  return count;
}

}  // namespace sluice
