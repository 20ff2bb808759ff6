// SPDX-License-Identifier: Apache-2.0
// Any bytes as template source: compiled, and rendered over a small conversation.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/prompt/chat_template.h"
#include "tests/fuzz/target.h"

static int jinja_source_input(const uint8_t* data, size_t size) {
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be é brief"},
                 {"role": "user", "content": [{"type": "text", "text": "<a> x"}]}],
    "tools": [{"name": "f", "n": 3, "x": 1.5, "none": null}],
    "bos_token": "<s>", "add_generation_prompt": true})");
  const sluice::TemplateLimits limits = {
      .fuel = 20'000, .max_output_bytes = 1 << 16, .max_memory_bytes = 1 << 20, .max_depth = 32};
  const auto chat = sluice::ChatTemplate::compile(
      std::string_view(reinterpret_cast<const char*>(data), size), limits, [] { return 0; });
  if (chat) static_cast<void>(chat->render(variables));
  return 0;
}

const sluice::fuzz::Target jinja_source_target("jinja_source_fuzz", jinja_source_input);
