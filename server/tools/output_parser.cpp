// SPDX-License-Identifier: Apache-2.0
#include "server/tools/output_parser.h"

#include <utility>

#include "server/tools/output_state.h"

namespace sluice {

OutputParser::OutputParser(bool skip_special_tokens)
    : state_(std::make_unique<OutputState>(
          nullptr,
          nullptr,
          ParserOptions{.parse_calls = false, .skip_special_tokens = skip_special_tokens})) {}

OutputParser::OutputParser(std::shared_ptr<const OutputFormat> format,
                           std::shared_ptr<const ToolSchemas> tools,
                           std::string_view prompt_tail,
                           const ParserOptions& options)
    : state_(std::make_unique<OutputState>(std::move(format), std::move(tools), options)) {
  state_->start(prompt_tail);
}

OutputParser::OutputParser(const OutputParser& other)
    : state_(std::make_unique<OutputState>(*other.state_)) {}

OutputParser& OutputParser::operator=(const OutputParser& other) {
  if (this != &other) state_ = std::make_unique<OutputState>(*other.state_);
  return *this;
}

OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::feed(TokenId token, std::string_view bytes, bool is_special, Pieces& pieces) {
  OutputState& state = *state_;
  state.write_to(pieces);
  const bool was_reasoning = state.in_reasoning();
  if (is_special) {
    state.feed_special(state.format == nullptr ? Symbol{0} : state.format->symbol_of(token), bytes);
  } else {
    state.feed_text(bytes);
  }
  state.out.write_to(nullptr);
  // A token counts if reasoning was before or after it; undecided ones count with the one that
  // decides.
  if (was_reasoning || state.in_reasoning()) {
    state.num_reasoning_tokens += 1 + state.num_undecided_tokens;
    state.num_undecided_tokens = 0;
  } else if (state.is_undecided()) {
    ++state.num_undecided_tokens;
  } else {
    state.num_undecided_tokens = 0;
  }
}

void OutputParser::finish(FinishReason reason, Pieces& pieces) {
  state_->write_to(pieces);
  state_->finish(reason);
  state_->out.write_to(nullptr);
}

int64_t OutputParser::num_reasoning_tokens() const { return state_->num_reasoning_tokens; }

bool OutputParser::in_reasoning() const { return state_->in_reasoning(); }

int32_t OutputParser::num_closed_calls() const { return state_->out.num_closed(); }

}  // namespace sluice
