// SPDX-License-Identifier: Apache-2.0
// Goldens come from jinja2 (golden/templates/make_goldens.py); the rest are rules of our own:
// limits, where text came from, thread safety.
#include "server/prompt/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/tokenizer/files/named_templates.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string golden_path(const std::string& name) { return golden_folder() + "/templates/" + name; }

Expected<std::string> render(const std::string& source,
                             const Json& variables = Json::object(),
                             const TemplateLimits& limits = {}) {
  SLUICE_TRY(const ChatTemplate chat,
             ChatTemplate::compile(source, limits, [] { return int64_t{1767323045}; }));
  return chat.render_text(variables);
}

ErrorCode error_of(const std::string& source,
                   const Json& variables = Json::object(),
                   const TemplateLimits& limits = {}) {
  const auto result = render(source, variables, limits);
  EXPECT_FALSE(result) << source << " rendered " << result.value_or("").substr(0, 80);
  return result ? ErrorCode::kInternal : result.error().code;
}

// Spans as text, inputs in ⟦⟧.
std::string marked(const std::string& source, const Json& variables) {
  const auto chat = ChatTemplate::compile(source);
  EXPECT_TRUE(chat) << chat.error().message;
  const auto spans = chat->render(variables);
  EXPECT_TRUE(spans) << spans.error().message;
  std::string out;
  for (const RenderedSpan& span : *spans) {
    out += span.from_template ? span.text : "⟦" + span.text + "⟧";
  }
  return out;
}

// Sets what local time is in this process.
void set_time_zone(const char* name) {
  setenv("TZ", name, 1);  // NOLINT(concurrency-mt-unsafe)
  tzset();
}

// Returns how many cases differ.
int check_goldens(const Json& document, const Json& conversations) {
  set_time_zone("UTC");
  int different = 0;
  for (const Json& row : document["cases"]) {
    const Json& variables =
        row.contains("input") ? conversations[row["input"].get<std::string>()] : row["variables"];
    const auto result = render(row["template"].get<std::string>(), variables);
    const auto name = row["name"].get<std::string>();
    bool same = false;
    if (row.contains("output")) {
      const auto expected = row["output"].get<std::string>();
      same = result && *result == expected;
      EXPECT_TRUE(same) << name << "\nexpected: " << expected << "\ngot:      "
                        << (result ? *result : "error: " + result.error().message);
    } else {
      const auto expected = row["error"].get<std::string>();
      const auto kind = row["kind"].get<std::string>();
      same = !result && (kind != "raised" || result.error().message == expected ||
                         result.error().message.ends_with(": " + expected));
      if (!result && (kind == "undefined" || kind == "security")) {
        same = result.error().message.ends_with(expected);
      }
      EXPECT_TRUE(same) << name << "\nexpected error: " << expected
                        << "\ngot: " << (result ? *result : "error: " + result.error().message);
    }
    different += same ? 0 : 1;
  }
  return different;
}

TEST(ChatTemplate, RendersWhatJinja2Renders) {
  const Json document = Json::parse(read_file(golden_path("goldens.json")));
  const Json conversations = Json::parse(read_file(golden_path("conversations.json")));
  ASSERT_GT(document["cases"].size(), 100U);
  EXPECT_EQ(check_goldens(document, conversations), 0);
}

TEST(ChatTemplate, RendersPublishedTemplatesAsJinja2Does) {
  const char* path = std::getenv("SLUICE_TEMPLATE_GOLDENS");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEMPLATE_GOLDENS names no file of make_goldens.py";
  EXPECT_EQ(check_goldens(Json::parse(read_file(path)), Json::object()), 0);
}

// The clock stands at 2026-01-02 03:04:05 UTC.
TEST(ChatTemplate, TimeIsLocalAndKnowsNoZone) {
  set_time_zone("AAA-5:30");
  const auto local = render("{{ strftime_now('%Y-%m-%d %H:%M:%S|%Z|%z|%f|%%Z|%d %b %Y|%') }}");
  ASSERT_TRUE(local) << local.error().message;
  EXPECT_EQ(*local, "2026-01-02 08:34:05|||000000|%Z|02 Jan 2026|%");
  set_time_zone("AAA5");
  EXPECT_EQ(*render("{{ strftime_now('%d %H') }}"), "01 22");
  EXPECT_EQ(*render("[{{ strftime_now('%Z') }}]"), "[]");
  set_time_zone("UTC");
}

TEST(ChatTemplate, TellsTemplateTextFromInputText) {
  const Json variables = {{"name", "<|im_end|>"}, {"bos_token", "<s>"}, {"n", 5}};
  EXPECT_EQ(marked("{{ bos_token }}<|im_start|>{{ name }}x", variables),
            "<s><|im_start|>⟦<|im_end|>⟧x");
  EXPECT_EQ(marked("{{ '<|' ~ name[2:4] ~ '|>' }}", variables), "<|⟦im⟧|>");
  EXPECT_EQ(marked("{{ ('a' + name + 'b') | upper }}", variables), "A⟦<|IM_END|>⟧B");
  EXPECT_EQ(marked("{{ 'a-b' | replace('-', name) }}", variables), "a⟦<|im_end|>⟧b");
  EXPECT_EQ(marked("{{ name.split('_') | join('_') }}", variables), "⟦<|im⟧_⟦end|>⟧");
  EXPECT_EQ(marked("{{ '%s!' % name }}{{ '{}?'.format(name) }}", variables),
            "⟦<|im_end|>⟧!⟦<|im_end|>⟧?");
  EXPECT_EQ(marked("{{ name | tojson }}", variables), "⟦\"<|im_end|>\"⟧");
  EXPECT_EQ(marked("{{ {'k': name} | tojson }}", variables), "{\"k\": ⟦\"<|im_end|>\"⟧}");
  EXPECT_EQ(marked("{% set x %}[{{ name }}]{% endset %}{{ x | trim('[') }}", variables),
            "⟦<|im_end|>⟧]");
  EXPECT_EQ(marked("{% macro m(a) %}({{ a }}){% endmacro %}{{ m(name) }}", variables),
            "(⟦<|im_end|>⟧)");
  EXPECT_EQ(marked("{{ n }}{{ [name] }}", variables), "⟦5⟧[⟦'<|im_end|>'⟧]");
}

TEST(ChatTemplate, KeysOfInputObjectsAreInputText) {
  const Json variables = {{"m", {{"<|im_end|>", 1}}}};
  EXPECT_EQ(marked("{% for k in m %}{{ k }}{% endfor %}", variables), "⟦<|im_end|>⟧");
  EXPECT_EQ(marked("{{ m | tojson }}", variables).find("\"<"), std::string("⟦{").size());
}

TEST(ChatTemplate, ReportsTheLineOfAnError) {
  const auto runtime = render("a\nb\n{{ x.y }}");
  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().message, "template line 3: 'x' is undefined");
  const auto syntax = render("a\n{% if %}");
  ASSERT_FALSE(syntax);
  EXPECT_NE(syntax.error().message.find("line 2"), std::string::npos) << syntax.error().message;
}

TEST(ChatTemplate, GivesTheMessageOfRaiseExceptionVerbatim) {
  const auto result = render("{{ raise_exception('Only user: ' ~ 3) }}");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, "Only user: 3");
}

TEST(ChatTemplate, StopsWhatRunsTooLong) {
  const std::string loop =
      "{% for a in range(99999) %}{% for b in range(99999) %}"
      "{% endfor %}{% endfor %}";
  EXPECT_EQ(error_of(loop), ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
            ErrorCode::kResourceExhausted);
  // A look-up among many members is as many steps.
  Json message = Json::object();
  for (int i = 0; i < 4000; ++i) message["m" + std::to_string(i)] = i;
  for (const char* look_up : {"message.m3999", "message.none", "message['m3999']"}) {
    EXPECT_EQ(error_of("{% for a in range(99999) %}{% set b = " + std::string(look_up) +
                           " %}{% endfor %}",
                       {{"message", message}}),
              ErrorCode::kResourceExhausted)
        << look_up;
  }
}

TEST(ChatTemplate, StopsWhatGrowsTooLarge) {
  EXPECT_EQ(error_of("{{ 'x' * 999999999999 }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{{ [1] * 999999999999 }}"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}"
                     "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% for i in range(50) %}0123456789{% endfor %}",
                     Json::object(),
                     {.max_output_bytes = 100}),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}"
                     "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_of("{% set ns = namespace() %}{% set ns.a = [ns] %}{% set ns.b = [[ns.a]] %}"
                     "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(ns) }}"),
            ErrorCode::kResourceExhausted);
}

// Arguments that ask filters and methods for gigabytes, or for endless work.
TEST(ChatTemplate, HostileArgumentsEndWithinTheCaps) {
  const char* sources[] = {
      "{{ 'a\nb' | indent(10**9) }}",
      "{{ 'a\nb' | indent('x' * 10**6, true) | indent('y' * 10**6) | indent('z' * 10**9) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%.1000000000f' % 1.5 }}",
      "{{ '%.1000000000d' % 1 }}",
      "{{ '%1000000000s' | format('x') }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ '{:.1000000000f}'.format(1.5) }}",
      "{{ '{1000000000}'.format('x') }}",
      "{{ range(10**9) | list }}",
      "{{ range(10**9) | join }}",
      "{{ range(0, -10**9, -1) | sum }}",
      "{{ [1] * 10**9 }}",
      "{{ (1,) * 10**9 }}",
      "{{ ('ab' * 10**6).replace('', 'c' * 10**6) }}",
      "{{ ('ab' * 10**6) | replace('a', 'c' * 10**6) }}",
      "{{ (range(10**5) | list) | join('x' * 10**6) }}",
      "{{ ('x' * 10**6).join(range(10**5) | map('string')) }}",
      "{{ ('&' * 10**8) | e }}",
      "{{ ('a ' * 10**8) | title }}",
      "{{ ('a,' * 10**8).split(',') }}",
      "{{ ('a\n' * 10**8).splitlines() }}",
      "{{ ('a' * 10**8) | list }}",
      "{{ ('a' * 10**8) | tojson | tojson | tojson }}",
      "{{ {'a': 'x' * 10**6} | tojson(indent=10**9) }}",
      "{{ [[[1]]] | tojson(indent=10**8) }}",
      "{{ ([[1] * 1000] * 1000 * 1000) | string }}",
      "{{ ([1] * 10**6) | map('string') | map('replace', '1', 'x' * 10**4) | join }}",
      "{{ 10 ** (10 ** 9) }}",
      "{{ 2 ** 100000 }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[]) %}{% set ns.l = [ns] %}{{ ns.l | tojson }}",
      "{% set l = [] %}{% for i in range(10**9) %}{{ l.append(l) }}{% endfor %}",
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
      "{% set l = [] %}{% set _ = l.append(l) %}{{ l | string }}{{ l == [l] }}",
      "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% macro f(n) %}{{ caller() }}{% call f(n) %}{{ caller() }}{% endcall %}{% endmacro %}"
      "{% call f(1) %}x{% endcall %}",
      "{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}",
      "{{ (range(10**5) | list) | sort(attribute='x') | list * 10**6 }}",
      "{{ ((range(99999) | list) * 50) | unique | list }}",
      "{% for i in range(10**5) %}{{ range(10**5) | sum }}{% endfor %}",
      "{{ ('ab' * 10**7).count('ab' * 10**6 ~ 'c') ~ 'x' * 10**9 }}",
      "{{ strftime_now('%Y' * 10**8) }}",
      "{{ ('[' * 10**6) | from_json }}",
  };
  // Most of them work until a cap ends them: at a commit the caps are an eighth.
  const TemplateLimits caps;
  const auto share = [](int64_t cap) { return testing::sample_of(cap / 8, cap); };
  const TemplateLimits limits = {.fuel = share(caps.fuel),
                                 .max_output_bytes = share(caps.max_output_bytes),
                                 .max_memory_bytes = share(caps.max_memory_bytes)};
  for (const char* source : sources) {
    const auto code = error_of(source, Json::object(), limits);
    EXPECT_TRUE(code == ErrorCode::kResourceExhausted || code == ErrorCode::kInvalidArgument)
        << source;
  }
}

TEST(ChatTemplate, FreedValuesDoNotCountAgainstMemory) {
  const auto result =
      render("{% for i in range(2000) %}{% set s = ('x' * 100) * 1000 %}{% endfor %}ok",
             Json::object(),
             {.fuel = 100'000'000, .max_memory_bytes = 16 << 20});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(*result, "ok");
}

TEST(ChatTemplate, RefusesDeepSyntax) {
  for (const char* open : {"(", "[", "-", "not ", "{1:", "a[", "a("}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100'000; ++i) source += open;
    EXPECT_EQ(error_of(source), ErrorCode::kInvalidArgument) << open;
  }
  std::string blocks;
  for (int i = 0; i < 100'000; ++i) blocks += "{% if 1 %}";
  EXPECT_EQ(error_of(blocks), ErrorCode::kInvalidArgument);
  std::string chain = "{{ a";
  for (int i = 0; i < 100'000; ++i) chain += "|upper";
  EXPECT_EQ(error_of(chain + " }}"), ErrorCode::kInvalidArgument);
  std::string sum = "{{ 1";
  for (int i = 0; i < 10'000; ++i) sum += "+1";
  EXPECT_EQ(*render(sum + " }}"), "10001");
}

TEST(ChatTemplate, RefusesDeepInput) {
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_EQ(error_of("{{ x }}", {{"x", deep}}), ErrorCode::kResourceExhausted);
}

TEST(ChatTemplate, ReportsIntegerOverflow) {
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of("{{ 10 ** 30 }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of("{{ -(-9223372036854775807 - 1) }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of("{{ 99999999999999999999 }}"), ErrorCode::kInvalidArgument);
}

// What jinja2 or Python has and no published chat template uses.
TEST(ChatTemplate, RefusesByNameWhatNoChatTemplateUses) {
  const auto refuses = [](const std::string& source, const std::string& named) {
    const auto result = render(source, {{"s", "a"}, {"n", 1}});
    ASSERT_FALSE(result) << source << " rendered " << *result;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << source;
    EXPECT_NE(result.error().message.find(named), std::string::npos) << result.error().message;
  };
  for (const std::string name : {"batch",
                                 "center",
                                 "filesizeformat",
                                 "forceescape",
                                 "groupby",
                                 "pprint",
                                 "random",
                                 "slice",
                                 "striptags",
                                 "truncate",
                                 "urlencode",
                                 "wordcount",
                                 "wordwrap",
                                 "xmlattr"}) {
    refuses("{{ s | " + name + " }}", "No filter named '" + name + "'");
    refuses("{{ [s] | map('" + name + "') | list }}", "No filter named '" + name + "'");
  }
  for (const std::string name : {"escaped", "lower", "upper"}) {
    refuses("{{ s is " + name + " }}", "No test named '" + name + "'");
    refuses("{{ [s] | select('" + name + "') | list }}", "No test named '" + name + "'");
  }
  for (const std::string name : {"casefold",
                                 "center",
                                 "expandtabs",
                                 "format_map",
                                 "isalnum",
                                 "isascii",
                                 "isdecimal",
                                 "islower",
                                 "isnumeric",
                                 "isidentifier",
                                 "isprintable",
                                 "istitle",
                                 "isupper",
                                 "ljust",
                                 "rjust",
                                 "partition",
                                 "rpartition",
                                 "swapcase",
                                 "zfill"}) {
    refuses("{{ s." + name + "() }}", "'str object' has no attribute '" + name + "'");
  }
  for (const std::string name : {"cycler", "joiner"}) {
    refuses("{{ " + name + "(s) }}", "'" + name + "' is undefined");
  }
}

TEST(ChatTemplate, RefusesFormatsThatNoChatTemplateUses) {
  for (const std::string format : {"%r",
                                   "%a",
                                   "%c",
                                   "%e",
                                   "%g",
                                   "%o",
                                   "%u",
                                   "%X",
                                   "%ld",
                                   "%+d",
                                   "% d",
                                   "%#x",
                                   "%*d",
                                   "%(s)s"}) {
    const auto result = render("{{ '" + format + "' % n }}", {{"n", 1}});
    ASSERT_FALSE(result) << format << " rendered " << *result;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << format;
    EXPECT_NE(result.error().message.find("unsupported format character"), std::string::npos)
        << result.error().message;
  }
  for (const std::string field : {"{!r}",
                                  "{0.real}",
                                  "{0[a]}",
                                  "{0.__class__}",
                                  "{:{}}",
                                  "{:,}",
                                  "{:_}",
                                  "{:+}",
                                  "{: }",
                                  "{:#x}",
                                  "{:^5}",
                                  "{:*>5}",
                                  "{:=5}",
                                  "{:e}",
                                  "{:g}",
                                  "{:%}",
                                  "{:c}",
                                  "{:n}",
                                  "{:o}"}) {
    const auto result = render("{{ '" + field + "'.format(n, 5) }}", {{"n", 1}});
    ASSERT_FALSE(result) << field << " rendered " << *result;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << field;
    EXPECT_NE(result.error().message.find("unsupported format"), std::string::npos)
        << result.error().message;
  }
  EXPECT_EQ(error_of("{{ '%s' | format(a=1) }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of("{{ '{:.2}'.format(1.5) }}"), ErrorCode::kInvalidArgument);
}

TEST(ChatTemplate, RefusesCharactersByTheirNames) {
  const auto named = ChatTemplate::compile("a\n{{ '\\N{BULLET}' }}");
  ASSERT_FALSE(named);
  EXPECT_NE(named.error().message.find("\\N"), std::string::npos) << named.error().message;
  EXPECT_NE(named.error().message.find("line 2"), std::string::npos) << named.error().message;
  const auto escaped = ChatTemplate::compile("{{ '\\\\N{x}' }}\\N{BULLET}");
  ASSERT_TRUE(escaped) << escaped.error().message;
  EXPECT_EQ(escaped->render_text(Json::object()).value_or(""), "\\N{x}\\N{BULLET}");
}

TEST(ChatTemplate, AGivenTextWithTagsThatNamesNoFileIsTheTemplateItself) {
  for (const std::string source :
       {"{{ messages }}", "a{% if x %}{% endif %}", "{# none #}", "long {{ x }}"}) {
    EXPECT_EQ(read_template_source(source).value_or(""), source);
  }
  const std::string long_source = std::string(10'000, 'x') + "{{ x }}";
  EXPECT_EQ(read_template_source(long_source).value_or(""), long_source);
  EXPECT_FALSE(read_template_source("missing.jinja"));
  EXPECT_FALSE(read_template_source("{ x }"));
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("{{named}}.jinja");
  std::ofstream(path) << "x";
  EXPECT_EQ(read_template_source(path).value_or(""), "x");
}

// Conversations as DeepSeek's own code writes them, each with and without thinking.
TEST(BuiltInTemplate, WritesWhatDeepseeksCodeWrites) {
  const std::string source(built_in_template("deepseek_v32"));
  EXPECT_EQ(source, built_in_template("deepseek32"));
  EXPECT_EQ(read_template_source("deepseek_v32").value_or(""), source);
  EXPECT_TRUE(built_in_template("deepseek_v3").empty());
  const auto chat = ChatTemplate::compile(source);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_TRUE(chat->forms().prints_tools);
  EXPECT_TRUE(chat->forms().prints_calls);
  EXPECT_TRUE(chat->forms().takes_developer);
  EXPECT_FALSE(chat->forms().text_arguments);
  const Json document = Json::parse(read_file(golden_path("deepseek_v32.json")));
  for (const Json& row : document["rows"]) {
    Json variables = row["variables"];
    fit_messages(chat->forms(), variables["messages"]);
    const auto text = chat->render_text(variables);
    EXPECT_TRUE(text) << text.error().message;
    EXPECT_EQ(text.value_or(""), row["text"].get<std::string>());
  }
  EXPECT_EQ(document["rows"].size(), 36U);
}

TEST(BuiltInTemplate, RefusesWhatHasNoPlaceInIt) {
  const std::string source(built_in_template("deepseek_v32"));
  const auto error = [&](const char* messages) {
    const auto text = render(source, {{"messages", Json::parse(messages)}});
    return text ? "" : text.error().message;
  };
  const auto says = [&](const char* messages, const char* what) {
    return error(messages).find(what) != std::string::npos;
  };
  const char* answer = R"([{"role":"user","content":"u"},{"role":"tool","content":"t"}])";
  EXPECT_TRUE(says(answer, "must follow a call"));
  EXPECT_TRUE(says(R"([{"role":"developer","content":""}])", "must have content"));
  EXPECT_TRUE(says(R"([{"role":"critic","content":"c"}])", "no role critic"));
}

// A history may end without a prompt for the next answer, and what users write is no token.
TEST(BuiltInTemplate, OpensAnAnswerOnlyWhereOneIsAsked) {
  const std::string source(built_in_template("deepseek_v32"));
  const Json messages = Json::array({{{"role", "user"}, {"content", "u"}}});
  EXPECT_EQ(marked(source, {{"messages", messages}, {"enable_thinking", true}}),
            "<｜begin▁of▁sentence｜><｜User｜>⟦u⟧");
  EXPECT_EQ(marked(source,
                   {{"messages", messages},
                    {"enable_thinking", true},
                    {"add_generation_prompt", true}}),
            "<｜begin▁of▁sentence｜><｜User｜>⟦u⟧<｜Assistant｜><think>");
}

TEST(ChatTemplate, OneTemplateRendersOnManyThreads) {
  const auto chat = ChatTemplate::compile(read_file(golden_path("chatml.jinja")));
  ASSERT_TRUE(chat) << chat.error().message;
  const Json conversations = Json::parse(read_file(golden_path("conversations.json")));
  const auto expected = chat->render_text(conversations["turns"]);
  ASSERT_TRUE(expected);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& slot : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) slot = chat->render_text(conversations["turns"]).value_or("");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, *expected);
}

TEST(FromJson, ReadsWhatTojsonWrote) {
  EXPECT_EQ(marked("{{ (x | tojson | from_json).a[0] }}", {{"x", {{"a", {"<b>"}}}}}), "⟦<b>⟧");
  EXPECT_EQ(error_of("{{ '{' | from_json }}"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(marked("{{ x | from_json(x) }}{{ '[1]' | from_json('') }}", {{"x", "{<b>"}}),
            "⟦{<b>⟧[1]");
}

// Whatever stands at the ends of the templates, each renders as it would alone.
TEST(NamedTemplates, TheOneForTheRequestIsUsed) {
  const std::vector<std::string> sources = {
      "plain",
      "\n  {% if x %}a{% endif %}\n  {{ 'b' }}\n\n",
      "{%- set y = 1 -%}\n{{ y }}\n  {%- if y %} c{% endif -%} \n",
      "{% macro m(z) %}[{{ z }}]{% endmacro %}{{ m(2) }}",
      "  {# note #}  \nend {% raw %}{% x %}{% endraw %}",
      "{% for t in tools or [] %}\n  {{ t }}\n{% endfor %}",
      "a line of another system\r\n",
      "two ends of one line each\n\r",
      "an opening brace {",
      "{% if x %}{{ '{' }}{% endif %}{\n"};
  const Json tools = {{"tools", {"f"}}, {"x", true}};
  const Json documents = {{"tools", nullptr}, {"documents", {"d"}}, {"x", true}};
  const Json neither = {{"tools", Json::array()}, {"documents", nullptr}, {"x", true}};
  for (const std::string& standard : sources) {
    for (const std::string& other : sources) {
      const std::string both =
          joined_templates({.standard = standard, .tool_use = other, .rag = {}});
      EXPECT_EQ(render(both, tools).value(), render(other, tools).value()) << both;
      EXPECT_EQ(render(both, neither).value(), render(standard, neither).value()) << both;
      const std::string three =
          joined_templates({.standard = standard, .tool_use = "T", .rag = other});
      EXPECT_EQ(render(three, documents).value(), render(other, documents).value()) << three;
      EXPECT_EQ(render(three, tools).value(), "T");
    }
  }
  EXPECT_EQ(joined_templates({.standard = "D", .tool_use = {}, .rag = {}}), "D");
  EXPECT_EQ(joined_templates({.standard = {}, .tool_use = "T", .rag = {}}), "T");
  EXPECT_EQ(joined_templates({.standard = "D", .tool_use = "D", .rag = "D"}), "D");
  EXPECT_EQ(joined_templates({}), "");
}

}  // namespace
}  // namespace sluice
