// SPDX-License-Identifier: Apache-2.0
// Conversations as clients write them, through the validator to the text of the prompt. Goldens
// come from jinja2 (golden/templates/make_message_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "server/api/request_validator.h"
#include "server/prompt/chat_template.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kClock = 1767323045;  // 2026-01-02 03:04:05 UTC

Expected<ChatTemplate> compiled(const std::string& source) {
  return ChatTemplate::compile(source, {}, [] { return kClock; });
}

// The ids of a chat's prompt.
Expected<std::vector<TokenId>> ids_of(const Expected<ChatTemplate>& chat, const std::string& body) {
  static const Config config;
  static const ByteTokenizer tokenizer;
  static const std::vector<std::string> names = {"m"};
  ModelInfo model;
  model.vocab_size = ByteTokenizer::kVocabSize;
  model.max_model_len = 100'000;
  const ValidationContext context{config, model, tokenizer, chat, names, 1, 0, {}};
  IgnoredArguments ignored(UnknownArguments::kRefuse);
  SLUICE_TRY(const auto request, validate_generation(context, body, Endpoint::kChat, ignored));
  return request.requests.front().prompt;
}

Expected<std::string> prompt_of(const Expected<ChatTemplate>& chat, const std::string& body) {
  static const ByteTokenizer tokenizer;
  SLUICE_TRY(const auto ids, ids_of(chat, body));
  std::string text;
  for (const TokenId id : ids) text += tokenizer.token_bytes(id);
  return text;
}

// `messages`: the elements of the array.
std::string rendered(const std::string& source, const std::string& messages) {
  const auto text = prompt_of(compiled(source), "{\"messages\":[" + messages + "]}");
  return text ? *text : "error: " + text.error().message;
}

// Returns the number of cases.
size_t check_goldens(const std::string& path) {
  setenv("TZ", "UTC", 1);  // NOLINT(concurrency-mt-unsafe)
  tzset();
  std::ifstream file(path);
  const Json document = Json::parse(file);
  size_t num_cases = 0;
  for (const Json& row : document["templates"]) {
    const auto chat = compiled(row["source"].get<std::string>());
    EXPECT_TRUE(chat) << row["template"] << chat.error().message;
    for (const Json& wanted : row["cases"]) {
      const std::string name = row["template"].get<std::string>() + "/" + wanted["name"].dump();
      Json body = {{"messages", wanted["messages"]}};
      for (const char* flag : {"add_generation_prompt", "continue_final_message"}) {
        if (wanted.contains(flag)) body[flag] = wanted[flag];
      }
      const auto text = prompt_of(chat, body.dump());
      ++num_cases;
      if (wanted.contains("error")) {
        EXPECT_FALSE(text) << name << " rendered " << *text << "\nexpected: " << wanted["error"];
        continue;
      }
      EXPECT_EQ(text ? *text : "error: " + text.error().message,
                wanted["output"].get<std::string>())
          << name;
    }
  }
  return num_cases;
}

TEST(Messages, BecomeWhatJinja2MakesOfThem) {
  EXPECT_GT(check_goldens(golden_folder() + "/templates/message_goldens.json"), 400U);
}

TEST(Messages, BecomeWhatJinja2MakesOfThemInPublishedTemplates) {
  const char* path = std::getenv("SLUICE_MESSAGE_GOLDENS");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) {
    GTEST_SKIP() << "SLUICE_MESSAGE_GOLDENS names no file of make_message_goldens.py";
  }
  EXPECT_GT(check_goldens(path), 0U);
}

constexpr const char* kPlain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

TEST(Messages, PartsOfUsersNeverBecomeControlTokens) {
  const auto chat = compiled(
      "{% for m in messages %}<|im_start|>{% for p in m.content %}{{ p.text }}{% endfor %}"
      "{% endfor %}");
  ASSERT_TRUE(chat) << chat.error().message;
  for (const char* content :
       {R"("<|im_end|>")",
        R"([{"type":"text","text":"<|im_end|>"}])",
        R"([{"type":"text","text":"<|im_"},{"type":"text","text":"end|>"}])"}) {
    const auto ids =
        ids_of(chat, std::string(R"({"messages":[{"role":"user","content":)") + content + "}]}");
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(ids->size(), 1U + 10U) << content;
    EXPECT_EQ(ids->front(), ByteTokenizer::kTurnStart);
  }
}

// Instructions, arguments and continued texts pass through more hands.
TEST(Messages, NothingThatIsFittedBecomesAControlToken) {
  const auto chat = compiled(
      "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
      "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
      "{% for k, v in c.function.arguments | items %}{{ v }}"
      "{% endfor %}{% endfor %}{% endif %}{% endfor %}");
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_FALSE(chat->forms().takes_two_instructions);
  EXPECT_TRUE(chat->forms().object_arguments);
  const auto ids = ids_of(chat, R"({"messages":[
      {"role":"system","content":"<|im_start|>"},{"role":"developer","content":"<|im_end|>"},
      {"role":"assistant","content":"","tool_calls":[
          {"function":{"name":"f","arguments":"<|im_end|>"}}]},
      {"role":"assistant","content":"<s> "}],"continue_final_message":true})");
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_EQ(std::ranges::count_if(*ids, [](TokenId id) { return id >= 256; }), 0);
  EXPECT_EQ(std::string(ids->begin(), ids->end()), "<|im_start|>\n\n<|im_end|>f<|im_end|><s> ");
}

TEST(Messages, FormsAreFoundByRendering) {
  const auto forms_of = [](const std::string& source) { return compiled(source)->forms(); };
  const auto describe = [](const ContentForms& forms) {
    return std::string(forms.strings ? "s" : "") + (forms.parts ? "p" : "");
  };
  EXPECT_EQ(describe(forms_of(kPlain).content_of("user")), "s");
  const auto lists = forms_of(
      "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}");
  EXPECT_EQ(describe(lists.content_of("user")), "p");
  EXPECT_EQ(describe(lists.content_of("no one knows")), "p");
  // The first part alone is not the content.
  const auto first = forms_of(
      "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}"
      "{% endfor %}");
  EXPECT_EQ(describe(first.content_of("assistant")), "s");
  // Roles that are named have their own.
  const auto mixed = forms_of(
      "{% for m in messages %}{% if m.role in ['ipython', 'tool'] %}{{ m.content | tojson }}"
      "{% elif m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
  EXPECT_EQ(describe(mixed.content_of("user")), "sp");
  EXPECT_EQ(describe(mixed.content_of("ipython")), "s");
  EXPECT_EQ(describe(mixed.content_of("tool")), "s");
  EXPECT_EQ(describe(mixed.content_of("observation")), "sp");
  // Calls are taken, and their answers are not.
  const auto calls = forms_of(
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments.items() | list }}"
      "{% endfor %}{% endfor %}");
  EXPECT_TRUE(calls.object_arguments);
  EXPECT_FALSE(calls.text_arguments);
  EXPECT_EQ(describe(calls.content_of("tool")), "");
  // A user's turn has to come first; tools have to be there.
  const auto strict = forms_of(
      "{% for t in tools %}{{ t.function.name }}{% endfor %}"
      "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}"
      "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}");
  EXPECT_EQ(describe(strict.content_of("user")), "p");
  EXPECT_EQ(describe(strict.content_of("tool")), "p");
}

// A template that no small conversation satisfies, or that shows contents only changed, must not
// lose what a user says.
TEST(Messages, UsersTextReachesThePromptOfTemplatesThatAskForMore) {
  const std::string list = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}"
                           "{% endfor %}";
  const auto demanding = [&](const std::string& condition) {
    return "{% if " + condition + " %}{{ raise_exception('no') }}{% endif %}" + list;
  };
  const std::string user = R"({"role":"user","content":"Hi"})";
  const std::string system = R"({"role":"system","content":"S"},)";
  const std::string answer = R"(,{"role":"assistant","content":"A"})";
  EXPECT_EQ(rendered("{{ pad_token + eos_token }}" + list, user), "<|im_end|><|im_end|>Hi;");
  EXPECT_EQ(rendered(demanding("messages[0].role != 'system'"), system + user), "S;Hi;");
  EXPECT_EQ(rendered(demanding("messages | length < 2"), user + answer), "Hi;A;");
  EXPECT_EQ(rendered(demanding("messages[-1].role != 'assistant'"), user + answer), "Hi;A;");
  EXPECT_EQ(rendered(demanding("messages[0].role != 'system' or messages[-1].role != 'assistant'"),
                     system + user + answer),
            "S;Hi;A;");
  EXPECT_EQ(rendered(demanding("messages | length != 3 or messages[1].role == 'assistant'"),
                     user + "," + user + "," + user),
            "Hi;Hi;Hi;");
  const auto with = [&](const std::string& source, const std::string& rest) {
    const auto text = prompt_of(compiled(source), "{\"messages\":[" + user + "]," + rest + "}");
    return text ? *text : "error: " + text.error().message;
  };
  EXPECT_EQ(with("{{ documents[0].title + ' ' }}" + list, R"("documents":[{"title":"D"}])"),
            "D Hi;");
  EXPECT_EQ(with("{{ mode + ' ' }}" + list, R"("chat_template_kwargs":{"mode":"on"})"), "on Hi;");
  EXPECT_EQ(with("{{ mode + ' ' }}{{ messages[0].content[0].text }}",
                 R"("chat_template_kwargs":{"mode":"on"})"),
            "on Hi");
  EXPECT_EQ(rendered("{% for m in messages %}{% for p in m.content %}{{ p.text | upper }};"
                     "{% endfor %}{% endfor %}",
                     user),
            "HI;");
}

TEST(Messages, ContentsAreJoinedIntoTheOnePartThatATemplateReads) {
  const std::string user =
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"user","content":"c"})";
  EXPECT_EQ(rendered("{% for m in messages %}{{ m['content'][0]['text'] }};{% endfor %}", user),
            "a\nb;c;");
  EXPECT_EQ(rendered("{% for m in messages %}{% if m.content | length == 1 %}"
                     "{{ m.content[0].text }};{% else %}{{ raise_exception('no') }}{% endif %}"
                     "{% endfor %}",
                     user),
            "a\nb;c;");
}

TEST(Messages, EmptyPartsAddNoLineWhereTheyAreJoined) {
  EXPECT_EQ(rendered("{% for m in messages %}[{{ m.content }}]{% endfor %}",
                     R"({"role":"user","content":[{"type":"text","text":""},
                         {"type":"text","text":"a"},{"type":"text","text":""},
                         {"type":"text","text":"b"},{"type":"text","text":""}]},
                        {"role":"user","content":[{"type":"text","text":""}]})"),
            "[a\nb][]");
}

TEST(Messages, EveryInstructionReachesATemplateThatTakesOne) {
  const std::string source =
      "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}"
      "{% endfor %}";
  const std::string system = R"({"role":"system","content":"A1"})";
  const std::string developer = R"({"role":"developer","content":"A2"})";
  const std::string user = R"({"role":"user","content":"u"})";
  const std::string answer = R"({"role":"assistant","content":"a"})";
  EXPECT_EQ(rendered(source, system + "," + user + "," + answer + "," + developer + "," + user),
            "[A1\n\nA2]uau");
  EXPECT_EQ(rendered(source, user + "," + developer), "[A2]u");
  EXPECT_EQ(rendered(source, user + "," + system + "," + user + "," + developer),
            "[A1\n\nA2]uu");
  EXPECT_EQ(rendered(source, system + "," + system + "," + user), "[A1\n\nA1]u");
  // Two at the front are taken, and later ones are lost without a word.
  const std::string front =
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] or loop.index0 < 2 %}"
      "{{ m.content }};{% endif %}{% endfor %}";
  EXPECT_EQ(rendered(front, system + "," + developer + "," + user), "A1;A2;u;");
  EXPECT_EQ(rendered(front, system + "," + user + "," + answer + "," + developer + "," + user),
            "A1\n\nA2;u;a;u;");
  // The places of those that are taken anywhere stay.
  EXPECT_EQ(rendered(kPlain, user + "," + system + "," + user + "," + system),
            "<user>u<system>A1<user>u<system>A1");
}

TEST(Messages, FindingFormsEndsWithinItsLimits) {
  const auto begin = std::chrono::steady_clock::now();
  const auto chat = ChatTemplate::compile(
      "{% for m in messages %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
      "{% endfor %}{% endfor %}");
  ASSERT_TRUE(chat);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(chat->forms().takes_developer);
  EXPECT_FALSE(chat->forms().object_arguments);
}

TEST(Messages, EmptyMembersAreAbsentForEveryRole) {
  const std::string source =
      "{% for m in messages %}{{ m | list | join(',') }}={{ m.content }};{% endfor %}";
  EXPECT_EQ(rendered(source,
                     R"({"role":"user","content":null,"name":""},
                        {"content":"a","role":"assistant","tool_calls":null,"audio":{}},
                        {"role":"tool","content":null,"tool_call_id":"x","meta":[]},
                        {"role":"king","content":null},{"role":"assistant"})"),
            "role,content=;content,role=a;role,content,tool_call_id=;role,content=;role,content=;");
}

TEST(Messages, RefusesWhatIsNoMessage) {
  for (const char* message : {R"({"role":"","content":"x"})",
                              R"({"role":null,"content":"x"})",
                              R"({"content":"x"})",
                              R"({"role":"user"})",
                              R"({"role":"user","content":[7]})",
                              R"({"role":"user","content":[{"type":"refusal","text":"x"}]})",
                              R"({"role":"assistant","function_call":"f"})",
                              R"({"role":"user","content":{}})",
                              R"({"role":"assistant","tool_calls":{}})",
                              R"({"role":"assistant","tool_calls":[null]})",
                              R"({"role":"assistant","tool_calls":[{"function":null}]})"}) {
    const auto result =
        prompt_of(compiled(kPlain), "{\"messages\":[" + std::string(message) + "]}");
    ASSERT_FALSE(result) << message;
    EXPECT_EQ(result.error().param, "messages") << message;
  }
}

TEST(Messages, RolesThatTheTemplateDoesNotKnowHaveItsOwnError) {
  const std::string source =
      "{% for m in messages %}{% if m.role not in ['user', 'observation'] %}"
      "{{ raise_exception('Who is ' + m.role + '?') }}{% endif %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(rendered(source, R"({"role":"observation","content":"seen"})"), "seen");
  EXPECT_EQ(rendered(source, R"({"role":"king","content":"x"})"),
            "error: The chat template failed: Who is king?");
  EXPECT_EQ(rendered(source, R"({"role":"developer","content":"x"})"),
            "error: The chat template failed: Who is system?");
}

std::string with_arguments(const std::string& source, const Json& arguments) {
  const Json call = {{"function", {{"name", "f"}, {"arguments", arguments}}}};
  const Json message = {{"role", "assistant"}, {"tool_calls", Json::array({call})}};
  return rendered(source, message.dump());
}

constexpr const char* kArguments =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}"
    "{% endfor %}{% endfor %}";

// Deep nesting and numbers beyond 64 bits are what a client's own body is refused for; what a model
// wrote is passed on.
TEST(Messages, ArgumentsWhoseValueWeCannotHoldStayText) {
  for (const std::string& arguments : {std::string(1000, '[') + std::string(1000, ']'),
                                       std::string("{\"a\":NaN}"),
                                       std::string("{\"a\":-Infinity}"),
                                       std::string("{\"a\": [18446744073709551615]}"),
                                       std::string("{\"a\": 18446744073709551616}"),
                                       std::string("{\"a\": -9223372036854775809}"),
                                       std::string("7")}) {
    EXPECT_EQ(with_arguments(kArguments, arguments), arguments);
  }
  EXPECT_EQ(with_arguments(kArguments, R"({"a":-9223372036854775808,"b":1e30})"),
            "{'a': -9223372036854775808, 'b': 1e+30}");
  EXPECT_EQ(with_arguments(kArguments, Json{{"a", 18446744073709551615U}}),
            R"({"a":18446744073709551615})");
}

TEST(Messages, OfEqualKeysInArgumentsTheLastCounts) {
  EXPECT_EQ(with_arguments(kArguments, R"({"a":1,"b":{"c":1,"c":[2]},"a":{"d":3}})"),
            "{'a': {'d': 3}, 'b': {'c': [2]}}");
  const auto body = prompt_of(compiled(kPlain), R"({"messages":[],"messages":[]})");
  EXPECT_FALSE(body);
}

TEST(Messages, ArgumentsReachTemplatesThatWantTextAsTheyWereSent) {
  const std::string source =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
  EXPECT_EQ(with_arguments(source, R"({"a":1,"b":[1,2.50]})"), R"(f{"a":1,"b":[1,2.50]})");
  EXPECT_EQ(with_arguments(source, R"({"a":1,"a":2})"), R"(f{"a":1,"a":2})");
  EXPECT_EQ(with_arguments(source, Json{{"a", 1}}), R"(f{"a": 1})");
  for (const Json& nothing : {Json(), Json(""), Json("null")}) {
    EXPECT_EQ(with_arguments(source, nothing), "f{}");
  }
}

TEST(Messages, LargeIntegersThatNoTemplateReadsAreNoError) {
  const std::string user = R"({"role":"user","content":"Hi","id":18446744073709551615})";
  EXPECT_EQ(rendered(kPlain, user), "<user>Hi");
  const auto text = prompt_of(compiled(kPlain),
                              "{\"messages\":[" + user +
                                  "],\"chat_template_kwargs\":{\"n\":9223372036854775808}}");
  EXPECT_EQ(text ? *text : text.error().message, "<user>Hi");
}

TEST(Messages, ReasoningHasTheNamesThatTransformersGivesIt) {
  const std::string source =
      "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};"
      "{% endfor %}";
  const auto of = [&](const std::string& fields) {
    return rendered(source, R"({"role":"assistant","content":"x",)" + fields + "}");
  };
  EXPECT_EQ(of(R"("reasoning":"r")"), "r|r|r;");
  EXPECT_EQ(of(R"("thinking":"t")"), "t|t|;");
  EXPECT_EQ(of(R"("reasoning_content":"c")"), "c|c|;");
  EXPECT_EQ(of(R"("reasoning_content":null,"thinking":null,"reasoning":"r")"), "r|r|r;");
  EXPECT_EQ(of(R"("reasoning":"r","thinking":"t","reasoning_content":"c")"), "c|t|r;");
  EXPECT_EQ(of(R"("reasoning":null)"), "||;");
}

TEST(Messages, CallsKeepTheMembersThatAreRequired) {
  const std::string source =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}"
      "{{ '[' + c.function.name + ']' }}{{ c.id is defined }}{{ c.id }};{% endfor %}{% endfor %}";
  const auto of = [&](const std::string& call) {
    return rendered(source, R"({"role":"assistant","tool_calls":[)" + call + "]}");
  };
  EXPECT_EQ(of(R"({"id":"","function":{"name":""}})"), "[]True;");
  EXPECT_EQ(of(R"({"id":null,"function":{"name":null}})"), "[]True;");
  EXPECT_EQ(of(R"({"function":{"arguments":"{}"}})"), "[]False;");
}

TEST(Messages, ToolsThatSayNothingHaveEmptyContent) {
  for (const char* role : {"tool", "function", "assistant"}) {
    EXPECT_EQ(rendered(kPlain, std::string(R"({"role":")") + role + "\"}"),
              std::string("<") + role + ">");
  }
}

TEST(Messages, PartsOfOtherTypesThatAreTextBecomeTextParts) {
  EXPECT_EQ(rendered("{% for m in messages %}{% for p in m.content %}"
                     "{{ p.keys() | list | join }}={{ p.type }}:{{ p.text }};"
                     "{% endfor %}{% endfor %}",
                     R"({"role":"user","content":["a",{"type":"input_text","text":"b"},
                         {"type":"output_text","text":"c","annotations":[]},
                         {"type":"refusal","refusal":"d"}]})"),
            "typetext=text:a;typetext=text:b;typetext=text:c;typetext=text:d;");
}

TEST(Messages, OlderFunctionCallsBecomeToolCalls) {
  const std::string source =
      "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'tool'] %}"
      "{{ raise_exception('no') }}{% endif %}<{{ m.role }}{{ m.name }}>{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.type }} {{ c.function.name }} "
      "{{ c.function.arguments.k }}{% endfor %}{% endfor %}";
  const std::string call = R"({"role":"assistant","content":null,
      "function_call":{"name":"f","arguments":"{\"k\":1}"}},)";
  const std::string answer = R"({"role":"function","name":"f","content":"3"})";
  EXPECT_EQ(rendered(source, call + answer), "<assistant>function f 1<toolf>3");
  // The role stays where the template has it.
  EXPECT_EQ(rendered(kPlain, call + answer), "<assistant><function>3");
}

TEST(Messages, ThoughtsThatATemplateTakesApartCanBeContinued) {
  std::string source =
      "{% for m in messages %}[{% if '</think>' in m.content %}"
      "<think>{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>KEPT"
      "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}]"
      "{% endfor %}";
  const auto continued = [&](const std::string& kept, const std::string& text) {
    std::string changed = source;
    changed.replace(changed.find("KEPT"), 4, kept);
    const Json body = {
        {"messages", Json::array({{{"role", "assistant"}, {"content", text}}})},
        {"continue_final_message", true}};
    const auto prompt = prompt_of(compiled(changed), body.dump());
    return prompt ? *prompt : prompt.error().param;
  };
  EXPECT_EQ(continued("\n\n", "<think>\n\n</think>\n\n"), "[<think>\n\n</think>");
  EXPECT_EQ(continued("\n\n", "<think>\nok\n</think>\n\n"), "[<think>\nok\n</think>");
  EXPECT_EQ(continued("\n", "<think>a</think>b "), "continue_final_message");
  // A template that keeps the white space behind the mark keeps what it wrote before it.
  source.replace(source.find("| trim"), 6, ".lstrip('\n') ");
  source.replace(source.find("[-1] .lstrip"), 12, "[-1].lstrip");
  EXPECT_EQ(continued("\n\n", "<think>\n\n</think>\n\n"), "[<think>\n\n</think>\n\n");
}

TEST(Messages, TrailingSpaceOfUnicodeIsTrimmedWhereTheTemplateTrims) {
  const auto continued = [](const std::string& source, const std::string& text) {
    const Json body = {{"messages", Json::array({{{"role", "assistant"}, {"content", text}}})},
                       {"continue_final_message", true}};
    const auto prompt = prompt_of(compiled(source), body.dump());
    return prompt ? *prompt : prompt.error().param;
  };
  const std::string trimmed = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
  for (const char* space : {"\u2003", "\u3000", "\u00a0", "\u0085", "\x1f", " \u2009\n"}) {
    const std::string text = "Sure:" + std::string(space);
    EXPECT_EQ(continued(trimmed, text), "[Sure:");
    EXPECT_EQ(continued("{% for m in messages %}[{{ m.content }}]{% endfor %}", text), "[" + text);
  }
}

TEST(Messages, ContinuedTextKeepsWhatTheTemplateKeeps) {
  const auto continued = [](const std::string& source, const std::string& text) {
    const Json body = {{"messages",
                        Json::array({{{"role", "user"}, {"content", "Sure: "}},
                                     {{"role", "assistant"}, {"content", text}}})},
                       {"continue_final_message", true}};
    const auto prompt = prompt_of(compiled(source), body.dump());
    return prompt ? *prompt : prompt.error().param;
  };
  const std::string kept = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const std::string trimmed = "{% for m in messages %}[{{ m.content | trim }}\n]{% endfor %}";
  const std::string lines = "{% for m in messages %}[{{ m.content.rstrip('\n') }}]{% endfor %}";
  EXPECT_EQ(continued(kept, "Sure: "), "[Sure: ][Sure: ");
  EXPECT_EQ(continued(kept, "\tSure:\n \n"), "[Sure: ][\tSure:\n \n");
  EXPECT_EQ(continued(kept, ""), "[Sure: ][");
  EXPECT_EQ(continued(kept, " "), "[Sure: ][ ");
  EXPECT_EQ(continued(trimmed, "Sure:\n"), "[Sure:\n][Sure:");
  EXPECT_EQ(continued(lines, "Sure: \n\n"), "[Sure: ][Sure: ");
  EXPECT_EQ(continued(kept, "qzvxkj qzvxkjq"), "[Sure: ][qzvxkj qzvxkjq");
  // What the template changes cannot be continued.
  EXPECT_EQ(continued("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "Sure"),
            "continue_final_message");
  EXPECT_EQ(
      continued("{% for m in messages %}{{ m.content | replace('S', '') }}{% endfor %}", "Sure"),
      "continue_final_message");
  EXPECT_EQ(continued("{{ messages[0].content }}", "Sure"), "continue_final_message");
}

TEST(TemplateVariables, AllNamedTokensAreThere) {
  EXPECT_EQ(rendered("{{ bos_token }}{{ pad_token }}{{ unk_token is defined }}",
                     R"({"role":"user","content":"x"})"),
            "<s><|im_end|>False");
  const auto chat = compiled("{{ pad_token }}{{ own_token }}");
  for (const char* name : {"pad_token", "own_token", "eos_token"}) {
    const auto result = prompt_of(chat,
                                  R"({"messages":[{"role":"user","content":"x"}],
                                      "chat_template_kwargs":{")" +
                                      std::string(name) + R"(":"<|im_start|>"}})");
    ASSERT_FALSE(result) << name;
    EXPECT_EQ(result.error().param, "chat_template_kwargs");
  }
  std::string many;
  for (int i = 0; i < 129; ++i) many += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + "\":1";
  const auto refused = prompt_of(chat,
                                 R"({"messages":[{"role":"user","content":"x"}],
                                     "chat_template_kwargs":{)" +
                                     many + "}}");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "chat_template_kwargs");
  // What is no text cannot become a control token.
  const auto number = prompt_of(compiled("{{ max_token + 1 }}"),
                                R"({"messages":[{"role":"user","content":"x"}],
                                    "chat_template_kwargs":{"max_token":7}})");
  EXPECT_EQ(number ? *number : number.error().message, "8");
}

}  // namespace
}  // namespace sluice
