// SPDX-License-Identifier: Apache-2.0
#include "server/api/left_out.h"

#include <string>

#include "engine/sampling/grammar/left_out_keywords.h"
#include "server/api/request_validator.h"
#include "server/front/ignored_arguments.h"

namespace sluice {

void note_left_out(const GenerationRequest& request, IgnoredArguments& ignored) {
  constexpr size_t kMostShown = 64;  // IgnoredArguments cuts the end, which says the most
  if (request.requests.empty() || request.requests.front().grammar == nullptr) return;
  const GrammarSpec& grammar = *request.requests.front().grammar;  // all share it
  for (const std::string& path : left_out_keywords(grammar)) {
    const std::string whole = grammar.param + "." + path;
    const std::string keyword = path.substr(path.rfind('.') + 1);
    ignored.note(whole.size() <= kMostShown ? whole : grammar.param + "." + keyword);
  }
}

}  // namespace sluice
