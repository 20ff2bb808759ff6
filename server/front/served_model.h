// SPDX-License-Identifier: Apache-2.0
// All that reading a request and writing its answer needs to know of the model: its engine, names,
// template and forms. A router has one for each version. Immutable; a request holds its own to its
// end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "server/prompt/chat_template.h"
#include "server/tools/output_families.h"

namespace sluice {

struct Config;

struct ServedModel {
  // `kept`: the version that `engine` is; null: the engine is the server's only one, and outlives
  // all requests. Errors concern --chat-template and the knobs of parsers.
  static Expected<std::shared_ptr<const ServedModel>> create(const Config& config,
                                                             Engine& engine,
                                                             std::shared_ptr<Engine> kept);

  std::shared_ptr<Engine> kept;  // as given to create()
  Engine& engine;
  std::vector<std::string> names;        // at least one; the first is the default
  Expected<ChatTemplate> chat_template;  // an error: why chats are refused
  std::string template_source;           // as given, the model's own or built in; empty: none
  OutputFamilies families;               // how the model writes reasoning and calls
};

// A name that requests may give, and the model that they get.
struct NamedModel {
  std::string name;
  std::shared_ptr<const ServedModel> served;
};

}  // namespace sluice
