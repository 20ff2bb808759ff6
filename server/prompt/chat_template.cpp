// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/chat_template.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "server/jinja/ast.h"
#include "server/jinja/evaluator.h"
#include "server/jinja/json_value.h"
#include "server/jinja/parser.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Limits of the renders that find the forms of messages: a few small messages each.
constexpr TemplateLimits kFindingLimits = {
    .fuel = 1'000'000, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20};

int64_t system_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Expected<jinja::Ref<jinja::Scope>> make_scope(jinja::Runtime& runtime, const Json& variables) {
  SLUICE_TRY(auto scope, runtime.make<jinja::Scope>(0, jinja::Ref<jinja::Scope>()));
  for (const auto& [name, json] : variables.items()) {
    const bool special = std::string_view(name).ends_with("_token") && json.is_string();
    SLUICE_TRY(jinja::Value value,
               jinja::json_to_value(
                   runtime, json, special ? jinja::Origin::kTemplate : jinja::Origin::kInput));
    SLUICE_TRY_VOID(runtime.grow(*scope, sizeof(scope->entries[0])));
    scope->set(name, std::move(value));
  }
  return scope;
}

std::vector<RenderedSpan> split_spans(const jinja::Text& text) {
  std::vector<RenderedSpan> spans;
  size_t pos = 0;
  const auto add = [&](size_t end, bool from_template) {
    if (end > pos)
      spans.push_back({std::string(text.view().substr(pos, end - pos)), from_template});
    pos = end;
  };
  for (const jinja::ByteRange& range : text.input_ranges()) {
    add(range.begin, true);
    add(range.end, false);
  }
  add(text.size(), true);
  return spans;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Block block;
  jinja::Limits limits;
  TemplateClock clock;
  MessageForms forms;

  Expected<jinja::Text> render(const Json& variables,
                               const jinja::Limits& most,
                               const TemplateClock& now) const {
    if (!variables.is_object()) {
      return make_error(ErrorCode::kInvalidArgument, "template variables must be a JSON object");
    }
    jinja::Runtime runtime(most, now);
    SLUICE_TRY(auto scope, make_scope(runtime, variables));
    return jinja::Evaluator(runtime, std::move(scope)).render(block);
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Expected<ChatTemplate> ChatTemplate::compile(std::string_view source,
                                             const TemplateLimits& limits,
                                             TemplateClock clock) {
  auto impl = std::make_unique<Impl>();
  SLUICE_TRY(impl->block, jinja::parse(source, limits.max_depth));
  impl->limits = {.fuel = limits.fuel,
                  .max_output_bytes = limits.max_output_bytes,
                  .max_memory_bytes = limits.max_memory_bytes,
                  .max_depth = limits.max_depth};
  impl->clock = clock ? std::move(clock) : TemplateClock(system_seconds);
  const jinja::Limits finding = {
      .fuel = std::min(limits.fuel, kFindingLimits.fuel),
      .max_output_bytes = std::min(limits.max_output_bytes, kFindingLimits.max_output_bytes),
      .max_memory_bytes = std::min(limits.max_memory_bytes, kFindingLimits.max_memory_bytes),
      .max_depth = limits.max_depth};
  // The time is fixed, because renders are compared.
  const TemplateClock still = [now = impl->clock()] { return now; };
  impl->forms = find_message_forms(impl->block, [&](const Json& variables) {
    return impl->render(variables, finding, still).map([](const jinja::Text& text) {
      return std::string(text.view());
    });
  });
  return ChatTemplate(std::move(impl));
}

const MessageForms& ChatTemplate::forms() const { return impl_->forms; }

Expected<std::vector<RenderedSpan>> ChatTemplate::render(const Json& variables) const {
  SLUICE_TRY(const jinja::Text text, impl_->render(variables, impl_->limits, impl_->clock));
  return split_spans(text);
}

Expected<std::string> ChatTemplate::render_text(const Json& variables) const {
  SLUICE_TRY(const jinja::Text text, impl_->render(variables, impl_->limits, impl_->clock));
  return std::string(text.view());
}

Expected<std::string> read_template_source(const std::string& given) {
  std::error_code error;
  const bool is_file = std::filesystem::exists(given, error);
  const bool has_tag = std::ranges::any_of(std::array{"{{", "{%", "{#"}, [&](const char* tag) {
    return given.find(tag) != std::string::npos;
  });
  if (has_tag && !is_file) return given;
  const std::string built_in = built_in_template(given);
  if (!built_in.empty() && !is_file) return built_in;
  std::ifstream file(given, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (file) return text.str();
  return make_error(ErrorCode::kNotFound,
                    "--chat-template: cannot read '" + given + "'.",
                    "chat-template");
}

}  // namespace sluice
