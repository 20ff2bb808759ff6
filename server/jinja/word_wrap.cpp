// SPDX-License-Identifier: Apache-2.0
// The wordwrap filter: Python's textwrap, line by line.
#include <algorithm>

#include "server/jinja/char_class.h"
#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"

namespace sluice::jinja {
namespace {

struct Options {
  size_t width = 79;
  bool break_long_words = true;
  bool break_on_hyphens = true;
  Text separator;
};

// One line of the input as characters.
struct Line {
  const Text& text;
  std::vector<char32_t> characters;
  std::vector<size_t> offsets;  // in bytes, one more than characters

  [[nodiscard]] char32_t at(size_t i) const { return i < characters.size() ? characters[i] : 0; }

  [[nodiscard]] size_t size() const { return characters.size(); }
};

// A run of characters [begin, end).
struct Chunk {
  size_t begin;
  size_t end;

  [[nodiscard]] size_t size() const { return end - begin; }
};

bool is_blank(char32_t c) { return c == ' ' || (c >= 9 && c <= 13); }

bool is_word(char32_t c) { return in_class(c, CharClass::kWord); }

bool is_letter(char32_t c) { return is_word(c) && !in_class(c, CharClass::kDecimal); }

bool is_word_punctuation(char32_t c) {
  return is_word(c) || (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) !=
                                        std::string_view::npos);
}

// An em-dash starts at `pos`: two hyphens or more between words.
size_t dash_end(const Line& line, size_t pos) {
  size_t end = pos;
  while (line.at(end) == '-' && end < line.size()) ++end;
  return end - pos >= 2 && end < line.size() && is_word(line.at(end)) ? end : pos;
}

// A hyphen ends just before `end` that joins the letters around it.
bool hyphen_breaks(const Line& line, size_t begin, size_t end) {
  if (end < begin + 2 || line.at(end - 1) != '-') return false;
  const bool two_letters = end >= 3 && is_letter(line.at(end - 2)) && is_letter(line.at(end - 3));
  const bool letter_dash = end >= 4 && is_word_punctuation(line.at(end - 2)) &&
                           line.at(end - 3) == '-' && is_letter(line.at(end - 4));
  if (!two_letters && !letter_dash) return false;
  if (!is_letter(line.at(end))) return false;
  return is_letter(line.at(end + 1)) || (line.at(end + 1) == '-' && is_letter(line.at(end + 2)));
}

size_t chunk_end(const Line& line, size_t begin, bool break_on_hyphens) {
  size_t end = begin;
  if (is_blank(line.at(begin))) {
    while (end < line.size() && is_blank(line.at(end))) ++end;
    return end;
  }
  if (break_on_hyphens && begin > 0 && is_word_punctuation(line.at(begin - 1))) {
    if (const size_t dash = dash_end(line, begin); dash > begin) return dash;
  }
  for (end = begin + 1; end < line.size(); ++end) {
    if (is_blank(line.at(end))) return end;
    if (!break_on_hyphens) continue;
    if (hyphen_breaks(line, begin, end)) return end;
    if (is_word_punctuation(line.at(end - 1)) && dash_end(line, end) > end) return end;
  }
  return end;
}

// How much of a word that is longer than a line goes into the room that is left.
size_t cut_word(const Line& line, const Chunk& chunk, size_t room, const Options& options) {
  if (!options.break_on_hyphens || chunk.size() <= room) return room;
  for (size_t hyphen = room; hyphen-- > 1;) {
    if (line.at(chunk.begin + hyphen) != '-') continue;
    for (size_t i = chunk.begin; i < chunk.begin + hyphen; ++i) {
      if (line.at(i) != '-') return hyphen + 1;
    }
    break;
  }
  return room;
}

class Wrapper {
 public:
  Wrapper(const Line& line, const Options& options, TextBuilder& out)
      : line_(line), options_(options), out_(out) {}

  void run() {
    std::vector<Chunk> chunks;
    for (size_t pos = 0; pos < line_.size(); pos = chunks.back().end) {
      chunks.push_back({pos, chunk_end(line_, pos, options_.break_on_hyphens)});
    }
    std::vector<Chunk> current;
    for (size_t next = 0; next < chunks.size() && !out_.overflowed();) {
      current.clear();
      size_t used = 0;
      // Blank at the start of a line goes, but on the first one it stays.
      if (!first_ && is_blank(line_.at(chunks[next].begin))) ++next;
      for (; next < chunks.size() && used + chunks[next].size() <= options_.width; ++next) {
        used += chunks[next].size();
        current.push_back(chunks[next]);
      }
      if (next < chunks.size() && chunks[next].size() > options_.width) {
        take_long_word(chunks[next], used, current);
        if (chunks[next].size() == 0) ++next;
      }
      if (!current.empty() && is_blank(line_.at(current.back().begin))) current.pop_back();
      write(current);
    }
  }

 private:
  void take_long_word(Chunk& chunk, size_t used, std::vector<Chunk>& current) const {
    const size_t room = options_.width - used;
    if (options_.break_long_words) {
      const size_t take = cut_word(line_, chunk, room, options_);
      current.push_back({chunk.begin, chunk.begin + take});
      chunk.begin += take;
    } else if (current.empty()) {
      current.push_back(chunk);
      chunk.begin = chunk.end;
    }
  }

  void write(const std::vector<Chunk>& current) {
    if (current.empty()) return;
    if (!first_) out_.append(options_.separator);
    first_ = false;
    out_.append(
        line_.text, line_.offsets[current.front().begin], line_.offsets[current.back().end]);
  }

  const Line& line_;
  const Options& options_;
  TextBuilder& out_;
  bool first_ = true;
};

Expected<Options> read_options(Runtime& runtime, const Bound& bound) {
  Options options;
  if (bound.has(0)) {
    SLUICE_TRY(const int64_t width, to_integer(runtime, bound[0], "width"));
    if (width <= 0) {
      return runtime.fail("invalid width " + std::to_string(width) + " (must be > 0)");
    }
    options.width = static_cast<size_t>(width);
  }
  options.break_long_words = bound.flag(1, true);
  options.break_on_hyphens = bound.flag(3, true);
  options.separator = Text("\n", Origin::kTemplate);
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    if (!bound[2].is(Kind::kString)) return runtime.fail("wordwrap: wrapstring must be a string");
    options.separator = bound[2].text();
  }
  return options;
}

}  // namespace

Result word_wrap(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime,
                  "wordwrap",
                  args,
                  {"width", "break_long_words", "wrapstring", "break_on_hyphens"}));
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (!self.is(Kind::kString)) return runtime.fail("wordwrap needs a string");
  SLUICE_TRY(const Options options, read_options(runtime, bound));
  SLUICE_TRY(const Value lines, find_method(self, "splitlines")->function(runtime, self, {}));
  TextBuilder out(runtime);
  bool first = true;
  for (const Value& source : lines.as<Sequence>().items) {
    if (!first) out.append(options.separator);
    first = false;
    Line line{source.text(), {}, {}};
    // A character takes 12 bytes here, and at most a few steps for each column it may start.
    SLUICE_TRY_VOID(runtime.reserve(static_cast<int64_t>(line.text.size()) * 12));
    SLUICE_TRY_VOID(runtime.charge(1 + static_cast<int64_t>(line.text.size() / 4)));
    for (size_t pos = 0; pos < line.text.size();) {
      const CodePoint point = decode_at(line.text.view(), pos);
      line.characters.push_back(point.value);
      line.offsets.push_back(pos);
      pos += point.size;
    }
    line.offsets.push_back(line.text.size());
    Wrapper(line, options, out).run();
  }
  return out.finish();
}

}  // namespace sluice::jinja
