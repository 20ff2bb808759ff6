// SPDX-License-Identifier: Apache-2.0
// Answers that the server keeps for /v1/responses: items by their names, an answer as JSON and as
// events, its input, its deletion.
#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/api/routes.h"
#include "server/front/front_end.h"
#include "tests/server/responses_fixture.h"
#include "tests/server/sse_events.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

class KeptResponses : public ResponsesApi {};

TEST_F(KeptResponses, AnItemOfAKeptAnswerMayBeNamed) {
  engine_.say("First answer");
  const Json first = ok(R"("store":true)");
  const std::string id = first["output"][0]["id"];
  for (const std::string& reference :
       {R"({"type":"item_reference","id":")" + id + "\"}", R"({"id":")" + id + "\"}"}) {
    const std::string input = R"({"input":[{"role":"user","content":"a"},)" + reference +
                              R"(,{"role":"user","content":"b"}])";
    const HttpReply reply = send("POST", kResponses, input + "}");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(holds(last_prompt(), "First answer")) << last_prompt();
    const std::string path = std::string(kResponses) + "/" +
                             Json::parse(reply.body)["id"].get<std::string>() + "/input_items";
    EXPECT_EQ(Json::parse(send("GET", path).body)["data"][1]["id"], id);
    EXPECT_EQ(send("POST", std::string(kResponses) + "/input_tokens", input + "}").status, 200);
  }
  call("find", R"({"q": "needle"})");
  const Json called = ok(kTools);
  const std::string call_id = called["output"][0]["call_id"];
  const std::string history =
      R"({"input":[{"role":"user","content":"a"},{"type":"item_reference","id":)" +
      called["output"][0]["id"].dump() + R"(},{"type":"function_call_output","call_id":")" +
      call_id + R"(","output":"hay"}],)" + kTools + "}";
  ASSERT_EQ(send("POST", kResponses, history).status, 200);
  EXPECT_TRUE(holds(last_prompt(), "needle")) << last_prompt();
}

TEST_F(KeptResponses, AnItemThatIsNotKeptIsNotFound) {
  const HttpReply unknown =
      send("POST", kResponses, R"({"input":[{"type":"item_reference","id":"msg_none"}]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_TRUE(holds(unknown.body, "Item with id 'msg_none' not found")) << unknown.body;
  const Json not_kept = ok(R"("store":false)");
  const std::string gone = not_kept["output"][0]["id"].dump();
  EXPECT_EQ(send("POST", kResponses, R"({"input":[{"id":)" + gone + "}]}").status, 404);
  EXPECT_EQ(send("POST", kResponses, R"({"input":[{"type":"item_reference"}]})").status, 400);
}

TEST_F(KeptResponses, ItemsThatAreNamedHaveTheLimitOfABody) {
  config_.max_body_bytes = 4000;
  engine_.say(std::string(400, 'w'));
  const std::string id = ok(R"("store":true)")["output"][0]["id"].dump();
  std::string input = R"({"input":[{"role":"user","content":"a"})";
  for (int i = 0; i < 20; ++i) input += R"(,{"id":)" + id + "}";
  const HttpReply reply = send("POST", kResponses, input + "]}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_TRUE(holds(reply.body, "4000 bytes")) << reply.body;
}

TEST_F(KeptResponses, AResponseIsFoundByItsNameAlone) {
  const std::string id = ok(R"("store":true)")["id"];
  const std::string path = std::string(kResponses) + "/";
  for (const char* method : {"GET", "DELETE"}) {
    EXPECT_EQ(send(method, path + "x/y/" + id).status, 404) << method;
  }
  EXPECT_EQ(send("GET", path + id).status, 200);
  EXPECT_EQ(send("POST", path + id + "/cancel").status, 200);
  EXPECT_EQ(send("POST", path + "resp_none/cancel").status, 404);
  EXPECT_EQ(send("DELETE", path + id).status, 200);
  EXPECT_EQ(send("GET", path + id).status, 404);
}

// The events of a stream, without their numbers. Deltas of one text are one.
std::vector<Json> joined_events(const std::string& body) {
  std::vector<Json> events;
  int64_t number = 0;
  for (const std::string& text : data_of_events(body)) {
    Json event = Json::parse(text);
    EXPECT_EQ(event["sequence_number"], number++) << text;
    event.erase("sequence_number");
    if (!events.empty() && event.contains("delta") && events.back()["type"] == event["type"]) {
      Json& last = events.back();
      last["delta"] = last["delta"].get<std::string>() + event["delta"].get<std::string>();
      if (event.contains("logprobs")) {
        last["logprobs"].insert(
            last["logprobs"].end(), event["logprobs"].begin(), event["logprobs"].end());
      }
    } else {
      events.push_back(std::move(event));
    }
  }
  return events;
}

TEST_F(KeptResponses, AKeptResponseIsStreamedAgain) {
  const std::string call_of_function =
      "<tool_call>\n{\"name\": \"crm__find\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string call_of_custom =
      "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"*** Begin\"}}\n</tool_call>";
  const std::string path = std::string(kResponses) + "/";
  for (const std::string& text :
       {std::string("plain text"),
        "<think>\nhm\n</think>\n\nfound" + call_of_function + call_of_custom}) {
    engine_.say(text);
    for (const char* limit : {"1000", "9", "25", "60"}) {  // in thoughts, in text and in a call
      const std::string fields = std::string(kTools) + R"(,"max_output_tokens":)" + limit +
                                 R"(,"stream":true,"store":true,"top_logprobs":1,)"
                                 R"("include":["message.output_text.logprobs"])";
      const std::vector<Json> events = joined_events(ask(fields).body);
      ASSERT_GT(events.size(), 4U) << text;
      const std::string id = events.front()["response"]["id"];
      const HttpReply again = send("GET", path + id + "?stream=true");
      EXPECT_EQ(again.header("Content-Type"), "text/event-stream");
      EXPECT_EQ(Json(joined_events(again.body)), Json(events)) << text << limit;
      EXPECT_EQ(Json::parse(send("GET", path + id + "?stream=false").body),
                events.back()["response"]);
      for (const char* wrong : {"?stream=yes", "?stream=true&starting_after=2"}) {
        EXPECT_EQ(send("GET", path + id + wrong).status, 400) << wrong;
      }
    }
  }
}

TEST_F(KeptResponses, TheInputOfAResponseIsListed) {
  const HttpReply answer = send("POST",
                                kResponses,
                                R"({"input":[{"role":"user","content":"one"},{"role":"assistant",)"
                                R"("content":"two"},{"role":"user","content":"three"}]})");
  const std::string path = std::string(kResponses) + "/" +
                           Json::parse(answer.body)["id"].get<std::string>() + "/input_items";
  const Json all = Json::parse(send("GET", path + "?order=asc").body);
  ASSERT_EQ(all["data"].size(), 3U) << all;
  EXPECT_EQ(all["data"][0]["content"][0]["text"], "one");
  EXPECT_EQ(all["data"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(all["has_more"], false);
  const Json newest = Json::parse(send("GET", path + "?limit=2").body);
  EXPECT_EQ(newest["data"][0]["content"][0]["text"], "three");
  EXPECT_EQ(newest["has_more"], true);
  const Json rest =
      Json::parse(send("GET", path + "?after=" + newest["last_id"].get<std::string>()).body);
  ASSERT_EQ(rest["data"].size(), 1U);
  EXPECT_EQ(rest["data"][0]["id"], all["first_id"]);
  for (const char* wrong : {"?limit=0", "?order=up", "?after=none"}) {
    EXPECT_EQ(send("GET", path + wrong).status, 400) << wrong;
  }
}

// The processor time of this program, in seconds.
double program_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST_F(KeptResponses, APageOfALongInputIsNotReadFromAllOfIt) {
  constexpr int kItems = 20'000;
  Json input = Json::array({{{"role", "user"}, {"content", "a"}}});
  for (int i = 0; i < kItems; ++i) {
    input.push_back({{"type", "web_search_call"}, {"id", "w" + std::to_string(i)}});
  }
  double begin = program_seconds();
  const HttpReply answer = send("POST", kResponses, Json({{"input", std::move(input)}}).dump());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const double reading = program_seconds() - begin;
  const std::string path = std::string(kResponses) + "/" +
                           Json::parse(answer.body)["id"].get<std::string>() + "/input_items";
  constexpr int kPages = 50;
  begin = program_seconds();
  for (int i = 0; i < kPages; ++i) {
    const Json page = Json::parse(send("GET", path + "?limit=2&order=asc&after=w7").body);
    ASSERT_EQ(page["data"].size(), 2U) << page;
    EXPECT_EQ(page["data"][0]["type"], "web_search_call");
    EXPECT_EQ(page["first_id"], "w8");
    EXPECT_EQ(page["last_id"], "w9");
  }
  EXPECT_LT(program_seconds() - begin, reading);
}

// A short request may name a long conversation, whose parsing delays no other connection.
TEST_F(KeptResponses, ARequestThatMayReadALargeAnswerIsCostly) {
  auto front_end = FrontEnd::create(config_, engine_, routes());
  ASSERT_TRUE(front_end) << front_end.error().message;
  HttpRequest header;
  header.method = "POST";
  const auto is_costly = [&](const char* path) {
    header.path = path;
    return (*front_end)->is_costly(header);
  };
  const uint64_t tenant = (*front_end)->authenticator.find_tenant(header)->salt();
  ResponseStore& store = *(*front_end)->responses;
  store.put(tenant + 1, "of another", {std::string(300 << 10, 'm'), "", ""});
  store.put(tenant, "small", {"r", "m", "i"});
  EXPECT_FALSE(is_costly(kResponses));
  store.put(tenant, "large", {"r", std::string(300 << 10, 'm'), "i"});
  EXPECT_TRUE(is_costly(kResponses));
  EXPECT_TRUE(is_costly("/v1/responses/input_tokens"));
  EXPECT_FALSE(is_costly("/v1/chat/completions"));
  EXPECT_FALSE(is_costly("/v1/responses/large"));
  EXPECT_TRUE(store.erase(tenant, "large"));
  EXPECT_FALSE(is_costly(kResponses));
}

}  // namespace
}  // namespace sluice
