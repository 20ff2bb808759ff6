// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/unicode_classes.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// White_Space of Unicode 16. PCRE2's own \s also takes U+180E, which lost that property in 6.3.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

constexpr std::string_view kHexDigits = "0-9A-Fa-f";  // Oniguruma's \\h

struct LaterCharacters {
  std::string_view escape;
  std::string_view ranges;
};

// Members in Unicode 16 that are unassigned in Unicode 14, the version of PCRE2 10.42. A newer
// PCRE2 knows them already and is unaffected.
constexpr LaterCharacters kLaterCharacters[] = {
    {"\\p{L}",
     "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}"
     "\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}"
     "\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}"
     "\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}"
     "\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}"
     "\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}"
     "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"\\p{N}",
     "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
     "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"
     "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"},
    {"\\p{P}",
     "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}"
     "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"},
    {"\\p{S}",
     "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}"
     "\\x{10d8e}-\\x{10d8f}\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}"
     "\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}"
     "\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}"
     "\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}"
     "\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}"
     "\\x{1fbcb}-\\x{1fbef}"},
    {"\\p{M}",
     "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"
     "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}"
     "\\x{113d2}\\x{113e1}-\\x{113e2}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}"
     "\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}"
     "\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"},
    {"\\p{Lu}", "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"},
    {"\\p{Ll}", "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"},
    {"\\p{Lm}",
     "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}"
     "\\x{1e4eb}"},
    {"\\p{Lo}",
     "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}"
     "\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}"
     "\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"
     "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"
     "\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}\\x{1b132}\\x{1b155}"
     "\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}"
     "\\x{31350}-\\x{323af}"},
    {"\\p{Nd}",
     "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
     "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}"
     "\\x{1e5f1}-\\x{1e5fa}"},
    {"\\p{No}", "\\x{1d2c0}-\\x{1d2d3}"},
    {"\\p{Mn}",
     "\\x{897}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"
     "\\x{113bb}-\\x{113c0}\\x{113ce}\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}"
     "\\x{11f00}-\\x{11f01}\\x{11f36}-\\x{11f3a}\\x{11f40}\\x{11f42}\\x{11f5a}\\x{13440}"
     "\\x{13447}-\\x{13455}\\x{1611e}-\\x{16129}\\x{1612d}-\\x{1612f}\\x{1e08f}"
     "\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"},
    {"\\p{Mc}",
     "\\x{cf3}\\x{113b8}-\\x{113ba}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}"
     "\\x{113cc}-\\x{113cd}\\x{113cf}\\x{1171e}\\x{11f03}\\x{11f34}-\\x{11f35}"
     "\\x{11f3e}-\\x{11f3f}\\x{11f41}\\x{1612a}-\\x{1612c}"},
    {"\\p{Po}",
     "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}"
     "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"},
    {"\\p{Pd}", "\\x{10d6e}"},
    {"\\p{Sm}", "\\x{10d8e}-\\x{10d8f}"},
    {"\\p{So}",
     "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}"
     "\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}\\x{1f774}-\\x{1f776}"
     "\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}"
     "\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}"
     "\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}"
     "\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}"},
    {"\\p{Cf}", "\\x{13439}-\\x{1343f}"},
    {"\\p{sc:Han}", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"\\p{sc:Hiragana}", "\\x{1b132}"},
    {"\\p{sc:Katakana}", "\\x{1b155}"},
    {"\\p{sc:Latin}", "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"\\p{sc:Cyrillic}", "\\x{1c89}-\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"\\p{sc:Arabic}", "\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
    {"\\p{sc:Common}",
     "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}"
     "\\x{1cc00}-\\x{1ccf9}\\x{1cd00}-\\x{1ceb3}\\x{1d2c0}-\\x{1d2d3}\\x{1f6dc}"
     "\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}"
     "\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}"
     "\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}"
     "\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}"
     "\\x{1fbcb}-\\x{1fbef}"},
};

std::string_view later_characters(std::string_view escape) {
  for (const LaterCharacters& row : kLaterCharacters) {
    if (row.escape == escape) return row.ranges;
  }
  return {};
}

// The classes of \\w, and letters by another property whose category is symbol.
constexpr std::string_view kWordClasses[] = {"\\p{L}", "\\p{M}", "\\p{Nd}"};
constexpr std::string_view kMoreWordCharacters =
    "\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
    "\\x{1f170}-\\x{1f189}";

// In Latin-1, a \\w outside brackets also takes the numbers that are not digits.
constexpr std::string_view kLatin1WordNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Scripts with "extension" characters of other scripts, which PCRE2 includes unless asked for the
// script itself.
constexpr std::string_view kScripts[] = {
    "Arabic",     "Armenian", "Bengali",   "Bopomofo",  "Cherokee", "Common",   "Cyrillic",
    "Devanagari", "Ethiopic", "Georgian",  "Greek",     "Gujarati", "Gurmukhi", "Han",
    "Hangul",     "Hebrew",   "Hiragana",  "Inherited", "Kannada",  "Katakana", "Khmer",
    "Lao",        "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",    "Sinhala",
    "Syriac",     "Tamil",    "Telugu",    "Thaana",    "Thai",     "Tibetan"};

// Rewrites \p{Han} as \p{sc:Han}, and \P likewise; other escapes are unchanged.
std::string with_script(std::string_view escape) {
  for (const std::string_view name : kScripts) {
    if (escape.size() < 4 || escape.substr(3) != std::string(name) + "}") continue;
    return std::string(escape.substr(0, 3)) + "sc:" + std::string(escape.substr(3));
  }
  return std::string(escape);
}

// Appends the members of a positive `escape` inside brackets.
void append_members(std::string_view escape, std::string& out) {
  if (escape == "\\s") {
    out += kSpaces;
    return;
  }
  if (escape == "\\w") {
    for (const std::string_view part : kWordClasses) append_members(part, out);
    out += kMoreWordCharacters;
    return;
  }
  const std::string exact = with_script(escape);
  out += exact;
  out += later_characters(exact);
}

// Returns the positive form of a negated escape; empty: `escape` is not negated.
std::string positive_of(std::string_view escape) {
  if (escape == "\\S") return "\\s";
  if (escape == "\\W") return "\\w";
  if (escape.starts_with("\\P{")) return "\\p{" + std::string(escape.substr(3));
  if (escape.starts_with("\\p{^")) return "\\p{" + std::string(escape.substr(4));
  return {};
}

bool is_class(std::string_view escape) {
  return escape == "\\s" || escape == "\\S" || escape == "\\w" || escape == "\\W" ||
         escape.starts_with("\\p{") || escape.starts_with("\\P{");
}

size_t escape_length(std::string_view pattern, size_t position) {
  const std::string_view start = pattern.substr(position, 3);
  if (start == "\\p{" || start == "\\P{" || start == "\\x{") {
    const size_t end = pattern.find('}', position);
    return (end == std::string_view::npos ? pattern.size() : end + 1) - position;
  }
  if (start.starts_with("\\u")) return std::min<size_t>(6, pattern.size() - position);
  return std::min<size_t>(2, pattern.size() - position);
}

// An Oniguruma set, which may contain sets and intersections, as a PCRE2 expression that matches
// one character.
struct Set {
  std::string members;              // inside brackets
  std::vector<std::string> others;  // each matches one more member

  [[nodiscard]] std::string atom(bool negated = false) const {
    if (others.empty()) return (negated ? "[^" : "[") + members + "]";
    std::string any = "(?:";
    if (!members.empty()) any += "[" + members + "]|";
    for (const std::string& other : others) any += other + "|";
    any.back() = ')';
    return negated ? "(?:(?!" + any + ")(?s:.))" : any;
  }
};

class Expansion {
 public:
  explicit Expansion(std::string_view pattern) : pattern_(pattern) {}

  Expected<std::string> run() {
    // This pattern by itself would search from each space of a run that text follows.
    if (pattern_ == "\\s+$")
      return std::string("(?<![" + std::string(kSpaces) + "])[" + std::string(kSpaces) + "]+$");
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        SLUICE_TRY(const std::string atom, read_escape());
        out_ += atom;
      } else if (pattern_[at_] == '[') {
        SLUICE_TRY(const std::string atom, read_set(0));
        out_ += atom;
      } else if (pattern_.substr(at_).starts_with("(?m")) {
        return refuse("(?m");
      } else {
        out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  static constexpr int kMaxLevels = 16;

  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& what) const {
    return make_error(ErrorCode::kUnsupported,
                      "regular expression \"" + std::string(pattern_.substr(0, 200)) +
                          "\": " + what + " is not supported");
  }

  // Returns the escape at at_ and moves at_ past it.
  Expected<std::string_view> next_escape() {
    const std::string_view escape = pattern_.substr(at_, escape_length(pattern_, at_));
    for (const std::string_view unknown : {"\\R", "\\X", "\\K", "\\Q", "\\E", "\\C"}) {
      if (escape == unknown) return refuse(std::string(escape));
    }
    at_ += escape.size();
    return escape;
  }

  // Reads an escape outside brackets.
  Expected<std::string> read_escape() {
    SLUICE_TRY(const std::string_view escape, next_escape());
    if (escape == "\\h") return "[" + std::string(kHexDigits) + "]";
    if (escape == "\\H") return "[^" + std::string(kHexDigits) + "]";
    if (escape.starts_with("\\u")) return "\\x{" + std::string(escape.substr(2)) + "}";
    if (!is_class(escape)) return std::string(escape);
    const std::string positive = positive_of(escape);
    std::string atom = positive.empty() ? "[" : "[^";
    append_members(positive.empty() ? escape : positive, atom);
    if (escape == "\\w" || escape == "\\W") atom += kLatin1WordNumbers;
    return atom + ']';
  }

  Expected<void> add_escape_to(Set& set) {
    SLUICE_TRY(const std::string_view escape, next_escape());
    if (escape == "\\h") {
      set.members += kHexDigits;
    } else if (escape == "\\H") {
      set.others.push_back("[^" + std::string(kHexDigits) + "]");
    } else if (escape.starts_with("\\u")) {
      set.members += "\\x{" + std::string(escape.substr(2)) + "}";
    } else if (is_class(escape) && positive_of(escape).empty()) {
      append_members(escape, set.members);
    } else {
      // Brackets cannot hold a complement; PCRE2's own class is that, except for new characters.
      set.members += with_script(escape);
    }
    return {};
  }

  // Reads the contents of the brackets that open at at_.
  Expected<Set> read_members(int level, bool& negated) {
    if (level > kMaxLevels) return refuse("so deep a set");
    ++at_;
    negated = at_ < pattern_.size() && pattern_[at_] == '^';
    if (negated) ++at_;
    const size_t start = at_;  // a ] here is a member
    std::vector<Set> operands(1);
    while (true) {
      if (at_ >= pattern_.size()) return refuse("a set without an end");
      Set& set = operands.back();
      const char c = pattern_[at_];
      const std::string_view rest = pattern_.substr(at_);
      if (c == ']' && at_ > start) break;
      if (c == '\\') {
        SLUICE_TRY_VOID(add_escape_to(set));
      } else if (rest.starts_with("[:")) {
        return refuse("a POSIX class");
      } else if (c == '[') {
        bool inner_negated = false;
        SLUICE_TRY(const Set inner, read_members(level + 1, inner_negated));
        if (inner_negated) {
          set.others.push_back(inner.atom(true));
        } else {
          set.members += inner.members;
          set.others.insert(set.others.end(), inner.others.begin(), inner.others.end());
        }
      } else if (rest.starts_with("&&")) {
        operands.emplace_back();
        at_ += 2;
      } else {
        set.members += c;
        ++at_;
      }
    }
    ++at_;
    if (operands.size() == 1) return std::move(operands.front());
    Set both;
    std::string& atom = both.others.emplace_back("(?:");
    for (const Set& operand : operands) {
      if (operand.members.empty() && operand.others.empty()) return refuse("an empty set");
      const bool is_last = &operand == &operands.back();
      atom += is_last ? operand.atom() + ")" : "(?=" + operand.atom() + ")";
    }
    return both;
  }

  Expected<std::string> read_set(int level) {
    bool negated = false;
    SLUICE_TRY(const Set set, read_members(level, negated));
    return set.atom(negated);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

Expected<std::string> expand_unicode_classes(std::string_view pattern) {
  return Expansion(pattern).run();
}

}  // namespace sluice
