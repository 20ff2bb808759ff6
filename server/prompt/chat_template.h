// SPDX-License-Identifier: Apache-2.0
// Chat templates: Jinja with Hugging Face's settings (trim_blocks, lstrip_blocks, loop controls,
// tojson without HTML escapes), compiled once per model, sandboxed by fuel, output, recursion and
// memory caps. Immutable after compile; render() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "server/prompt/message_forms.h"

namespace sluice {

struct TemplateLimits {
  int64_t fuel = 10'000'000;  // evaluation steps
  int64_t max_output_bytes = 16 << 20;
  int64_t max_memory_bytes = 64 << 20;  // values alive during a render
  int32_t max_depth = 64;               // nesting of syntax, macro calls and values
};

// Returns seconds since the epoch for strftime_now, which prints them as local time (TZ); empty:
// the system's clock.
using TemplateClock = std::function<int64_t()>;

// A rendered prompt. Spans tell the template's own text from text of its inputs: only
// template text may become special tokens.
struct RenderedSpan {
  std::string text;
  bool from_template = true;
};

class ChatTemplate {
 public:
  // kInvalidArgument with line number: an error in the source. Renders small conversations to find
  // forms().
  static Expected<ChatTemplate> compile(std::string_view source,
                                        const TemplateLimits& limits = {},
                                        TemplateClock clock = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Returns the forms of messages that the template takes; fit_messages() applies them.
  [[nodiscard]] const MessageForms& forms() const;

  // `variables`: a JSON object (ordered) with messages, tools, add_generation_prompt, bos_token,
  // eos_token and the like; strings of keys that end in `_token` count as template text.
  // kInvalidArgument carries the message of raise_exception or the error
  // with its line; kResourceExhausted: a limit.
  [[nodiscard]] Expected<std::vector<RenderedSpan>> render(
      const nlohmann::ordered_json& variables) const;
  // Renders like render(), as one string.
  [[nodiscard]] Expected<std::string> render_text(const nlohmann::ordered_json& variables) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns the source that --chat-template gives: the text itself if it holds {{, {% or {# and names
// no file, a template that is built in, or the content of a file. kNotFound: it cannot be read.
Expected<std::string> read_template_source(const std::string& given);

// Returns the source for models that come with code instead of a template, by config.json's
// model_type or GGUF's architecture, or by mistral_ and a version of mistral_template(); empty:
// none is built in.
std::string built_in_template(std::string_view name);

}  // namespace sluice
