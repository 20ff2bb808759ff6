// SPDX-License-Identifier: Apache-2.0
// Formats of strings are followed, or named as what is not.
#include "engine/sampling/grammar/string_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/sampling/grammar/left_out_keywords.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string with_format(const std::string& format, const std::string& more = "") {
  return R"({"type":"string","format":")" + format + "\"" + (more.empty() ? "" : "," + more) + "}";
}

std::shared_ptr<const Grammar> format_of(const std::string& schema, bool is_best_effort = false) {
  static const std::unique_ptr<GrammarBackend> backend = testing::byte_backend();
  const auto gated = gate_schema(schema, is_best_effort, {});
  EXPECT_TRUE(gated) << schema << ": " << gated.error().message;
  if (!gated) return nullptr;
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  spec.text = *gated;
  const auto grammar = backend->compile(spec);
  EXPECT_TRUE(grammar) << schema << ": " << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

std::string refused(const std::string& schema) {
  const auto gated = gate_schema(schema, /*is_best_effort=*/false, {});
  return gated ? "not refused" : gated.error().message;
}

std::vector<std::string> told_of(const std::string& schema) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  spec.is_best_effort = true;
  spec.text = schema;
  return left_out_keywords(spec);
}

using Names = std::vector<std::string>;

TEST(StringFormat, AddressesOfMailAreFollowed) {
  const auto grammar = format_of(with_format("email"));
  ASSERT_NE(grammar, nullptr);
  for (const char* text : {"a@b", "joe.bloggs@example.com", "te~st+x@ex-am--ple.co.uk", "0/{x}@1.2",
                           "a@b.c-d", "`^'@x"}) {
    EXPECT_TRUE(testing::accepts(*grammar, Json(text).dump())) << text;
  }
  for (const char* text : {"", "a", "@b", "a@", ".a@b", "a.@b", "a..b@c", "a@-b", "a@b-", "a@b.",
                           "a@.b", "a b@c", "a@b c", "a@b@c", "a@b_c", "\\\"a\\\"@b", "\"a\\b\"@c",
                           "\xC3\xA9@b", "a@[127.0.0.1]"}) {
    EXPECT_FALSE(testing::accepts(*grammar, Json(text).dump())) << text;
  }
  EXPECT_FALSE(testing::accepts(*grammar, R"("\"\a\"@b")")) << "no JSON";
}

TEST(StringFormat, UrisAreFollowed) {
  const auto grammar = format_of(with_format("uri"));
  ASSERT_NE(grammar, nullptr);
  for (const char* text :
       {"http://foo.bar/?baz=qux#quux", "https://user:pw@example.com:8042/over//there?name=%C3%A9",
        "http://foo.bar?q=/?:@", "mailto:John.Doe@example.com", "news:comp.infosystems.www",
        "tel:+1-816-555-1212", "urn:oasis:names:docbook:dtd:xml:4.1.2", "file:///etc/fstab", "a:",
        "h2:/", "a:/b//c", "ftp://ftp.is.co.za/rfc/rfc1808.txt", "http://h:/", "data:,a%20b",
        "ldap://?x#"}) {
    EXPECT_TRUE(testing::accepts(*grammar, Json(text).dump())) << text;
  }
  for (const char* text :
       {"", "abc", "//foo.bar/?baz", "/abc", "\\\\WINDOWS\\file", "http://a b", "1a:b", ":x",
        "http:// shouldfail.com", "http://h:80a/", "http://h/%zz", "http://h/#a#b", "http://h/a\\b",
        "bar,\\u0020baz", "http://h/{x}", "http://a@b@c/", "http://h/\xC3\xA9", "http://h/\"x\""}) {
    EXPECT_FALSE(testing::accepts(*grammar, Json(text).dump())) << text;
  }
}

TEST(StringFormat, VersionsOfUuidAreFollowed) {
  const auto grammar = format_of(with_format("uuid4"));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, "\"3e4666bf-d5e5-4aa7-b8ce-cefe41c7568a\""));
  EXPECT_FALSE(testing::accepts(*grammar, "\"3e4666bf-d5e5-1aa7-b8ce-cefe41c7568a\""));
  EXPECT_FALSE(testing::accepts(*grammar, "\"3e4666bf-d5e5-4aa7-78ce-cefe41c7568a\""));
}

TEST(StringFormat, OthersAreNamed) {
  for (const char* format : {"iri", "regex", "json-pointer", "made-up"}) {
    EXPECT_EQ(refused(with_format(format)), "unsupported keyword 'format' at #");
    EXPECT_EQ(told_of(with_format(format, R"("maxLength":3)")), Names{"format"});
    const auto grammar = format_of(with_format(format, R"("maxLength":3)"), true);
    ASSERT_NE(grammar, nullptr);
    EXPECT_TRUE(testing::accepts(*grammar, "\"abc\""));
    EXPECT_FALSE(testing::accepts(*grammar, "\"abcd\"")) << "the length is followed";
  }
  for (const char* format : {"password", "path", "binary"}) {
    EXPECT_EQ(refused(with_format(format)), "not refused");
    EXPECT_EQ(told_of(with_format(format)), Names{});
  }
  // What a number's format says is a remark.
  EXPECT_EQ(refused(R"({"type":"integer","format":"int32"})"), "not refused");
}

TEST(StringFormat, LengthsThatAFormatKeepsChangeNothing) {
  EXPECT_EQ(refused(with_format("uuid", R"("minLength":36,"maxLength":36)")), "not refused");
  EXPECT_EQ(refused(with_format("date", R"("minLength":1,"maxLength":20000)")), "not refused");
  EXPECT_EQ(refused(with_format("email", R"("minLength":3,"maxLength":4294967295)")),
            "not refused");
  EXPECT_EQ(refused(with_format("ipv4", R"("minLength":16)")), "no value is valid in the schema");
  EXPECT_EQ(refused(with_format("date", R"("maxLength":9)")), "no value is valid in the schema");
  const auto grammar = format_of(with_format("date", R"("maxLength":10)"));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, "\"2024-02-29\""));
  EXPECT_FALSE(testing::accepts(*grammar, "\"aaaaaaaaaa\""));
}

// Pydantic writes HttpUrl in this way.
TEST(StringFormat, OtherLengthsAreNamedAndTheFormatFollowed) {
  const std::string url = with_format("uri", R"("minLength":1,"maxLength":2083)");
  EXPECT_EQ(refused(url), "not refused");
  EXPECT_EQ(told_of(url), Names{"maxLength"});
  EXPECT_EQ(refused(with_format("email", R"("maxLength":20)")),
            "unsupported keyword 'maxLength beside format' at #");
  const auto grammar = format_of(url, true);
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, "\"https://example.com/\""));
  EXPECT_FALSE(testing::accepts(*grammar, "\"example\""));
  EXPECT_EQ(told_of(with_format("email", R"("minLength":8)")), Names{"minLength"});
}

TEST(StringFormat, BesideOtherKeywordsItIsNamed) {
  EXPECT_EQ(refused(with_format("date", R"("pattern":"^2")")), "unsupported keyword 'format' at #");
  EXPECT_EQ(told_of(with_format("date", R"("pattern":"^2")")), Names{"format"});
  const std::string both = R"({"allOf":[{"type":"string","format":"date"},)"
                           R"({"type":"string","format":"email"}]})";
  EXPECT_EQ(told_of(both), Names{"allOf.1.format"});
  EXPECT_EQ(told_of(R"({"type":"object","propertyNames":{"type":"string","format":"date"}})"),
            Names{"propertyNames.format"});
  // Names that match a pattern are bound.
  const auto names =
      format_of(R"({"type":"object","propertyNames":{"type":"string","format":"email"}})");
  ASSERT_NE(names, nullptr);
  EXPECT_TRUE(testing::accepts(*names, R"({"a@b":1})"));
  EXPECT_FALSE(testing::accepts(*names, R"({"a":1})"));
}

}  // namespace
}  // namespace sluice
