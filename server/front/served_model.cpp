// SPDX-License-Identifier: Apache-2.0
#include "server/front/served_model.h"

#include <string>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "server/front/start_check.h"
#include "server/tools/family_names.h"

namespace sluice {
namespace {

// The template of the model's files, or of ours for models that come without.
std::string source_of(const ModelInfo& model) {
  return model.chat_template.empty() ? built_in_template(model.architecture)
                                     : model.chat_template;
}

tl::unexpected<Error> no_template(const std::string& why) {
  return make_error(ErrorCode::kUnsupported,
                    why + "; start the server with --chat-template or use /v1/completions.",
                    "messages");
}

Expected<ChatTemplate> given_template(const Config& config, const std::string& source) {
  auto compiled = ChatTemplate::compile(source);
  if (compiled) return compiled;
  return make_error(compiled.error().code,
                    config.chat_template + ": chat template: found " + compiled.error().message +
                        ", expected one that compiles",
                    "chat-template");
}

// Compiles the model's own template. An error refuses chats only; other endpoints need no template.
Expected<ChatTemplate> own_template(const ModelInfo& model, const std::string& source) {
  if (source.empty()) return no_template("The model has no chat template");
  auto compiled = ChatTemplate::compile(source);
  if (compiled) return compiled;
  const std::string& reason = compiled.error().message;
  log_event(LogLevel::kWarning, "chat_template_unusable", "model", model.path, "reason", reason);
  return no_template("The model's chat template cannot be used: " + reason);
}

void log_families(const OutputFamilies& families) {
  if (families.describes_tools) {
    log_event(LogLevel::kInfo, "tools_in_instructions", "reason", "the chat template shows none");
  }
  if (families.format == nullptr) return;
  log_event(LogLevel::kInfo,
            "output_families",
            "calls",
            families.calls != nullptr ? name_of(*families.calls) : "none",
            "reasoning",
            families.reasoning != nullptr ? name_of(*families.reasoning) : "none");
}

// Returns the served names; without --served-model-name it is the name of the model's file.
std::vector<std::string> names_of(const Config& config, const ModelInfo& model) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  std::string name = model.path;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (const size_t slash = name.find_last_of('/'); slash != std::string::npos) {
    name.erase(0, slash + 1);
  }
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return {name};
}

}  // namespace

Expected<void> check_model_knobs(const Config& config) {
  SLUICE_TRY_VOID(check_family_names(config));
  if (config.chat_template.empty()) return {};
  SLUICE_TRY(const std::string source, read_template_source(config.chat_template));
  SLUICE_TRY_VOID(given_template(config, source));
  return {};
}

Expected<std::shared_ptr<const ServedModel>> ServedModel::create(const Config& config,
                                                                 Engine& engine,
                                                                 std::shared_ptr<Engine> kept) {
  const ModelInfo& model = engine.model();
  const bool is_given = !config.chat_template.empty();
  std::string source = source_of(model);
  if (is_given) {
    SLUICE_TRY(source, read_template_source(config.chat_template));
  }
  auto compiled = is_given ? given_template(config, source) : own_template(model, source);
  if (is_given && !compiled) return tl::unexpected(std::move(compiled).error());
  // Tools in the system message are for a family that is known by its template.
  const bool shows_tools = !compiled || compiled->forms().prints_tools ||
                           (compiled->forms().system_tools &&
                            detect_families(source, engine.tokenizer()).calls != nullptr);
  SLUICE_TRY(OutputFamilies chosen,
             choose_families(config, source, shows_tools, engine.tokenizer()));
  log_families(chosen);
  return std::make_shared<const ServedModel>(ServedModel{.kept = std::move(kept),
                                                         .engine = engine,
                                                         .names = names_of(config, model),
                                                         .chat_template = std::move(compiled),
                                                         .template_source = std::move(source),
                                                         .families = std::move(chosen)});
}

}  // namespace sluice
