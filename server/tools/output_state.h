// SPDX-License-Identifier: Apache-2.0
// Second pass of OutputParser, and what it is made of: events of MarkerScanner become reasoning or
// content, or go to what reads the calls. A value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/tools/call_pass.h"
#include "server/tools/harmony_messages.h"
#include "server/tools/marker_scanner.h"
#include "server/tools/output_format.h"
#include "server/tools/parser_options.h"
#include "server/tools/turn_tags.h"

namespace sluice {

class OutputState {
 public:
  using Marker = OutputFormat::Marker;

  OutputState(std::shared_ptr<const OutputFormat> format_,
              std::shared_ptr<const ToolSchemas> tools_,
              const ParserOptions& options_);

  // Sets the initial state from the prompt's end.
  void start(std::string_view prompt_tail);

  // Where pieces go; not kept beyond one call of feed() or finish().
  void write_to(Pieces& pieces);
  void feed_text(std::string_view bytes);
  // A special token; `symbol` is 0 if it is not part of a marker.
  void feed_special(Symbol symbol, std::string_view name);
  void finish(FinishReason reason);

  [[nodiscard]] bool in_reasoning() const;
  // Whether it is not known yet if the last symbols are reasoning.
  [[nodiscard]] bool is_undecided() const;

  std::shared_ptr<const OutputFormat> format;  // null: all is content
  std::shared_ptr<const ToolSchemas> tools;
  ParserOptions options;
  const CallFamily* family = nullptr;  // null: calls are not looked for
  PieceWriter out;
  Pieces begun_call;  // by the prompt; emitted first
  int64_t num_reasoning_tokens = 0;
  int64_t num_undecided_tokens = 0;  // the last ones, not counted as reasoning

 private:
  // Readers of a whole answer.
  using Turns = std::variant<HarmonyMessages, TurnTags>;

  // Turns and calls alone have one: both have a family.
  [[nodiscard]] CallContext context() {
    const bool in_thought = calls_ && calls_->in_thought();
    return {*family, tools.get(), out, options.parse_calls, in_thought};
  }

  // A marker of a call counts inside reasoning, and ends it.
  [[nodiscard]] bool calls_end_reasoning() const;
  [[nodiscard]] ValueState value_state() const;
  [[nodiscard]] Roles live() const;
  [[nodiscard]] Roles call_roles() const;

  // Reads what the scanner can tell; at the end of the output, or before a special token, all.
  void drain(bool at_end);
  void read_marker(const Marker& marker);
  void read_byte(char c);
  // The token is not part of a marker that counts here.
  void read_special(std::string_view name);
  // Bytes that are not white space and do not begin a marker may be read together.
  [[nodiscard]] bool takes_runs() const;
  void read_run(std::string_view bytes);

  void reasoning_byte(char c);
  void content_byte(char c);
  void give_space();
  void end_reasoning();

  void begin_calls(const CallPass::Start& start);
  // `symbols`: of the event that the verdict is about.
  void take(const CallPass::Verdict& verdict, std::u16string_view symbols);
  // The calls are over, or were none.
  void leave_calls(const CallPass::Verdict& verdict);
  void end_calls();
  // What the symbols are as text, where they are no call.
  [[nodiscard]] std::string text_of(std::u16string_view symbols) const;

  void start_turns(std::string_view prompt_tail);
  void start_reasoning(std::string_view prompt_tail);
  void drop_cut_marker(FinishReason reason);
  // Drops a call whose name is incomplete at the end of a truncated output.
  void drop_cut_call();

  MarkerScanner scanner_;
  std::optional<CallPass> calls_;  // since a marker of a call; in a thought, it may be none
  std::optional<Turns> turns_;     // in place of all below, for families that have one
  bool in_reasoning_ = false;      // else in content
  std::string space_;              // white space that may belong to a marker
  bool has_content_ = false;       // visible content has been read
  bool has_reasoning_ = false;     // visible reasoning has been read since its marker
  bool is_wrapped_ = false;
  bool is_after_call_ = false;  // no visible text since
  bool is_long_space_ = false;  // of a run of white space too long to be a marker's
  uint8_t num_newlines_ = 0;    // that still belong to the last marker
};

}  // namespace sluice
