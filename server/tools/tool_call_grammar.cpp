// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tool_call_grammar.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/tools/literal_arguments.h"
#include "server/tools/tag_writer.h"
#include "server/tools/tagged_arguments.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Arguments are an object, whether or not the schema declares it.
Json object_schema(const CallableTool& tool) {
  Json schema = tool.parameters.empty() ? Json::object() : Json::parse(tool.parameters);
  if (!schema.contains("type")) schema["type"] = "object";
  return schema;
}

Expected<Json> call(const CallForm& form, const CallableTool& tool, TagWriter& writer) {
  Json elements = Json::array();
  writer.add(form.begin, elements);
  writer.add_text(tool.name, elements);
  writer.add(form.after_name, elements);
  Json schema = object_schema(tool);
  const ArgumentRules rules = {tool.name, tool.is_strict};
  if (form.style != ArgumentStyle::kJson && schema["type"] != "object") {
    SLUICE_TRY_VOID(rules.refuse("type", "#"));
  }
  if (form.style == ArgumentStyle::kJson) {
    writer.add_json(std::move(schema),
                    {.is_exact = tool.is_strict, .owner = "tool '" + tool.name + "'"},
                    elements);
  } else if (form.style == ArgumentStyle::kTagged) {
    SLUICE_TRY_VOID(add_tagged_arguments(form.tagged, rules, schema, writer, elements));
  } else {
    SLUICE_TRY_VOID(add_literal_arguments(form, rules, schema, writer, elements));
  }
  writer.add(form.end, elements);
  return TagWriter::sequence(std::move(elements));
}

Expected<Json> any_call(const CallForm& form,
                        std::span<const CallableTool> tools,
                        TagWriter& writer) {
  Json choice = Json::array();
  for (const CallableTool& tool : tools) {
    SLUICE_TRY(Json one, call(form, tool, writer));
    choice.push_back(std::move(one));
  }
  return TagWriter::choice(std::move(choice));
}

void add_newlines(const std::string& text, TagWriter& writer, Json& elements) {
  Json newlines = Json::array();
  writer.add_text(text, newlines);
  writer.add_optional(std::move(newlines), elements);
}

void add_before(const BeforeAnswer& before, TagWriter& writer, Json& elements) {
  if (before.reasoning) {
    Json part = Json::array();
    if (!before.in_reasoning) writer.add(before.reasoning->begin, part);
    writer.add_free_text(before.reasoning->end, part);
    add_newlines(before.reasoning->newlines, writer, part);
    if (before.in_reasoning) {
      elements.push_back(TagWriter::sequence(std::move(part)));
    } else {
      writer.add_optional(std::move(part), elements);
    }
  }
  add_newlines(before.newlines, writer, elements);
}

// JSON, marked as an answer where models mark it.
void add_format(const GrammarSpec& format,
                const BeforeAnswer& before,
                TagWriter& writer,
                Json& elements) {
  if (before.reasoning) writer.add(before.reasoning->answer_begin, elements);
  writer.add_format(format, elements);
  if (before.reasoning) writer.add(before.reasoning->answer_end, elements);
}

std::string tag_of(Json elements) {
  const Json root = {{"type", "structural_tag"},
                     {"format", TagWriter::sequence(std::move(elements))}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The calls of an answer, from the first piece of the form on to the last.
Expected<void> add_calls(const CallForm& form,
                         std::span<const CallableTool> tools,
                         bool allows_several,
                         TagWriter& writer,
                         Json& elements) {
  writer.add(form.open, elements);
  SLUICE_TRY(Json one, any_call(form, tools, writer));
  elements.push_back(one);
  if (allows_several && !form.is_single) {
    Json more = Json::array();
    writer.add(form.separator, more);
    more.push_back(std::move(one));
    elements.push_back({{"type", "star"}, {"content", TagWriter::sequence(std::move(more))}});
  }
  writer.add(form.close, elements);
  return {};
}

// The form without its marker, which begins it.
CallForm after_marker(CallForm form) {
  CallPieces& first = form.open.empty() ? form.begin : form.open;
  if (form.marker.token != kInvalidToken || first.front().text == form.marker.text) {
    first.erase(first.begin());
  } else {
    first.front().text.erase(0, form.marker.text.size());
  }
  return form;
}

// Text in which each marker is followed by calls. Without a section around them every call has a
// marker of its own.
Expected<void> add_text_with_calls(const CallForm& form,
                                   std::span<const CallableTool> tools,
                                   bool allows_several,
                                   TagWriter& writer,
                                   Json& elements) {
  Json calls = Json::array();
  SLUICE_TRY_VOID(
      add_calls(after_marker(form), tools, allows_several && !form.open.empty(), writer, calls));
  writer.add_text_with(form.marker,
                       form.other_markers,
                       TagWriter::sequence(std::move(calls)),
                       allows_several,
                       elements);
  return {};
}

}  // namespace

Expected<GrammarSpec> tool_call_grammar(const CallForm& form,
                                        std::span<const CallableTool> tools,
                                        const CallRules& rules) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.param = "tools";
  TagWriter writer(spec);
  Json elements = Json::array();
  add_before(rules.before, writer, elements);
  if (rules.beside == BesideCalls::kText) {
    SLUICE_TRY_VOID(add_text_with_calls(form, tools, rules.allows_several, writer, elements));
  } else {
    Json calls = Json::array();
    SLUICE_TRY_VOID(add_calls(form, tools, rules.allows_several, writer, calls));
    Json answer = TagWriter::sequence(std::move(calls));
    if (rules.beside == BesideCalls::kFormat) {
      Json format = Json::array();
      add_format(rules.format, rules.before, writer, format);
      answer = TagWriter::choice(
          Json::array({std::move(answer), TagWriter::sequence(std::move(format))}));
    }
    elements.push_back(std::move(answer));
  }
  spec.text = tag_of(std::move(elements));
  return spec;
}

GrammarSpec format_grammar(const GrammarSpec& format, const BeforeAnswer& before) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.param = format.param;
  TagWriter writer(spec);
  Json elements = Json::array();
  add_before(before, writer, elements);
  add_format(format, before, writer, elements);
  spec.text = tag_of(std::move(elements));
  return spec;
}

}  // namespace sluice
