// SPDX-License-Identifier: Apache-2.0
// Rows of the tables of families, and their compiled form for one vocabulary: markers as strings of
// symbols. A symbol is a byte of text, or, from kFirstSpecial on, one special token of the
// vocabulary that is a marker or a part of one. For this folder; others use families.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/types.h"
#include "server/tools/families.h"

namespace sluice {

using Symbol = char16_t;
inline constexpr Symbol kFirstSpecial = 256;

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

// A set of roles, as bits.
using Roles = uint32_t;

constexpr Roles roles() { return 0; }

template <typename... Rest>
constexpr Roles roles(Role first, Rest... rest) {
  return Roles{1} << static_cast<int>(first) | roles(rest...);
}

constexpr bool contains(Roles set, Role role) { return (set & roles(role)) != 0; }

// A list inside of a row: at most `capacity` items, in the row itself.
template <typename T, size_t capacity>
class RowList {
 public:
  constexpr RowList() = default;

  // More items than fit do not compile in a constant.
  constexpr RowList(std::initializer_list<T> items) {
    for (const T& item : items) items_[size_++] = item;
  }

  [[nodiscard]] constexpr const T* begin() const { return items_.data(); }

  [[nodiscard]] constexpr const T* end() const { return items_.data() + size_; }

  [[nodiscard]] constexpr size_t size() const { return size_; }

  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }

  [[nodiscard]] constexpr const T& back() const { return items_[size_ - 1]; }

 private:
  std::array<T, capacity> items_{};
  size_t size_ = 0;
};

// Markers around calls.
inline constexpr Roles kBegins = roles(Role::kSectionBegin, Role::kCallBegin);
inline constexpr Roles kEnds = roles(Role::kSectionEnd, Role::kCallEnd);

struct MarkerText {
  Role role;
  std::string_view text;
};

// What a family's templates write of calls; the members are those of CallForm and TaggedForm. "%d"
// is a number, "%t" the type of a value and "%k" its key (CallPiece::Kind). PythonCalls and
// GemmaCalls write arguments in their own way, others with a `key_begin` in tags.
struct CallText {
  std::string_view needs = {};  // the vocabulary has this token; otherwise the next text counts
  std::string_view open = {};
  std::string_view begin = {};
  std::string_view after_name = {};
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

using Names = RowList<std::string_view, 12>;
using Markers = RowList<MarkerText, 20>;
using CallTexts = RowList<CallText, 2>;
// Alternatives, each of texts that a template of the family holds, all of them.
using DetectTexts = RowList<RowList<std::string_view, 4>, 3>;

// How a family writes its calls: a mechanism, with what its families differ in. `Reader` is the
// class that reads its calls (call_reader.h), or `Turns` the one that reads the whole answer.

// A JSON object, or an array of them, after a marker.
struct JsonCalls {
  using Reader = class JsonCall;
  std::string_view no_call_name = {};  // the name of a call that means "no call"
  bool key_is_name = false;            // the object's one key is the call's name
  bool or_code = false;  // objects with ';' between, without an array, or a call as Python code
};

// A name, then the arguments as JSON.
struct NamedCalls {
  using Reader = class NamedCall;
  // What is written before the arguments.
  enum class Header : uint8_t {
    kName,
    kTypeAndName,  // a type, which counts for nothing, kNameEnd and the name
    kIdAndName,    // the call's id, kNameEnd and the name
    kNameAndIdx,   // "functions.NAME:IDX", which is the id, too
  };
  Header header = Header::kName;
  std::string_view no_call_name = {};
  // The prompt may end with a call's marker. Names are read in requests without tools, too.
  bool prompt_begins_call = false;
  bool name_ends_at_brace = false;  // '{' begins the arguments without a marker
  bool name_ends_at_newline = false;
  bool or_json = false;  // '[' or '{' after the marker begins calls as JSON

  [[nodiscard]] constexpr bool has_two_parts() const {
    return header == Header::kTypeAndName || header == Header::kIdAndName;
  }
};

// A name, then keys and values in tags.
struct TaggedCalls {
  using Reader = class TaggedCall;
  bool type_before_name = false;  // text up to kNameEnd is a type; the name follows
  bool name_ends_at_newline = false;
  bool strips_newlines = false;  // a line feed at each side of a value is dropped
};

// A name, then elements that may hold others.
struct ElementCalls {
  using Reader = class ElementCall;
};

// f(a=1, b="x"), alone or in a list.
struct PythonCalls {
  using Reader = class LiteralCall;
  bool lines = false;  // one call a line, without a list around them
};

// call:f{a:1,b:<|"|>x<|"|>}
struct GemmaCalls {
  using Reader = class LiteralCall;
};

// The whole answer as messages with headers: channel, recipient.
struct HarmonyTurns {
  using Turns = class HarmonyMessages;
  bool tagged_body = false;  // calls are tags in messages to tools
};

// The whole answer in tags (Kimi K3): <|open|>tag attributes<|sep|>...<|close|>tag<|sep|>
struct TagTurns {
  using Turns = class TurnTags;
};

using Mechanism = std::variant<JsonCalls,
                               NamedCalls,
                               TaggedCalls,
                               ElementCalls,
                               PythonCalls,
                               GemmaCalls,
                               HarmonyTurns,
                               TagTurns>;

struct CallFamily {
  std::string_view name;  // vLLM's
  Names aliases = {};
  Mechanism mechanism = JsonCalls{};
  Markers markers = {};
  CallTexts texts = {};     // in the order in which they are tried; the last one needs no token
  DetectTexts detect = {};  // none: not detected
  // The answer may begin with a call that no marker announces but this byte; 0: it may not.
  char bare = '\0';
  CallIdRule id_rule = CallIdRule::kAny;
  bool ends_reasoning = true;  // a marker of a call inside reasoning ends it and counts
  bool sorts_tools = false;    // templates get tools with ascending keys

  // Its reader tells reasoning and content as well.
  [[nodiscard]] constexpr bool has_channels() const {
    return std::holds_alternative<HarmonyTurns>(mechanism) ||
           std::holds_alternative<TagTurns>(mechanism);
  }

  [[nodiscard]] constexpr bool prompt_begins_call() const {
    const auto* named = std::get_if<NamedCalls>(&mechanism);
    return named != nullptr && named->prompt_begins_call;
  }

  [[nodiscard]] constexpr bool has_marker(Role role) const {
    return std::any_of(markers.begin(), markers.end(), [role](const MarkerText& marker) {
      return marker.role == role;
    });
  }
};

struct ReasoningFamily {
  std::string_view name;  // vLLM's
  Names aliases = {};
  Markers markers = {};  // kReasoningBegin, kReasoningEnd, kWrapBegin, kWrapEnd
  DetectTexts detect = {};
  std::string_view implied_by = {};  // the call family that writes both, whose reader is used
  ReasoningText text = {};           // of such a family; others have it from their markers
  // Without a marker in the prompt's tail the output begins in reasoning.
  bool begins_inside = false;

  // Line feeds that belong to a marker.
  struct Newlines {
    uint8_t after_begin = 0;
    uint8_t before_end = 0;
    uint8_t after_end = 0;
  };

  Newlines newlines = {};
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

  // The longest marker with one of the roles at the front of `symbols`, or null.
  struct Found {
    const Marker* marker = nullptr;
    bool may_grow = false;  // the symbols are the beginning of such a marker
  };

  [[nodiscard]] Found find(std::u16string_view symbols, Roles roles) const;

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
