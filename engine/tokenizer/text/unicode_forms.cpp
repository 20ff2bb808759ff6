// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/unicode_forms.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tables/pair_map.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/unicode_data.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

struct Symbol {
  uint32_t code = 0;
  uint32_t combining_class = 0;
};

std::vector<uint32_t> decode_codes(std::string_view base64) {
  const auto text = decode_base64(base64);
  CHECK(text.has_value());  // compiled-in tables
  std::vector<uint32_t> codes;
  for (size_t position = 0; position < text->size();) {
    const size_t length = next_utf8_part(*text, position).length;
    codes.push_back(decode_utf8(std::string_view(*text).substr(position, length)));
    position += length;
  }
  return codes;
}

// Maps a character to a string: records of kCanonicalDecompositions and similar tables.
class Mapping {
 public:
  explicit Mapping(std::string_view base64) : codes_(decode_codes(base64)) {
    for (size_t i = 0; i < codes_.size();) {
      const size_t end = static_cast<size_t>(
          std::find(codes_.begin() + static_cast<ptrdiff_t>(i) + 1, codes_.end(), 0U) -
          codes_.begin());
      index_.insert(codes_[i], (uint64_t{i + 1} << 32) | end);
      i = end + 1;
    }
  }

  // Returns false if `code` maps to itself.
  template <typename Use>
  bool visit(uint32_t code, Use use) const {
    const uint64_t range = index_.find(code);
    if (range == PairMap::kAbsent) return false;
    const size_t end = range & 0xFFFFFFFFU;
    for (size_t i = range >> 32; i < end; ++i) use(codes_[i]);
    return true;
  }

 private:
  std::vector<uint32_t> codes_;
  PairMap index_{4096};  // code -> begin << 32 | end
};

// A set of characters: records of kMarks and similar tables.
class CharacterSet {
 public:
  explicit CharacterSet(std::string_view base64) : borders_(decode_codes(base64)) {}

  [[nodiscard]] bool contains(uint32_t code) const {
    // Runs are [even, odd]: an odd number of borders precedes `code`, or `code` ends a run.
    const auto after = std::lower_bound(borders_.begin(), borders_.end(), code);
    return (after - borders_.begin()) % 2 == 1 || (after != borders_.end() && *after == code);
  }

 private:
  std::vector<uint32_t> borders_;  // first and last character of each run
};

const CharacterSet& characters(OmittedCharacters which) {
  static const CharacterSet kSets[] = {
      CharacterSet(kMarks), CharacterSet(kBertMarks), CharacterSet(kBertControls)};
  return kSets[static_cast<size_t>(which)];
}

struct Tables {
  Tables() {
    const auto classes = decode_codes(kCombiningClasses);
    for (size_t i = 0; i + 2 < classes.size(); i += 3) {
      for (uint32_t code = classes[i]; code <= classes[i + 1]; ++code) {
        combining_classes.insert(code, classes[i + 2]);
      }
    }
    const auto pairs = decode_codes(kCompositions);
    for (size_t i = 0; i + 2 < pairs.size(); i += 3) {
      compositions.insert((uint64_t{pairs[i]} << 32) | pairs[i + 1], pairs[i + 2]);
    }
  }

  Mapping canonical{kCanonicalDecompositions};
  Mapping compatibility{kCompatibilityDecompositions};
  PairMap combining_classes{1024};
  PairMap compositions{1024};
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

// Hangul syllables are composed by arithmetic (Unicode 3.12).
constexpr uint32_t kSyllables = 0xAC00;
constexpr uint32_t kLeads = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kTails = 0x11A7;  // one before the first tail
constexpr uint32_t kNumLeads = 19;
constexpr uint32_t kNumVowels = 21;
constexpr uint32_t kNumTails = 28;
constexpr uint32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

bool is_composing(UnicodeForm form) {
  return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
}

void decompose(std::string_view text, UnicodeForm form, std::vector<Symbol>& out) {
  const bool is_compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const Tables& data = tables();
  const auto add = [&](uint32_t code) {
    if (code < 0x300) {
      out.push_back({code, 0});
      return;
    }
    const uint64_t kind = data.combining_classes.find(code);
    out.push_back({code, kind == PairMap::kAbsent ? 0 : static_cast<uint32_t>(kind)});
  };
  for (size_t position = 0; position < text.size();) {
    if (static_cast<uint8_t>(text[position]) < 0x80) {
      out.push_back({static_cast<uint8_t>(text[position++]), 0});
      continue;
    }
    const size_t length = next_utf8_part(text, position).length;
    const uint32_t code = decode_utf8(text.substr(position, length));
    position += length;
    const uint32_t syllable = code - kSyllables;
    if (syllable < kNumSyllables) {
      add(kLeads + syllable / (kNumVowels * kNumTails));
      add(kVowels + syllable / kNumTails % kNumVowels);
      if (syllable % kNumTails != 0) add(kTails + syllable % kNumTails);
    } else if (!(is_compatible && data.compatibility.visit(code, add)) &&
               !data.canonical.visit(code, add)) {
      add(code);
    }
  }
}

// Sorts by class, stably (UAX #15's canonical ordering).
void sort_run(std::span<Symbol> run, std::vector<Symbol>& scratch) {
  constexpr size_t kShortRun = 32;
  constexpr size_t kNumClasses = 256;
  if (run.size() <= kShortRun) {
    for (size_t i = 1; i < run.size(); ++i) {
      const Symbol symbol = run[i];
      size_t hole = i;
      for (; hole > 0 && run[hole - 1].combining_class > symbol.combining_class; --hole) {
        run[hole] = run[hole - 1];
      }
      run[hole] = symbol;
    }
    return;
  }
  std::array<size_t, kNumClasses + 1> begins{};
  for (const Symbol& symbol : run) ++begins[symbol.combining_class + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  scratch.assign(run.begin(), run.end());
  for (const Symbol& symbol : scratch) run[begins[symbol.combining_class]++] = symbol;
}

void sort_marks(std::vector<Symbol>& symbols) {
  std::vector<Symbol> scratch;
  const auto is_mark = [](const Symbol& symbol) { return symbol.combining_class != 0; };
  for (auto begin = symbols.begin(); begin != symbols.end();) {
    begin = std::find_if(begin, symbols.end(), is_mark);
    const auto end = std::find_if_not(begin, symbols.end(), is_mark);
    sort_run({begin, end}, scratch);
    begin = end;
  }
}

// Returns 0 if the two do not compose.
uint32_t compose_pair(uint32_t first, uint32_t second) {
  if (first - kLeads < kNumLeads && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + second - kVowels) * kNumTails;
  }
  if (first - kSyllables < kNumSyllables && (first - kSyllables) % kNumTails == 0 &&
      second > kTails && second < kTails + kNumTails) {
    return first + second - kTails;
  }
  const uint64_t code = tables().compositions.find((uint64_t{first} << 32) | second);
  return code == PairMap::kAbsent ? 0 : static_cast<uint32_t>(code);
}

void compose(std::vector<Symbol>& symbols) {
  constexpr size_t kNone = ~size_t{0};
  size_t starter = kNone;
  size_t kept = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Symbol symbol = symbols[i];
    if (starter != kNone) {
      // A symbol is blocked by one of the same or a higher class, or a starter, in between.
      const bool is_next = kept == starter + 1;
      const bool is_blocked =
          !is_next && symbols[kept - 1].combining_class >= symbol.combining_class;
      const uint32_t composed =
          is_blocked || symbol.code < 0x300 ? 0 : compose_pair(symbols[starter].code, symbol.code);
      if (composed != 0) {
        symbols[starter].code = composed;
        continue;
      }
    }
    if (symbol.combining_class == 0) starter = kept;
    symbols[kept++] = symbol;
  }
  symbols.resize(kept);
}

size_t find_ascii(std::string_view text, size_t position) {
  while (position < text.size() && !is_ascii(text[position])) ++position;
  return position;
}

size_t find_other(std::string_view text, size_t position) {
  while (position < text.size() && is_ascii(text[position])) ++position;
  return position;
}

}  // namespace

bool is_surely_in_form(std::string_view text, UnicodeForm form) {
  // U+0300 begins with the byte CC: nothing below it composes. ASCII is never changed.
  const uint8_t limit = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  return std::all_of(
      text.begin(), text.end(), [=](char c) { return static_cast<uint8_t>(c) < limit; });
}

void append_unicode_form(std::string_view text, UnicodeForm form, std::string& out) {
  std::vector<Symbol> symbols;
  out.reserve(out.size() + text.size());
  for (size_t position = 0; position < text.size();) {
    // ASCII is unchanged and never composes to its left: the result for other characters depends on
    // one preceding ASCII character and on no following one.
    const size_t ascii_end = find_other(text, position);
    if (ascii_end == text.size()) {
      out += text.substr(position);
      return;
    }
    const size_t begin = ascii_end > position ? ascii_end - 1 : ascii_end;
    const size_t end = find_ascii(text, ascii_end);
    out += text.substr(position, begin - position);
    symbols.clear();
    decompose(text.substr(begin, end - begin), form, symbols);
    sort_marks(symbols);
    if (is_composing(form)) compose(symbols);
    for (const Symbol& symbol : symbols) append_utf8(symbol.code, out);
    position = end;
  }
}

void append_without(std::string_view text, OmittedCharacters omitted, std::string& out) {
  const CharacterSet& set = characters(omitted);
  for (size_t position = 0; position < text.size();) {
    const size_t length = next_utf8_part(text, position).length;
    const std::string_view character = text.substr(position, length);
    if (!set.contains(decode_utf8(character))) out += character;
    position += length;
  }
}

void append_lowercase(std::string_view text, std::string& out) {
  static const Mapping kMapping(kLowercase);
  out.reserve(out.size() + text.size());
  for (size_t position = 0; position < text.size();) {
    if (is_ascii(text[position])) {
      const char c = text[position++];
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
      continue;
    }
    const size_t length = next_utf8_part(text, position).length;
    const uint32_t code = decode_utf8(text.substr(position, length));
    if (!kMapping.visit(code, [&](uint32_t lower) { append_utf8(lower, out); })) {
      out += text.substr(position, length);
    }
    position += length;
  }
}

}  // namespace sluice
