// SPDX-License-Identifier: Apache-2.0
// What agents send to /v1/responses beyond functions and text: namespaces, custom tools, tools of
// OpenAI's servers, histories with their items, log-probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/responses_fixture.h"
#include "tests/server/sse_events.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

TEST_F(ResponsesApi, AFunctionInANamespaceIsCalledByBothNames) {
  call("crm__find", R"({"q": 1})");
  const Json answer = ok(kTools);
  const Json& item = answer["output"][0];
  EXPECT_EQ(item["type"], "function_call");
  EXPECT_EQ(item["namespace"], "crm");
  EXPECT_EQ(item["name"], "find");
  EXPECT_TRUE(holds(last_prompt(), "crm__find"));
}

TEST_F(ResponsesApi, ACustomToolGetsItsInputAsText) {
  call("patch", R"({"input": "*** Begin\n+\"a\""})");
  const Json answer = ok(kTools);
  const Json& item = answer["output"][0];
  EXPECT_EQ(item["type"], "custom_tool_call");
  EXPECT_EQ(item["name"], "patch");
  EXPECT_EQ(item["input"], "*** Begin\n+\"a\"");
  EXPECT_FALSE(item.contains("arguments"));
  EXPECT_TRUE(holds(last_prompt(), "matches this Lark grammar")) << last_prompt();
  call("patch", R"({"other": 1})");
  EXPECT_EQ(Json::parse(ok(kTools)["output"][0]["input"].get<std::string>())["other"], 1)
      << "what is no input is handed on";
}

// The answer is cut, byte by byte, anywhere in the arguments: what the client sees is the input's
// beginning, and never the object around it.
TEST_F(ResponsesApi, ACustomCallThatIsCutHasThePartOfItsInput) {
  const std::string input = "*** Begin\n+\"\u00e4\"";
  call("patch", R"({"input": "*** Begin\n+\"\u00e4\""})");
  const std::string head = "<tool_call>\n{\"name\": \"patch\", \"arguments\": ";
  size_t num_partial = 0;
  for (size_t length = head.size(); length < head.size() + 36; ++length) {
    const Json answer = ok(std::string(kTools) + R"(,"max_output_tokens":)" + std::to_string(length));
    ASSERT_EQ(answer["status"], "incomplete");
    if (answer["output"].empty() || answer["output"][0]["type"] != "custom_tool_call") continue;
    const std::string part = answer["output"][0]["input"];
    EXPECT_TRUE(input.starts_with(part)) << length << ": " << part;
    if (!part.empty() && part != input) ++num_partial;
  }
  EXPECT_GT(num_partial, 9U);
  const HttpReply reply = ask(std::string(kTools) + R"(,"stream":true,"max_output_tokens":)" +
                              std::to_string(head.size() + 18));
  Json done;
  for (const std::string& text : data_of_events(reply.body)) {
    const Json event = Json::parse(text);
    if (event["type"] == "response.custom_tool_call_input.done") done = event;
  }
  EXPECT_EQ(done["input"], "*** Beg") << reply.body;
}

// What the answer was sampled with, and not what the API's documentation has as defaults.
TEST_F(ResponsesApi, SettingsAreThoseOfTheServerWhereTheRequestHasNone) {
  engine_.editable_model().sampling.temperature = 0.3F;
  engine_.editable_model().sampling.top_p = 0.8F;
  const Json usual = ok(R"("service_tier":"flex")");
  EXPECT_FLOAT_EQ(usual["temperature"].get<float>(), 0.3F);
  EXPECT_FLOAT_EQ(usual["top_p"].get<float>(), 0.8F);
  EXPECT_TRUE(usual["max_output_tokens"].is_null()) << usual;
  EXPECT_EQ(usual["service_tier"], "default") << "there is no other";
  const Json asked = ok(R"("temperature":0.5,"top_p":0.25,"max_output_tokens":7)");
  EXPECT_EQ(asked["temperature"], 0.5);
  EXPECT_EQ(asked["top_p"], 0.25);
  EXPECT_EQ(asked["max_output_tokens"], 7);
  engine_.editable_model().max_output_tokens = 5;
  EXPECT_EQ(ok(R"("max_output_tokens":7)")["max_output_tokens"], 5);
  EXPECT_EQ(ok(R"("top_p":1)")["max_output_tokens"], 5);
}

TEST_F(ResponsesApi, ACustomCallHasEventsOfItsOwn) {
  call("patch", R"({"input": "*** Begin"})");
  const HttpReply reply = ask(std::string(kTools) + R"(,"stream":true)");
  std::vector<std::string> types;
  Json done;
  for (const std::string& text : data_of_events(reply.body)) {
    const Json event = Json::parse(text);
    types.push_back(event["type"]);
    if (event["type"] == "response.custom_tool_call_input.done") done = event;
  }
  EXPECT_EQ(done["input"], "*** Begin") << reply.body;
  EXPECT_EQ(std::ranges::count(types, "response.custom_tool_call_input.delta"), 1);
  EXPECT_EQ(std::ranges::count(types, "response.function_call_arguments.delta"), 0);
}

TEST_F(ResponsesApi, ARegularExpressionBindsWhatACustomToolIsForcedToTake) {
  call("sql", R"({"input": "SELECT 1"})");
  const HttpReply reply =
      ask(R"("tools":[{"type":"custom","name":"sql","format":{"type":"grammar","syntax":"regex",)"
          R"("definition":"SELECT [0-9]+|NONE"}}],"tool_choice":{"type":"custom","name":"sql"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "");
  const GrammarSpec spec = submitted_grammar(engine_);
  EXPECT_TRUE(holds(spec.text, R"("pattern":"^(?:SELECT [0-9]+|NONE)$")")) << spec.text;
}

TEST_F(ResponsesApi, ToolsOfOpenAisServersAreLeftOutAndNamed) {
  const HttpReply reply = ask(kTools);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"),
            "tools.patch.format, tools.web_search, tools.image_generation");
  EXPECT_EQ(ask(R"("tools":[{"type":"mcp","server_label":"x"}])").status, 200);
  const HttpReply asked = ask(std::string(kTools) + R"(,"tool_choice":{"type":"web_search"})");
  EXPECT_EQ(asked.status, 400);
  EXPECT_EQ(Json::parse(asked.body)["error"]["param"], "tool_choice");
}

TEST_F(ResponsesApi, TwoToolsOfOneNameAreRefused) {
  const std::string tool = R"({"type":"function","name":"crm__find","parameters":{}})";
  EXPECT_EQ(ask(R"("tools":[{"type":"namespace","name":"crm","tools":[{"type":"function",)"
                R"("name":"find"}]},)" +
                tool + "]")
                .status,
            400);
}

TEST_F(ResponsesApi, AChoiceMayNameAnyToolThatWorks) {
  for (const char* choice :
       {R"({"type":"custom","name":"patch"})",
        R"({"type":"function","name":"find","namespace":"crm"})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"patch"}]})"}) {
    EXPECT_EQ(ask(std::string(kTools) + R"(,"tool_choice":)" + choice).status, 200) << choice;
  }
}

TEST_F(ResponsesApi, HistoriesMayHoldEveryKindOfCall) {
  const std::string items =
      R"([{"role":"user","content":"a"},)"
      R"({"type":"reasoning","summary":[],"encrypted_content":"x"},)"
      R"({"type":"custom_tool_call","call_id":"c1","name":"patch","input":"*** Begin"},)"
      R"({"type":"custom_tool_call_output","call_id":"c1","output":"Done"},)"
      R"({"type":"local_shell_call","id":"i","call_id":"c2","status":"completed",)"
      R"("action":{"type":"exec","command":["ls"],"env":{}}},)"
      R"({"type":"local_shell_call_output","id":"c2","output":"file.txt"},)"
      R"({"type":"web_search_call","id":"w","status":"completed"},)"
      R"({"role":"user","content":"b"}])";
  const HttpReply reply = send("POST", kResponses, R"({"input":)" + items + "," + kTools + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string prompt = last_prompt();
  for (const char* part : {"patch", "*** Begin", "Done", "local_shell", "ls", "file.txt"}) {
    EXPECT_TRUE(holds(prompt, part)) << part << prompt;
  }
  EXPECT_TRUE(holds(reply.header("x-sluice-ignored-arguments"), "input.web_search_call"));
}

TEST_F(ResponsesApi, WhatIsLeftOfHostedToolsIsLeftOut) {
  const HttpReply reply =
      send("POST",
           kResponses,
           R"({"input":[{"role":"user","content":"a"},{"type":"computer_call","call_id":"c"},)"
           R"({"type":"computer_call_output","call_id":"c","output":{}},{"type":)"
           R"("mcp_approval_request","id":"m"},{"type":"mcp_approval_response","approve":true},)"
           R"({"type":"tool_search_call","id":"t"},{"type":"tool_search_output","tools":[]}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(holds(reply.header("x-sluice-ignored-arguments"), "input.tool_search_output"));
}

TEST_F(ResponsesApi, APatchMayHaveNoOutputButItsStatus) {
  const std::string call = R"({"input":[{"role":"user","content":"a"},)"
                           R"({"type":"apply_patch_call","call_id":"c1","status":"completed",)"
                           R"("operation":{"type":"delete_file","path":"a.txt"}},)";
  const auto with = [&](const char* output) {
    return send("POST", kResponses, call + output + "]}").status;
  };
  EXPECT_EQ(with(R"({"type":"apply_patch_call_output","call_id":"c1","status":"failed"})"), 200);
  EXPECT_TRUE(holds(last_prompt(), "failed")) << last_prompt();
  EXPECT_EQ(with(R"({"type":"apply_patch_call_output","call_id":"c1","output":"no such file",)"
                 R"("status":"failed"})"),
            200);
  EXPECT_TRUE(holds(last_prompt(), "no such file")) << last_prompt();
  EXPECT_EQ(with(R"({"type":"function_call_output","call_id":"c1","status":"failed"})"), 400);
}

TEST_F(ResponsesApi, FieldsThatItsClientsKnowHaveAClass) {
  const HttpReply harmless =
      ask(R"("store":false,"moderation":{"model":"a"},"prompt_cache_options":{"mode":"explicit"},)"
          R"("access_programs":{},"image":{},"background_options":{})");
  EXPECT_EQ(harmless.status, 200) << harmless.body;
  EXPECT_EQ(harmless.header("x-sluice-ignored-arguments"), "");
  EXPECT_EQ(ask(R"("moderation":"a")").status, 400);
  const HttpReply refused = ask(R"("context_management":[{"type":"compaction"}])");
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(holds(refused.body, "`context_management` is not supported")) << refused.body;
  EXPECT_EQ(ask(R"("store":false,"context_management":[])").status, 200);
}

TEST_F(ResponsesApi, TokensOfAnInputAreCounted) {
  const HttpReply reply = send("POST", "/v1/responses/input_tokens", R"({"input":"a"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json count = Json::parse(reply.body);
  EXPECT_EQ(count["object"], "response.input_tokens");
  ok(R"("store":false)");
  EXPECT_EQ(count["input_tokens"], engine_.submitted().back().prompt.size());
  const HttpReply compact = send("POST", "/v1/responses/compact", R"({"input":"a"})");
  EXPECT_EQ(compact.status, 400);
  EXPECT_TRUE(holds(compact.body, "compact"));
}

TEST_F(ResponsesApi, LogprobsOfTheTextAreInTheAnswer) {
  engine_.say("Hi");
  const Json text = ok(
      R"("include":["message.output_text.logprobs"],"top_logprobs":2)")["output"][0]["content"][0];
  ASSERT_GE(text["logprobs"].size(), 2U) << text;
  EXPECT_EQ(text["logprobs"][0]["token"], "H");
  EXPECT_TRUE(text["logprobs"][0]["bytes"].is_array());
  EXPECT_TRUE(text["logprobs"][0]["top_logprobs"].is_array());
  engine_.say("Hi");
  const HttpReply reply = ask(R"("include":["message.output_text.logprobs"],"stream":true)");
  size_t in_deltas = 0;
  for (const std::string& data : data_of_events(reply.body)) {
    const Json event = Json::parse(data);
    if (event["type"] == "response.output_text.delta") in_deltas += event["logprobs"].size();
    if (event["type"] == "response.output_text.done") {
      EXPECT_EQ(event["logprobs"].size(), in_deltas);
      // Only the part has the bytes: the types of the two events know none.
      EXPECT_FALSE(event["logprobs"][0].contains("bytes"));
      EXPECT_EQ(event["logprobs"][0]["top_logprobs"].size(), 0U);
    }
    if (event["type"] == "response.content_part.done") {
      EXPECT_TRUE(event["part"]["logprobs"][0].contains("bytes"));
    }
  }
  EXPECT_EQ(in_deltas, text["logprobs"].size());
  EXPECT_TRUE(ok(R"("store":false)")["output"][0]["content"][0]["logprobs"].empty());
}

TEST_F(ResponsesApi, SamplingFieldsOfVllmHaveTheirEffect) {
  engine_.say("Hello");
  const HttpReply reply = ask(
      R"("min_p":0.25,"top_k":5,"seed":9,"presence_penalty":0.5,"frequency_penalty":-0.5,)"
      R"("repetition_penalty":1.5,"min_tokens":2,"stop_token_ids":[7],"logit_bias":{"65":-1},)"
      R"("bad_words":["q"],"priority":3,"max_queue_wait_ms":60000,"cache_salt":"s",)"
      R"("structured_outputs":{"regex":"Hel+o"},"stop":["lo"],"include_stop_str_in_output":true)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "");
  EXPECT_EQ(Json::parse(reply.body)["output"][0]["content"][0]["text"], "Hello");
  const ValidRequest request = engine_.submitted().back();
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.min_p, 0.25F);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.seed, 9U);
  EXPECT_EQ(sampling.presence_penalty, 0.5F);
  EXPECT_EQ(sampling.frequency_penalty, -0.5F);
  EXPECT_EQ(sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(sampling.logit_bias.size(), 1U);
  EXPECT_EQ(sampling.bad_words.size(), 1U);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.max_queue_wait_ms, 60000);
  ASSERT_NE(request.grammar, nullptr);
  EXPECT_EQ(request.grammar->text, "Hel+o");
  EXPECT_EQ(ok(R"("stop":"l")")["output"][0]["content"][0]["text"], "He");
  EXPECT_NE(engine_.submitted().back().tenant_salt, request.tenant_salt);
  EXPECT_EQ(ok(R"("ignore_eos":true,"max_output_tokens":9)")["usage"]["output_tokens"], 9);
  const HttpReply refused = ask(R"("stop":[""])");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "stop");
}

TEST_F(ResponsesApi, AnAnswerThatTheInputHasBegunGoesOn) {
  engine_.say(" upon a time");
  const auto input = [](const std::string& last) {
    return R"({"instructions":"Tell.","input":[{"role":"user","content":"a"},)"
           R"({"type":"message","role":"assistant",)" + last + "}]}";
  };
  for (const char* content : {R"("content":"Once")",
                              R"("content":[{"type":"output_text","text":"Once"}])"}) {
    for (const char* status : {"in_progress", "incomplete"}) {
      const HttpReply reply = send(
          "POST", kResponses, input(std::string(content) + R"(,"status":")" + status + "\""));
      ASSERT_EQ(reply.status, 200) << reply.body;
      EXPECT_TRUE(last_prompt().ends_with("<|im_start|>assistant\nOnce")) << last_prompt();
      // Later it is one message.
      const Json answer = Json::parse(reply.body);
      const std::string next = R"({"input":"b","previous_response_id":)" + answer["id"].dump();
      ASSERT_EQ(send("POST", kResponses, next + "}").status, 200);
      EXPECT_TRUE(holds(last_prompt(), "assistant\nOnce upon a time<|im_end|>")) << last_prompt();
      EXPECT_FALSE(holds(last_prompt(), "Once<|im_end|>")) << last_prompt();
    }
    const HttpReply whole =
        send("POST", kResponses, input(std::string(content) + R"(,"status":"completed")"));
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_TRUE(last_prompt().ends_with("Once<|im_end|>\n<|im_start|>assistant\n"));
  }
}

TEST_F(ResponsesApi, AnAnswerThatTheInputHasBegunKeepsItsThoughts) {
  engine_.say(" upon a time");
  const Json answer = Json::parse(
      send("POST",
           kResponses,
           R"({"input":[{"role":"user","content":"a"},)"
           R"({"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},)"
           R"({"type":"message","role":"assistant","status":"in_progress","content":"Once"}]})")
          .body);
  EXPECT_TRUE(last_prompt().ends_with("assistant\n<think>\nhm\n</think>\n\nOnce")) << last_prompt();
  const std::string next = R"({"input":"b","previous_response_id":)" + answer["id"].dump();
  ASSERT_EQ(send("POST", kResponses, next + "}").status, 200);
  EXPECT_TRUE(holds(last_prompt(), "<think>\nhm\n</think>\n\nOnce upon a time<|im_end|>"))
      << last_prompt();
}

// Messages of the chat are fewer than items, or more.
TEST_F(ResponsesApi, ErrorsNameTheItemOfTheInput) {
  const std::string image = R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})";
  const std::string turn = R"({"type":"reasoning","summary":[{"type":"summary_text","text":"t"}]},)"
                           R"({"role":"assistant","content":"b"},{"type":"function_call",)"
                           R"("call_id":"c","name":"f","arguments":"{}"},)"
                           R"({"type":"function_call_output","call_id":"c","output":"o"},)";
  const auto error_of = [&](const std::string& path, const std::string& items) {
    const HttpReply reply = send(
        "POST", path, R"({"instructions":"i","input":[)" + items + "]}");
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], "input");
    return error["message"].get<std::string>();
  };
  for (const char* path : {kResponses, "/v1/responses/input_tokens"}) {
    EXPECT_TRUE(error_of(path, image).starts_with("input[0].content[0]")) << error_of(path, image);
    const std::string late = error_of(path, turn + image);
    EXPECT_TRUE(late.starts_with("input[4].content[0]")) << late;
  }
  const std::string said = error_of(
      kResponses, turn.substr(0, turn.find(R"({"role")")) +
                      R"({"role":"assistant","content":[{"type":"input_image","image_url":"x"}]})");
  EXPECT_TRUE(said.starts_with("input[1].content[0]")) << said;
}

TEST_F(ResponsesApi, UsageSaysWhatTheCacheTook) {
  EXPECT_TRUE(
      ok(R"("store":false)")["usage"]["input_tokens_details"].contains("cache_write_tokens"));
}

}  // namespace
}  // namespace sluice
