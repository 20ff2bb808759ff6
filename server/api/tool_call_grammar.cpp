// SPDX-License-Identifier: Apache-2.0
#include "server/api/tool_call_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

class TagWriter {
 public:
  TagWriter(const CallForm& form, GrammarSpec& spec) : form_(form), spec_(spec) {}

  Json calls(std::span<const CallableTool> tools, bool allows_several) {
    Json elements = Json::array();
    add(form_.open, elements);
    elements.push_back(any_call(tools));
    if (allows_several) {
      Json more = Json::array();
      add(form_.separator, more);
      more.push_back(any_call(tools));
      elements.push_back({{"type", "star"}, {"content", sequence(std::move(more))}});
    }
    add(form_.close, elements);
    return {{"type", "structural_tag"}, {"format", sequence(std::move(elements))}};
  }

 private:
  static Json sequence(Json elements) {
    return {{"type", "sequence"}, {"elements", std::move(elements)}};
  }

  void add(const std::vector<CallPiece>& pieces, Json& elements) {
    for (const CallPiece& piece : pieces) {
      if (piece.token == kInvalidToken) {
        add_text(piece.text, elements);
        continue;
      }
      elements.push_back({{"type", "token"}, {"token", piece.token}});
      auto& tokens = spec_.control_tokens;
      if (std::ranges::find(tokens, piece.token) == tokens.end()) tokens.push_back(piece.token);
    }
  }

  // Behind text it is one with it.
  static void add_text(const std::string& text, Json& elements) {
    if (text.empty()) return;
    if (!elements.empty() && elements.back()["type"] == "const_string") {
      elements.back()["value"] = elements.back()["value"].get<std::string>() + text;
    } else {
      elements.push_back({{"type", "const_string"}, {"value", text}});
    }
  }

  Json call(const CallableTool& tool) {
    Json elements = Json::array();
    add(form_.begin, elements);
    add_text(tool.name, elements);
    add(form_.behind_name, elements);
    Json schema = Json::parse(
        tool.parameters.empty() ? R"({"type":"object"})" : tool.parameters, nullptr, false);
    elements.push_back(
        {{"type", "json_schema"}, {"json_schema", std::move(schema)}, {"style", form_.style}});
    add(form_.end, elements);
    return sequence(std::move(elements));
  }

  Json any_call(std::span<const CallableTool> tools) {
    if (tools.size() == 1) return call(tools[0]);
    Json choice = Json::array();
    for (const CallableTool& tool : tools) choice.push_back(call(tool));
    return {{"type", "or"}, {"elements", std::move(choice)}};
  }

  const CallForm& form_;
  GrammarSpec& spec_;
};

}  // namespace

GrammarSpec tool_call_grammar(const CallForm& form,
                              std::span<const CallableTool> tools,
                              bool allows_several,
                              bool is_best_effort) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.is_best_effort = is_best_effort;
  spec.param = "tools";
  spec.text = TagWriter(form, spec).calls(tools, allows_several).dump();
  std::ranges::sort(spec.control_tokens);
  return spec;
}

}  // namespace sluice
