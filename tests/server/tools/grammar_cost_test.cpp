// SPDX-License-Identifier: Apache-2.0
// Small schemas whose grammar would be large: what the I/O thread writes of them is bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json/json_fields.h"
#include "server/tools/argument_schema.h"
#include "server/tools/tool_call_grammar.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using testing::in_time;

Json repeated(size_t count, const Json& element) { return Json(Json::array_t(count, element)); }

Json many_properties(size_t count, const Json& schema) {
  Json object = Json::object();
  for (size_t i = 0; i < count; ++i) append_member(object, "p" + std::to_string(i), schema);
  return object;
}

CallForm form_of(ArgumentStyle style) {
  CallForm form;
  form.begin = {{.text = "call:"}};
  form.style = style;
  form.quote = {{.text = "'"}};
  form.tagged = {.key_begin = {{.text = "<parameter="}},
                 .key_end = {{.text = ">"}},
                 .json_key_end = {{.text = ">"}},
                 .value_end = {{.text = "</parameter>"}}};
  return form;
}

Expected<GrammarSpec> written(ArgumentStyle style, const Json& schema) {
  const std::vector<CallableTool> tools = {{"f", schema.dump()}};
  return in_time([&] { return tool_call_grammar(form_of(style), tools, {}); });
}

void expect_too_large(ArgumentStyle style, const Json& schema) {
  const auto made = written(style, schema);
  ASSERT_FALSE(made) << made->text.size();
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(made.error().param, "tools");
}

// Each refers to itself many times: what is written grows with a power of them.
TEST(GrammarCost, ReferencesInGemmasForm) {
  const Json reference = {{"$ref", "#/$defs/d"}};
  const Json several = {{"anyOf", repeated(200, reference)}};
  for (const Json& inner : {Json({{"type", "object"},
                                  {"properties", many_properties(40, reference)}}),
                            several,
                            Json({{"type", "array"}, {"items", several}})}) {
    expect_too_large(ArgumentStyle::kGemma,
                     {{"properties", {{"p", reference}}}, {"$defs", {{"d", inner}}}});
  }
}

// What follows an optional member is written for each that may be the first, in each that is
// around it.
TEST(GrammarCost, OptionalMembersInEachOther) {
  Json schema = {{"type", "boolean"}};
  for (int depth = 0; depth < 5; ++depth) {
    schema = {{"type", "object"}, {"properties", many_properties(6, schema)}};
  }
  expect_too_large(ArgumentStyle::kGemma, schema);
}

TEST(GrammarCost, TypesOfALargeSchema) {
  expect_too_large(ArgumentStyle::kGemma,
                   {{"properties", {{"p", {{"type", repeated(20'000, "integer")}}}}}});
}

TEST(GrammarCost, DefinitionsForEachArgument) {
  const Json schema = {{"properties", many_properties(2'000, {{"type", "integer"}})},
                       {"$defs", {{"d", {{"enum", repeated(10'000, 0)}}}}}};
  expect_too_large(ArgumentStyle::kTagged, schema);
  expect_too_large(ArgumentStyle::kPython, schema);
}

// Agents with many servers of tools send such: most parameters are optional, one has no schema.
TEST(GrammarCost, LargeSetsOfToolsFit) {
  Json properties = many_properties(7, {{"type", "string"}, {"description", "What it is for"}});
  append_member(properties, "kind", {{"enum", {"one", "two", "three", "four"}}});
  append_member(properties, "list", {{"type", "array"}, {"items", {{"type", "string"}}}});
  append_member(properties, "any", {{"type", "object"}});
  const Json schema = {
      {"type", "object"}, {"properties", properties}, {"required", Json::array({"p0"})}};
  std::vector<CallableTool> tools;
  for (int i = 0; i < 128; ++i) tools.push_back({"f" + std::to_string(i), schema.dump()});
  for (const ArgumentStyle style :
       {ArgumentStyle::kGemma, ArgumentStyle::kTagged, ArgumentStyle::kPython}) {
    const auto made = in_time([&] { return tool_call_grammar(form_of(style), tools, {}); });
    EXPECT_TRUE(made) << made.error().message;
  }
}

TEST(GrammarCost, AManyPartedLiteralIsOneText) {
  const Json schema = {{"properties", {{"p", {{"const", repeated(150'000, 0)}}}}}};
  EXPECT_TRUE(written(ArgumentStyle::kGemma, schema));
}

TEST(GrammarCost, ManyRequiredNames) {
  constexpr size_t kNames = 4'000;
  const std::string prefix(1'000, 'm');
  Json object = Json::object();
  Json required = Json::array();
  for (size_t i = 0; i < kNames * 10; ++i) {
    const std::string name = prefix + std::to_string(100'000 + i);
    if (i % 10 == 0) append_member(object, name, {{"type", "string"}});
    required.push_back(name);
  }
  const auto read = [&](bool is_strict) {
    const Json schema = {{"properties", object}, {"required", required}};
    return in_time([&] {
      return arguments_of(schema, "#", {"f", is_strict}, [](std::string_view) { return true; });
    });
  };
  const auto arguments = read(false);
  ASSERT_TRUE(arguments);
  EXPECT_EQ(arguments->size(), kNames);
  EXPECT_TRUE(std::ranges::all_of(*arguments, &Argument::is_required));
  EXPECT_FALSE(read(true));  // most are no arguments
}

}  // namespace
}  // namespace sluice
