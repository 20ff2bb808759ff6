// SPDX-License-Identifier: Apache-2.0
// The interface between OutputParser and its readers of calls. A reader is a value with
//   Roles live() const                      markers that count now, of those that hold text
//   Step text(char, CallContext&)           one byte that is not part of a marker
//   Step marker(Role, CallContext&)         a marker that is live, or any that is a special token
//   Step end(CallContext&)                  another special token, or the end of the output
//   ValueState value_state() const          the value that the next symbol is in
// and is fed until it reports that it is done. Between calls the parser keeps what a reader has
// read, and makes it content if the reader fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/tools/output_format.h"
#include "server/tools/parse_limits.h"
#include "server/tools/piece_writer.h"
#include "server/tools/tool_schemas.h"
#include "server/tools/value_end.h"

namespace sluice {

enum class Step : uint8_t {
  kGoOn,
  kDone,        // with this symbol the calls are over
  kDoneBefore,  // the calls were over before this symbol
  kFail,        // what was read since the last call is content, with this symbol
  kFailBefore,  // without it: it is read anew
  kJson,        // this symbol begins JSON calls; it is read anew
  kCode,        // this symbol begins a call as code; it is read anew
};

// Appends a byte to what a reader keeps, as far as it may.
inline Step keep(char c, std::string& text) {
  text += c;
  return text.size() > kMaxBufferedBytes ? Step::kFail : Step::kGoOn;
}

// Checks an unquoted function name. Text that cannot be a name is content that happens to follow a
// marker.
constexpr bool is_plain_name(std::string_view name) {
  return !name.empty() && name.find_first_of(" \t\r\n<>{}[]()\"'`,;=") == std::string_view::npos;
}

// Whether a name that has been read so far may continue with this byte or end before it.
constexpr bool may_go_on(std::string_view name, char c) {
  constexpr std::string_view kSpace = " \t\r\n";
  const bool is_space = kSpace.find(c) != std::string_view::npos;
  if (is_space || name.find_first_not_of(kSpace) == std::string_view::npos) {
    return is_space || is_plain_name({&c, 1});
  }
  return is_plain_name({&c, 1}) && kSpace.find(name.back()) == std::string_view::npos;
}

struct CallContext {
  const CallFamily& family;
  const ToolSchemas* tools;  // null: none
  PieceWriter& out;
  bool parses_calls;  // false: a call is text
  bool in_thought;    // text that does not name a tool is not a call

  // False: there is no such call, and nothing was written.
  [[nodiscard]] bool begin_call(std::string_view name, std::string_view model_id) const {
    if (in_thought && tools != nullptr && !tools->has(name)) return false;
    return out.begin_call(name, model_id);
  }

  // A call has begun and not ended.
  [[nodiscard]] bool is_open() const { return out.call_is_open(); }

  // Ends the open call, with {} where it has had no arguments.
  void end_call(bool has_arguments) const {
    if (!has_arguments) out.arguments("{}");
    out.end_call();
  }

  [[nodiscard]] JsonTypes types_of(std::string_view name, std::string_view key) const {
    return tools == nullptr ? kJsonAny : tools->types_of(name, key);
  }

  [[nodiscard]] bool has_end_marker() const {
    return family.has_marker(Role::kCallEnd) || family.has_marker(Role::kSectionEnd);
  }
};

}  // namespace sluice
