// SPDX-License-Identifier: Apache-2.0
// Third pass of OutputParser: turns events from a call's marker (or the byte that begins a bare
// call) on into pieces, until the calls end or turn out to be text. A value.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "server/tools/call_reader.h"
#include "server/tools/element_call.h"
#include "server/tools/json_call.h"
#include "server/tools/literal_call.h"
#include "server/tools/named_call.h"
#include "server/tools/tagged_call.h"

namespace sluice {

class CallPass {
 public:
  struct Start {
    Role role = Role::kCallBegin;
    std::u16string_view marker = {};  // empty: none, or it is the prompt's
    bool is_bare = false;             // no marker announced the call
    bool in_thought = false;          // until a call begins, markers in a thought are text of it
    bool keeps_specials = false;      // special tokens are text, where no call is
  };

  struct Verdict {
    enum class Kind : uint8_t { kGoOn, kOver, kNoCall };
    Kind kind = Kind::kGoOn;   // kOver: the calls are; kNoCall: tried() is text
    bool reads_again = false;  // the event is no part of the calls and is to be scanned again
    bool begins = false;       // a call began
  };

  CallPass(const CallFamily& family, const Start& start);

  [[nodiscard]] Roles live() const;
  // Only a call that has begun has values; earlier text may be read again as content.
  [[nodiscard]] ValueState value_state(const PieceWriter& out) const;

  Verdict text(char c, CallContext& context);
  Verdict marker(const OutputFormat::Marker& marker, CallContext& context);
  // Another special token, or the end of the output.
  Verdict end(CallContext& context);

  // What was read since the marker or the last call, while no call is open.
  [[nodiscard]] std::u16string_view tried() const { return tried_; }

  [[nodiscard]] bool is_bare() const { return start_.is_bare; }

  [[nodiscard]] bool in_thought() const { return start_.in_thought; }

  [[nodiscard]] bool had_call() const { return had_call_; }

 private:
  using Reader = std::variant<JsonCall, NamedCall, TaggedCall, ElementCall, LiteralCall>;

  static Reader first_reader(const CallFamily& family, Role role);
  // Handles a reader's verdict on an event of these symbols.
  Verdict take(Step step, std::u16string_view symbols, bool was_open, bool begins);
  void add_tried(Step step, std::u16string_view symbols, bool was_open);
  template <typename Read>
  Verdict with_reader(std::u16string_view symbols, CallContext& context, Read read);

  Start start_;  // without `marker`
  Reader reader_;
  std::u16string tried_;
  bool had_call_ = false;
};

}  // namespace sluice
