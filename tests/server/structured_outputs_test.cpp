// SPDX-License-Identifier: Apache-2.0
// What response_format and structured_outputs of other servers' clients mean.
#include "server/tools/structured_outputs.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

GrammarSpec spec_of(const std::string& body) {
  const auto spec = read_structured_outputs(Json::parse(body));
  EXPECT_TRUE(spec) << body << spec.error().message;
  return spec ? *spec : GrammarSpec();
}

// llama-server's form; a schema that is not looked at would let any object through.
TEST(StructuredOutputs, AnObjectsSchemaBinds) {
  const GrammarSpec spec =
      spec_of(R"({"response_format":{"type":"json_object","schema":{"required":["a"]}}})");
  EXPECT_EQ(spec.kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(spec.text, R"({"required":["a"]})");
  EXPECT_EQ(spec_of(R"({"response_format":{"type":"json_object","schema":null}})").kind,
            GrammarKind::kAnyObject);
  EXPECT_FALSE(read_structured_outputs(
      Json::parse(R"({"response_format":{"type":"json_object","schema":3}})")));
}

// vLLM takes a tag as response_format or as the text of a constraint, of the newer form or of an
// older one, which the grammar library no longer reads.
TEST(StructuredOutputs, StructuralTagsAreReadInEachForm) {
  const Json tag = {{"type", "structural_tag"},
                    {"format", {{"type", "const_string"}, {"value", "ab"}}}};
  const Json older = {
      {"type", "structural_tag"},
      {"structures",
       {{{"begin", "<f>"}, {"schema", {{"type", "object"}}}, {"end", "</f>"}}}},
      {"triggers", {"<f"}}};
  const Json newer = {
      {"type", "structural_tag"},
      {"format",
       {{"type", "triggered_tags"},
        {"triggers", {"<f"}},
        {"tags",
         {{{"begin", "<f>"},
           {"content", {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}}},
           {"end", "</f>"}}}}}}};
  for (const auto& [given, meant] : {std::pair(tag, tag), std::pair(older, newer)}) {
    for (const Json& body : {Json({{"response_format", given}}),
                             Json({{"structured_outputs", {{"structural_tag", given}}}}),
                             Json({{"structured_outputs", {{"structural_tag", given.dump()}}}})}) {
      const GrammarSpec spec = spec_of(body.dump());
      EXPECT_EQ(spec.kind, GrammarKind::kStructuralTag) << body;
      EXPECT_EQ(Json::parse(spec.text), meant) << body;
    }
  }
  for (const char* wrong : {R"({"type":"structural_tag"})",
                            R"({"type":"structural_tag","structures":[]})",
                            R"({"type":"structural_tag","structures":[3],"triggers":["a"]})",
                            R"({"type":"structural_tag","structures":{},"triggers":["a"]})"}) {
    EXPECT_FALSE(read_structured_outputs(Json({{"response_format", Json::parse(wrong)}}))) << wrong;
  }
}

// Python's re.escape("a b#c&d~e-f.g") and neighbours.
TEST(StructuredOutputs, EscapesThatNoPatternNeedsAreLeftOut) {
  const auto pattern = [](const std::string& text) {
    return spec_of(Json({{"structured_outputs", {{"regex", text}}}}).dump()).text;
  };
  EXPECT_EQ(pattern(R"(a\ b\#c\&d\~e\-f\.g)"), R"(a b#c&d~e\-f\.g)");
  EXPECT_EQ(pattern("a\\\nb"), "a\nb");
  EXPECT_EQ(pattern(R"([\ \]\^\-]\d\\ x)"), R"([ \]\^\-]\d\\ x)") << "a backslash that is escaped";
  EXPECT_EQ(pattern(R"(a\)"), R"(a\)") << "the library says what is wrong";
}

}  // namespace
}  // namespace sluice
