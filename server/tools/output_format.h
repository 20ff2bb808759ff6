// SPDX-License-Identifier: Apache-2.0
// Rows of the tables of families, and their compiled form for one vocabulary: markers as strings of
// symbols. A symbol is a byte of text, or, from kFirstSpecial on, one special token of the
// vocabulary that is a marker or a part of one. For this folder; others use families.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/types.h"
#include "server/tools/families.h"

namespace sluice {

using Symbol = char16_t;
inline constexpr Symbol kFirstSpecial = 256;

// How a family writes its calls.
enum class Mechanism : uint8_t {
  kJson,      // a JSON object, or an array of them, after a marker
  kBareJson,  // a JSON object that begins the answer; markers are optional
  kNamed,     // a name, then the arguments as JSON
  kTagged,    // a name, then keys and values in tags
  kElements,  // a name, then elements that may hold others
  kPython,    // f(a=1, b="x"), alone or in a list
  kGemma,     // call:f{a:1,b:<|"|>x<|"|>}
  kHarmony,   // messages with headers: channel, recipient
  kTurnTags,  // Kimi K3: <|open|>tag attributes<|sep|>...<|close|>tag<|sep|>
};

// What a marker means; several markers of a family may share a role.
enum class Role : uint8_t {
  kReasoningBegin,
  kReasoningEnd,
  kWrapBegin,  // surround content and are not part of it
  kWrapEnd,
  kSectionBegin,
  kSectionEnd,
  kCallBegin,
  kCallEnd,
  kNameEnd,
  kIdBegin,  // after a name: the call's id follows
  kKeyBegin,
  kKeyEnd,
  kKeyEndString,  // the value is text
  kKeyEndJson,    // the value is JSON
  kKeyEndRaw,     // the value is text up to kRawEnd, whatever other marker it holds
  kValueBegin,
  kValueEnd,
  kRawEnd,
  kFence,  // "```json" and the like around arguments
  kQuote,  // Gemma: at both sides of a string
  kHeaderBegin,
  kHeaderEnd,
  kChannel,
  kConstrain,
  kMessageEnd,
};

// Texts that a template of a family holds, all of them.
using DetectTexts = std::span<const std::string_view>;

// A set of roles, as bits.
using Roles = uint32_t;

constexpr Roles roles() { return 0; }

template <typename... Rest>
constexpr Roles roles(Role first, Rest... rest) {
  return Roles{1} << static_cast<int>(first) | roles(rest...);
}

constexpr bool contains(Roles set, Role role) { return (set & roles(role)) != 0; }

struct MarkerText {
  Role role;
  std::string_view text;
};

// What a family's templates write of calls; the members are those of CallForm and TaggedForm. "%d"
// is a number, "%t" the type of a value and "%k" its key (CallPiece::Kind). Families of kPython and
// kGemma write arguments in their own way, others with a `key_begin` in tags.
struct CallText {
  std::string_view needs = {};  // the vocabulary has this token; otherwise the next text counts
  std::string_view open = {};
  std::string_view begin = {};
  std::string_view behind_name = {};
  std::string_view end = {};
  std::string_view separator = {};
  std::string_view close = {};
  std::string_view key_begin = {};  // empty: arguments are JSON
  std::string_view key_end = {};
  std::string_view json_key_end = {};  // empty: as `key_end`
  std::string_view value_end = {};
  bool is_single = false;
};

// The members are those of ReasoningForm.
struct ReasoningText {
  std::string_view begin = {};
  std::string_view end = {};
  std::string_view answer_begin = {};
  std::string_view answer_end = {};
};

struct CallFamily {
  std::string_view name;  // vLLM's
  std::span<const std::string_view> aliases = {};
  Mechanism mechanism = Mechanism::kJson;
  std::span<const MarkerText> markers = {};
  // In the order in which they are tried; the last one needs no token.
  std::span<const CallText> texts = {};
  DetectTexts detect = {};                        // none: not detected
  std::span<const DetectTexts> detect_also = {};  // each is as good
  CallIdRule id_rule = CallIdRule::kAny;
  // kJson, kNamed: the name of a call that means "no call".
  std::string_view no_call_name = {};
  // kJson: the object's one key is the call's name.
  bool key_is_name = false;
  // The answer may begin with a call that no marker announces: '{', '[' or, for kPython, a list.
  bool bare = false;
  // kNamed: the prompt may end with a call's marker. Names are read in requests without tools, too.
  bool prompt_begins_call = false;
  bool type_before_name = false;  // kNamed: text up to kNameEnd is a type; the name follows
  bool type_is_id = false;        // kNamed: that text is the call's id
  bool header_is_id = false;      // kNamed: "functions.NAME:IDX"
  bool name_ends_at_brace = false;    // kNamed: '{' begins the arguments without a marker
  bool json_or_named = false;         // kNamed: '[' or '{' after the marker begins kJson
  bool name_ends_at_newline = false;  // kTagged, kNamed: a line feed ends the name
  bool strips_newlines = false;       // kTagged: a line feed at each side of a value is dropped
  bool tagged_body = false;           // kHarmony: calls are tags in messages to tools
  bool lines = false;                 // kPython: one call a line, without a list around them
  bool ends_reasoning = false;        // a marker of a call inside reasoning ends it and counts
};

struct ReasoningFamily {
  std::string_view name;  // vLLM's
  std::span<const std::string_view> aliases = {};
  std::span<const MarkerText> markers = {};  // kReasoningBegin, kReasoningEnd, kWrapBegin, kWrapEnd
  DetectTexts detect = {};
  std::span<const DetectTexts> detect_also = {};
  std::string_view implied_by = {};  // the call family that writes both, whose reader is used
  ReasoningText text = {};           // of such a family; others have it from their markers
  // Without a marker in the prompt's tail the output begins in reasoning.
  bool begins_inside = false;
  // Line feeds that belong to a marker: after its beginning, before and after its end.
  uint8_t after_begin = 0;
  uint8_t before_end = 0;
  uint8_t after_end = 0;
};

std::span<const CallFamily> call_families();
std::span<const ReasoningFamily> reasoning_families();

class OutputFormat {
 public:
  struct Marker {
    Role role;
    std::u16string symbols;  // not empty
    std::string_view text;   // of the row
  };

  OutputFormat(const CallFamily* calls,
               const ReasoningFamily* reasoning,
               const Tokenizer& tokenizer);

  [[nodiscard]] const CallFamily* calls() const { return calls_; }

  [[nodiscard]] const ReasoningFamily* reasoning() const { return reasoning_; }

  [[nodiscard]] std::span<const Marker> markers() const { return markers_; }

  // The symbol of a special token; 0: it is not part of a marker.
  [[nodiscard]] Symbol symbol_of(TokenId token) const;
  [[nodiscard]] std::string_view text_of(Symbol special) const;

  // Roles of the markers that begin with this byte.
  [[nodiscard]] Roles begun_by(uint8_t byte) const { return begun_by_[byte]; }

 private:
  std::u16string to_symbols(std::string_view text, const Tokenizer& tokenizer);

  const CallFamily* calls_;
  const ReasoningFamily* reasoning_;
  std::vector<Marker> markers_;
  std::vector<std::pair<TokenId, std::string>> specials_;  // by symbol, from kFirstSpecial
  std::array<Roles, 256> begun_by_{};
};

}  // namespace sluice
