// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/cli/command.h"
#include "server/prompt/chat_template.h"

namespace sluice {

Expected<void> run_render(const Invocation& invocation) {
  SLUICE_TRY(const std::string source, read_text_file(invocation.files.file));
  SLUICE_TRY(const std::string json, read_text_file(invocation.files.input));
  const auto variables = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!variables.is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      invocation.files.input + ": must hold a JSON object of variables");
  }
  const auto in_template = [&](Error error) {
    error.message = invocation.files.file + ": " + error.message;
    return error;
  };
  SLUICE_TRY(const ChatTemplate compiled, ChatTemplate::compile(source).map_error(in_template));
  SLUICE_TRY(const std::string text, compiled.render_text(variables).map_error(in_template));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

}  // namespace sluice
