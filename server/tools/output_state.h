// SPDX-License-Identifier: Apache-2.0
// The state of OutputParser: finds markers in the symbols of an output and passes the text between
// them to reasoning, content or a reader of calls. A value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/tools/call_reader.h"
#include "server/tools/element_call.h"
#include "server/tools/harmony_messages.h"
#include "server/tools/json_call.h"
#include "server/tools/literal_call.h"
#include "server/tools/named_call.h"
#include "server/tools/output_format.h"
#include "server/tools/parser_options.h"
#include "server/tools/tagged_call.h"
#include "server/tools/turn_tags.h"

namespace sluice {

class OutputState {
 public:
  using Marker = OutputFormat::Marker;
  enum class Mode : uint8_t { kReasoning, kContent, kCalls };

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
  // A marker of a call counts inside reasoning, and ends it.
  [[nodiscard]] bool calls_end_reasoning() const;
  using Reader = std::variant<std::monostate,
                              JsonCall,
                              NamedCall,
                              TaggedCall,
                              ElementCall,
                              LiteralCall,
                              HarmonyMessages,
                              TurnTags>;

  [[nodiscard]] bool has_channels() const;

  [[nodiscard]] CallContext context() {
    return {*family, tools.get(), out, options.parse_calls, !thought_.empty()};
  }

  [[nodiscard]] ValueState value_state() const;
  [[nodiscard]] Roles live() const;
  [[nodiscard]] Roles call_roles() const;

  // A marker at the front of `pending`, inside a value: reads it as text or leaves it to be read as
  // a marker; false: that depends on input that has not arrived.
  bool decide_in_value(const Marker& marker, bool at_end, bool& is_text);
  // Decides what it can of `pending`; at the end of the output, or before a special token, all.
  void drain(bool at_end);
  void read_marker(const Marker& marker);
  void read_byte(char c);
  // The symbol is not part of a marker that counts here.
  void read_stray(std::string_view text, bool is_special);
  // Bytes that are not white space and do not begin a marker may be read together.
  [[nodiscard]] bool takes_runs() const;
  void read_run(std::string_view bytes);

  void reasoning_byte(char c);
  void content_byte(char c);
  void end_reasoning();
  void begin_calls(Role role, std::string_view marker_text);
  // Handles a reader's verdict on a symbol; `symbols`: to read it again; `may_be_content`: it may
  // turn out not to be part of a call.
  void take_step(Step step,
                 std::u16string_view symbols,
                 std::string_view text,
                 int32_t num_before,
                 bool may_be_content);
  // Text since a marker in a thought was not a call: it is thought.
  void return_to_thought();
  // `is_content`: kept text that is not a call becomes content; `gives_space`: so may white space
  // at its end.
  void leave_calls(bool is_content, bool gives_space);
  void give_space(PieceKind kind);
  void drop_cut_marker(FinishReason reason);
  // Drops a call whose name is incomplete at the end of a truncated output.
  void drop_cut_call();
  void end_reader();
  void append_text_of(std::u16string_view symbols, std::string& text) const;

  template <typename Read>
  void with_reader(std::u16string_view symbols, Read read);

  Mode mode_ = Mode::kContent;
  Reader reader_;
  std::u16string pending_;             // may be the beginning of a marker
  std::optional<ValueEnd> value_end_;  // of the marker at its front
  std::u16string thought_;             // since a marker in a thought, while it may not be a call
  std::string kept_;                   // read by the reader and may turn out to be content
  std::string space_;                  // white space that may belong to a marker
  bool is_over_ = false;               // the input has ended
  bool is_bare_ = false;               // the reader began without a marker
  bool had_call_ = false;              // the reader began a call
  bool has_content_ = false;           // visible content has been read
  bool has_reasoning_ = false;         // visible reasoning has been read since its marker
  bool is_wrapped_ = false;
  bool is_behind_call_ = false;  // no visible text since
  bool is_long_space_ = false;   // of a run of white space too long to be a marker's
  uint8_t num_newlines_ = 0;     // that still belong to the last marker
};

}  // namespace sluice
