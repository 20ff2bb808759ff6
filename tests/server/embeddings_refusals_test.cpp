// SPDX-License-Identifier: Apache-2.0
// What clients of OpenAI's API, vLLM and text-embeddings-inference send beside the usual: each is
// answered as it is meant, or refused by the name of the field that is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/embeddings_rig.h"

namespace sluice {
namespace {

class PooledRefusals : public Embeddings {
 protected:
  // Sends `body` with each of `values` under `name`, which the refusals must name.
  void expect_each_refused(const std::string& path,
                           const Json& body,
                           const std::string& name,
                           const std::vector<Json>& values) {
    for (const Json& value : values) {
      Json asked = body;
      asked[name] = value;
      EXPECT_EQ(refused(path, asked), name) << path << asked;
      EXPECT_FALSE(message_.empty());
    }
  }

  // Sends `body` with each of `values` under `name`, which change nothing.
  void expect_each_taken(const std::string& path,
                         const Json& body,
                         const std::string& name,
                         const std::vector<Json>& values) {
    Json plain = ok(path, body);
    for (const Json& value : values) {
      Json asked = body;
      asked[name] = value;
      Json answer = ok(path, asked);
      if (answer.is_object()) answer["id"] = plain["id"];
      EXPECT_EQ(answer, plain) << path << asked;
    }
  }
};

TEST_F(PooledRefusals, FieldsOfEmbeddings) {
  info().is_matryoshka = true;
  const Json body = {{"input", "ab"}};
  expect_each_refused(kPath, body, "encoding_format", {"hex", "FLOAT", "", 1, Json::array()});
  expect_each_refused(kPath, body, "dimensions", {0, -1, 5, 1.5, "2", true, 1e300});
  expect_each_refused(
      kPath, body, "truncate_prompt_tokens", {0, -2, 513, 1e12, "4", true, Json::array()});
  expect_each_refused(kPath, body, "truncation_side", {"middle", 1, ""});
  expect_each_refused(kPath, body, "add_special_tokens", {"yes", 1});
  expect_each_refused(kPath, body, "use_activation", {"yes", 0});
  expect_each_refused(kPath, body, "embed_dtype", {"float16", "bfloat16", "fp8_e4m3", 4});
  expect_each_refused(kPath, body, "endianness", {"big", 1});
  expect_each_refused(kPath, body, "priority", {"high", 1.5, 1e10});
  expect_each_refused(kPath, body, "cache_salt", {"", 7});
  expect_each_refused(kPath, body, "messages", {"hello", Json::array()});
  expect_each_refused(kPath, body, "task", {"embed"});
  // What other servers' requests ask of their vectors.
  expect_each_refused(kPath, body, "normalize", {false, 0});
  expect_each_refused(kPath, body, "normalized", {false});
  expect_each_refused(kPath, body, "embd_normalize", {-1, 0, 1, "2"});
  expect_each_refused(kPath, body, "embedding_type", {"ubinary", Json{"int8"}, 1});
  expect_each_refused(kPath, body, "output_dtype", {"int8"});
  expect_each_refused(kPath, body, "output_dimension", {2});
  expect_each_refused(kPath, body, "late_chunking", {true});
  expect_each_refused(kPath, body, "chat_template", {"{{ messages }}"});
  // A field without a value, and values that ask for what happens anyway.
  for (const char* name : {"encoding_format", "dimensions", "user", "truncate_prompt_tokens",
                           "embed_dtype", "messages", "cache_salt", "model", "priority"}) {
    expect_each_taken(kPath, body, name, {nullptr});
  }
  expect_each_taken(kPath, body, "user", {"somebody"});
  expect_each_taken(kPath, body, "embed_dtype", {"float32"});
  expect_each_taken(kPath, body, "endianness", {"native", "little"});
  expect_each_taken(kPath, body, "dimensions", {4});
  expect_each_taken(kPath, body, "truncate_prompt_tokens", {-1, 64, 512});
  expect_each_taken(kPath, body, "normalize", {true, nullptr});
  expect_each_taken(kPath, body, "normalized", {true});
  expect_each_taken(kPath, body, "embd_normalize", {2});
  expect_each_taken(kPath, body, "embedding_type", {"float", Json{"float"}});
  expect_each_taken(kPath, body, "late_chunking", {false});
  expect_each_taken(kPath, body, "unknown_to_everybody", {1, "a"});
}

// Where the model's files have no Normalize, requests ask for the length of 1.
TEST_F(PooledRefusals, LengthsThatFilesDoNotAskFor) {
  info().normalizes = false;
  const Json body = {{"input", "ab"}};
  const auto forces = [&](const char* path, const Json& asked) {
    ok(path, asked);
    const PoolingParams params = *engine_.submitted().back().pooling;
    return params.forces_scale && params.activates;
  };
  EXPECT_FALSE(forces(kPath, body));
  for (const auto& [name, value] :
       {std::pair("normalize", Json(true)), {"normalized", true}, {"embd_normalize", 2}}) {
    Json asked = body;
    asked[name] = value;
    EXPECT_TRUE(forces(kPath, asked)) << name;
    asked["use_activation"] = false;
    EXPECT_EQ(refused(kPath, asked), name);
  }
  EXPECT_TRUE(forces("/embed", {{"inputs", "ab"}})) << "TEI's default";
  EXPECT_TRUE(forces("/embed", {{"inputs", "ab"}, {"normalize", true}}));
  EXPECT_FALSE(forces("/embed", {{"inputs", "ab"}, {"normalize", false}}));
  EXPECT_FALSE(forces("/embed_all", {{"inputs", "ab"}}));
}

// TEI's scores are probabilities; those of other APIs are the files'.
TEST_F(PooledRefusals, ScoresOfTeiAreProbabilities) {
  make_classifier({"LABEL_0"});
  info().function = ScoreFunction::kIdentity;
  const auto forces = [&](const char* path, const Json& asked) {
    ok(path, asked);
    return engine_.submitted().back().pooling->forces_scale;
  };
  const Json tei = {{"query", "q"}, {"texts", {"a"}}};
  EXPECT_TRUE(forces("/rerank", tei));
  Json raw = tei;
  raw["raw_scores"] = true;
  EXPECT_FALSE(forces("/rerank", raw));
  EXPECT_TRUE(forces("/predict", {{"inputs", "a"}}));
  EXPECT_FALSE(forces("/predict", {{"inputs", "a"}, {"raw_scores", true}}));
  EXPECT_FALSE(forces("/rerank", {{"query", "q"}, {"documents", {"a"}}}));
  EXPECT_FALSE(forces("/score", {{"queries", "q"}, {"documents", {"a"}}}));
}

TEST_F(PooledRefusals, InputsOfEveryOtherForm) {
  const Json nested = Json::array({Json::array({Json::array({1})})});
  expect_each_refused(kPath,
                      Json::object(),
                      "input",
                      {nullptr,
                       true,
                       nested,
                       Json::array({Json::array({"a"})}),
                       Json::array({Json::array({"a", "b"})}),
                       Json::array({nullptr}),
                       Json::array({true}),
                       Json::array({Json::object()}),
                       Json::array({1, "a"}),
                       Json::array({1, nullptr}),
                       Json::array({1e300}),
                       Json::array({18446744073709551615ULL}),
                       Json::array({Json::array({1}), Json::array()}),
                       {{"text", "a"}}});
  // A list of one is what it holds.
  const Json alone = ok(kPath, {{"input", "a"}});
  EXPECT_EQ(ok(kPath, {{"input", Json::array({"a"})}}), alone);
  EXPECT_EQ(ok(kPath, {{"input", Json::array({Json::array({258, 97})})}}), alone);
  // NUL is a character like others, spaces are a text, and half a surrogate pair is no text.
  EXPECT_EQ(ok(kPath, {{"input", std::string("a\0b", 3)}})["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(ok(kPath, {{"input", std::string(1, '\0')}})["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(ok(kPath, {{"input", "  \n"}})["usage"]["prompt_tokens"], 4);
  for (const char* body : {R"({"input":"\ud800"})", R"({"input":"a)", "[]", "\"a\"", "", "null",
                           "{\"input\":\"\xff\"}"}) {
    EXPECT_EQ(post(kPath, body).status, 400) << body;
  }
}

// Where chats are cut is said by the same fields as for texts.
TEST_F(PooledRefusals, ChatsAreCutLikeTexts) {
  const Json chat = Json::array({{{"role", "user"}, {"content", std::string(100, 'x')}}});
  EXPECT_EQ(refused(kPath, {{"messages", chat}}), "messages");
  const Json cut = ok(kPath, {{"messages", chat}, {"truncate_prompt_tokens", 40}});
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 40);
  EXPECT_EQ(engine_.submitted().back().prompt.back(), 'x');
  ok(kPath, {{"messages", chat}, {"truncate_prompt_tokens", -1}, {"truncation_side", "left"}});
  EXPECT_EQ(engine_.submitted().back().prompt.size(), 64U);
  EXPECT_NE(engine_.submitted().back().prompt.back(), 'x') << "the end of the turn is kept";
}

TEST_F(PooledRefusals, FieldsOfRerank) {
  make_classifier({"LABEL_0"});
  const Json body = {{"query", "q"}, {"documents", {"xa", "xb"}}};
  expect_each_refused("/rerank", body, "query", {"", 7, Json::array({"q"}), Json::object()});
  expect_each_refused("/rerank",
                      body,
                      "documents",
                      {"xa", Json::array(), Json::array({1}), Json::array({nullptr}),
                       Json::array({Json::array({"xa"})}), Json::array({{{"title", "t"}}}),
                       Json::object()});
  expect_each_refused("/rerank", body, "top_n", {-1, 1.5, "2", 1e12});
  expect_each_refused("/rerank", body, "max_tokens_per_doc", {-1, "2"});
  expect_each_refused("/rerank", body, "return_documents", {"yes", 1});
  expect_each_taken("/rerank", body, "top_n", {nullptr, 0, 100});
  expect_each_taken("/rerank", body, "return_documents", {nullptr, true});
  expect_each_taken("/rerank", body, "max_tokens_per_doc", {nullptr, 0, 100});
  const std::vector<std::string> many(2049, "d");
  EXPECT_EQ(refused("/rerank", {{"query", "q"}, {"documents", many}}), "documents");
  EXPECT_EQ(refused("/rerank", {{"query", "q"}, {"texts", many}}), "texts");
}

// vLLM, TEI and llama-server take a document without text, and rank it among the others.
TEST_F(PooledRefusals, ADocumentMayBeEmpty) {
  for (const bool is_classifier : {false, true}) {
    if (is_classifier) make_classifier({"LABEL_0"});
    const Json documents = {"", "xb", {{"text", ""}}};
    const Json ranked = ok("/v1/rerank", {{"query", "q"}, {"documents", documents}});
    EXPECT_EQ(ranked["results"].size(), 3U);
    EXPECT_EQ(ok("/rerank", {{"query", "q"}, {"texts", {"", "xb"}}}).size(), 2U);
    EXPECT_EQ(ok("/score", {{"queries", "q"}, {"documents", ""}})["data"].size(), 1U);
    EXPECT_EQ(refused("/score", {{"text_1", ""}, {"text_2", "a"}}), "text_1");
  }
}

TEST_F(PooledRefusals, FieldsOfScoreAndClassify) {
  make_classifier({"LABEL_0"});
  const Json body = {{"queries", "q"}, {"documents", "d"}};
  expect_each_refused("/score", body, "queries", {"", Json::array(), 7, Json::array({"a", 7})});
  expect_each_refused("/score", body, "documents", {Json::array(), 7, Json::array({nullptr})});
  EXPECT_EQ(refused("/score", {{"queries", {"a", "b"}}, {"documents", "d"}}), "documents");
  EXPECT_EQ(refused("/score", {{"text_1", "a"}}), "documents");
  // A pair is parted by tokens that a client cannot leave out.
  expect_each_refused("/score", body, "add_special_tokens", {false, "no"});
  expect_each_refused("/score", body, "activation", {false});
  expect_each_refused("/rerank", {{"query", "q"}, {"documents", {"d"}}}, "softmax", {false});
  make_classifier({"bad", "good"});
  expect_each_refused("/classify", {{"input", "a"}}, "softmax", {false});
  expect_each_refused("/classify", {{"input", "a"}}, "activation", {false});
  expect_each_taken("/classify", {{"input", "a"}}, "softmax", {true});
  expect_each_refused("/classify", {{"input", "a"}}, "input", {"", Json::array(), 7, Json{1.5}});
  expect_each_refused("/classify", {{"input", "a"}}, "truncate_prompt_tokens", {0, "all"});
}

// The side that is cut is the document's, too.
TEST_F(PooledRefusals, ADocumentIsCutAtTheSideThatIsAsked) {
  make_classifier({"LABEL_0"});
  const std::string document = "a" + std::string(100, 'x') + "z";
  const auto prompt = [&](const Json& more) {
    Json body = {{"queries", "q"}, {"documents", document}, {"truncate_prompt_tokens", 10}};
    body.update(more);
    ok("/score", body);
    const std::vector<TokenId> ids = engine_.submitted().back().prompt;
    return std::string(ids.begin(), ids.end());
  };
  EXPECT_EQ(prompt(Json::object()).back(), 'x');
  EXPECT_EQ(prompt({{"truncation_side", "right"}}).back(), 'x');
  EXPECT_EQ(prompt({{"truncation_side", "left"}}).back(), 'z');
  EXPECT_EQ(prompt({{"truncation_side", "left"}}).size(), 10U);
  ok("/rerank",
     {{"query", "q"}, {"texts", {document}}, {"truncate", true}, {"truncation_direction", "Left"}});
  EXPECT_EQ(engine_.submitted().back().prompt.back(), 'z');
  EXPECT_EQ(engine_.submitted().back().prompt.size(), 64U);
}

// Hugging Face's tokenizers call it "longest_first": the longer of the two is cut, then both.
TEST_F(PooledRefusals, TheLongerTextOfAPairIsCut) {
  make_classifier({"LABEL_0"});
  const auto kept = [&](size_t first, size_t second, int most, const char* side = "right") {
    const std::string query = std::string(first - 1, 'q') + "Q";
    const std::string document = std::string(second - 1, 'd') + "D";
    ok("/score", {{"queries", query}, {"documents", document}, {"truncate_prompt_tokens", most},
                  {"truncation_side", side}});
    const std::string prompt = engine_.last_prompt();
    return std::pair(std::ranges::count_if(prompt, [](char c) { return c == 'q' || c == 'Q'; }),
                     std::ranges::count_if(prompt, [](char c) { return c == 'd' || c == 'D'; }));
  };
  using Counts = std::pair<ptrdiff_t, ptrdiff_t>;
  // <s> is one of the tokens.
  EXPECT_EQ(kept(3, 40, 21), Counts(3, 17));
  EXPECT_EQ(kept(40, 3, 21), Counts(17, 3));
  EXPECT_EQ(kept(40, 30, 22), Counts(11, 10));
  EXPECT_EQ(kept(30, 40, 22), Counts(10, 11));
  EXPECT_EQ(kept(200, 100, -1), Counts(32, 31));
  kept(40, 3, 21);
  EXPECT_EQ(engine_.last_prompt().find('Q'), std::string::npos);
  kept(40, 3, 21, "left");
  EXPECT_NE(engine_.last_prompt().find('Q'), std::string::npos);
}

// Cohere cuts documents without being asked, and neither of the two cuts queries.
TEST_F(PooledRefusals, CoheresDocumentsAreCutAndQueriesAreNot) {
  const std::string text(100, 'x');
  for (const bool is_classifier : {false, true}) {
    if (is_classifier) make_classifier({"LABEL_0"});
    const Json long_document = {{"query", "q"}, {"documents", {"xa", text}}};
    EXPECT_EQ(ok("/v2/rerank", long_document)["results"].size(), 2U);
    EXPECT_EQ(engine_.submitted().back().prompt.size(), 64U);
    EXPECT_EQ(refused("/v1/rerank", long_document), "documents");
    Json whole = long_document;
    whole["truncate"] = false;
    EXPECT_EQ(refused("/v2/rerank", whole), "documents");
    EXPECT_NE(message_.find("truncate"), std::string::npos) << message_;
    EXPECT_EQ(refused("/v2/rerank", {{"query", text}, {"documents", {"xa"}}}),
              is_classifier ? "documents" : "query");
  }
  EXPECT_NE(message_.find("shorten the first"), std::string::npos) << message_;
}

// Sides that the model does not tell apart, and all of a vector's elements.
TEST_F(PooledRefusals, WhatChangesNothingIsTaken) {
  const Json body = {{"input", "ab"}};
  expect_each_taken(kPath, body, "input_type", {"query", "passage", "document", "search_query"});
  expect_each_taken(kPath, body, "dimensions", {4});
  expect_each_taken("/v2/embed", {{"texts", {"ab"}}}, "output_dimension", {4});
  expect_each_taken(kPath, body, "task", {"retrieval.query", "text-matching"});
  EXPECT_EQ(post(kPath, R"({"input":"a","task":"separation"})").header("x-sluice-ignored-arguments"),
            "task");
  info().prompts = {{"document", "d: "}};
  const auto vector = [&](const char* side) {
    return ok(kPath, {{"input", "ab"}, {"input_type", side}})["data"][0]["embedding"];
  };
  EXPECT_EQ(vector("query"), vector_of("ab"));
  EXPECT_EQ(vector("passage"), vector_of("d: ab"));
  make_classifier({"LABEL_0"});
  const Json ranked = {{"query", "q"}, {"documents", {"a"}}};
  for (const bool wanted : {true, false}) {
    Json asked = ranked;
    asked["return_documents"] = wanted ? "true" : "false";
    EXPECT_EQ(ok("/v2/rerank", asked)["results"][0].contains("document"), wanted);
  }
}

TEST_F(PooledRefusals, TextsAreCutAsOtherApisSayIt) {
  const std::string text = std::string(80, 'x') + "yz";
  const auto last = [&](const char* path, const Json& truncate) {
    ok(path, {{"input", text}, {"truncate", truncate}});
    return engine_.submitted().back().prompt.back();
  };
  EXPECT_EQ(last(kPath, "END"), 'x');
  EXPECT_EQ(last(kPath, true), 'x');
  EXPECT_EQ(last(kPath, "START"), 'z');
  config_.auto_truncate = true;
  server_.reset();
  for (const Json& never : {Json("NONE"), Json(false)}) {
    EXPECT_EQ(refused(kPath, {{"input", text}, {"truncate", never}}), "input") << never;
  }
  expect_each_refused(kPath, {{"input", "ab"}}, "truncate", {"MIDDLE", "end", 1});
}

// Jina's form of texts; of images nothing is left out silently.
TEST_F(PooledRefusals, TextsInObjects) {
  const Json both = Json::array({{{"text", "ab"}}, "c"});
  const Json rows = ok(kPath, {{"input", both}})["data"];
  EXPECT_EQ(rows[0]["embedding"], vector_of("ab"));
  EXPECT_EQ(rows[1]["embedding"], vector_of("c"));
  for (const Json& wrong : {Json{{"image", "data:"}}, Json{{"text", "a"}, {"image", "data:"}},
                            Json{{"text", 7}}, Json{{"text", ""}}}) {
    EXPECT_EQ(refused(kPath, {{"input", Json::array({wrong})}}), "input") << wrong;
  }
}

// The conversation around a document that is cut stays whole.
TEST_F(PooledRefusals, AJudgedDocumentIsCutAtTheSideThatIsAsked) {
  make_classifier({"LABEL_0"});
  info().label_tokens = {'n', 'y'};
  info().is_qwen3_reranker = true;
  info().max_tokens = 512;
  const std::string document = "[a" + std::string(300, 'x') + "z]";
  const auto prompt = [&](const char* side) {
    ok("/score",
       {{"queries", "q"}, {"documents", document}, {"truncate_prompt_tokens", -1},
        {"truncation_side", side}});
    EXPECT_EQ(engine_.submitted().back().prompt.size(), 512U);
    return engine_.last_prompt();
  };
  const std::string right = prompt("right");
  EXPECT_NE(right.find("<Document>: [axx"), std::string::npos) << right;
  EXPECT_NE(right.find("xx<|im_end|>\n<|im_start|>assistant"), std::string::npos) << right;
  const std::string left = prompt("left");
  EXPECT_NE(left.find("<Document>: xx"), std::string::npos) << left;
  EXPECT_NE(left.find("xxz]<|im_end|>\n<|im_start|>assistant"), std::string::npos) << left;
  const Json no_room = {{"queries", std::string(300, 'q')}, {"documents", document},
                        {"truncate_prompt_tokens", -1}};
  EXPECT_EQ(refused("/score", no_room), "documents") << "a query is not cut";
}

class JudgedPairs : public PooledRefusals {
 protected:
  JudgedPairs() {
    make_classifier({"LABEL_0"});
    info().label_tokens = {'n', 'y'};
    info().max_tokens = 60;
  }

  // The template of a model that is asked about the texts that `content` names.
  void take_template(const std::string& content) {
    const auto turn = [&](const char* role) {
      return "{{ (messages | selectattr('role', 'eq', '" + std::string(role) + "') | first)." +
             content + " }}";
    };
    engine_.editable_model().chat_template =
        "{% for m in messages %}{% if m.role == 'system' %}S: {{ m.content }}. {% endif %}"
        "{% endfor %}Q: " + turn("query") + "<|im_start|>D: " + turn("document") +
        "<|im_end|>?{% if add_generation_prompt %}A{% endif %}";
    server_.reset();
  }

  std::string prompt(const Json& more = Json::object()) {
    Json body = {{"queries", "q<|im_end|>"}, {"documents", "doc"}};
    body.update(more);
    ok("/score", body);
    return engine_.last_prompt();
  }
};

TEST_F(JudgedPairs, TheConversationIsTheModelsOwn) {
  for (const char* content : {"content", "content[0].text"}) {
    take_template(content);
    EXPECT_EQ(prompt(), "Q: q<|im_end|><|im_start|>D: doc<|im_end|>?");
    const std::vector<TokenId> ids = engine_.submitted().back().prompt;
    EXPECT_EQ(std::ranges::count(ids, TokenId{257}), 1) << "the query's is text";
  }
  take_template("content");
  info().default_prompt = "judge";
  server_.reset();
  EXPECT_EQ(prompt(), "S: judge. Q: q<|im_end|><|im_start|>D: doc<|im_end|>?");
  info().default_prompt.clear();
  info().begins_answer = true;
  server_.reset();
  EXPECT_EQ(prompt(), "Q: q<|im_end|><|im_start|>D: doc<|im_end|>?A");
  info().begins_answer = false;
  server_.reset();
  const std::string document = "a" + std::string(100, 'x') + "z";
  const Json cut = {{"documents", document}, {"truncate_prompt_tokens", -1}};
  const std::string right = prompt(cut);
  EXPECT_EQ(engine_.submitted().back().prompt.size(), 60U);
  EXPECT_TRUE(right.ends_with("xxx<|im_end|>?")) << right;
  EXPECT_NE(right.find("D: axx"), std::string::npos) << right;
  const std::string left = prompt({{"documents", document}, {"truncate_prompt_tokens", -1},
                                   {"truncation_side", "left"}});
  EXPECT_TRUE(left.ends_with("xxz<|im_end|>?")) << left;
  EXPECT_NE(left.find("D: xxx"), std::string::npos) << left;
  take_template("content | trim");
  EXPECT_TRUE(prompt({{"documents", document + "\n"}, {"truncate_prompt_tokens", -1}})
                  .ends_with("xxx<|im_end|>?"));
}

// Without one, a model is asked as Qwen3-Reranker if it is that one. The template of chats shows
// any role.
TEST_F(JudgedPairs, ModelsThatDoNotSayHowTheyAreAskedAreRefused) {
  const Json score = {{"queries", "q"}, {"documents", "d"}};
  EXPECT_EQ(refused("/score", score), "model");
  EXPECT_NE(message_.find("--chat-template"), std::string::npos) << message_;
  EXPECT_NE(message_.find("is_original_qwen3_reranker"), std::string::npos) << message_;
  EXPECT_EQ(refused("/rerank", {{"query", "q"}, {"documents", {"d"}}}), "model");
  EXPECT_EQ(refused("/predict", {{"inputs", Json::array({"a", "b"})}}), "model");
  ok("/classify", {{"input", "a"}});
  info().is_qwen3_reranker = true;
  info().max_tokens = 512;
  server_.reset();
  EXPECT_NE(prompt().find("answer the query\n<Query>: q"), std::string::npos);
  info().default_prompt = "judge";
  server_.reset();
  EXPECT_NE(prompt().find("<Instruct>: judge\n<Query>: q"), std::string::npos);
  info().default_prompt.clear();
  take_template("content");
  EXPECT_EQ(prompt(), "Q: q<|im_end|><|im_start|>D: doc<|im_end|>?") << "the files' own";
}

TEST_F(PooledRefusals, FieldsOfTei) {
  info().is_matryoshka = true;
  const Json body = {{"inputs", "ab"}};
  expect_each_refused("/embed",
                      body,
                      "inputs",
                      {"", 7, Json::array(), Json::object(), Json::array({Json::array({"a"})}),
                       Json::array({"a", ""}), std::string(100, 'x')});
  expect_each_refused("/embed", body, "truncate", {"yes", 1});
  expect_each_refused("/embed", body, "truncation_direction", {"up", 1});
  expect_each_refused("/embed", body, "normalize", {"yes"});
  expect_each_refused("/embed", body, "dimensions", {0, 5, "2"});
  expect_each_refused("/embed", body, "prompt_name", {"query", 7});
  expect_each_refused("/embed", body, "parameters", {7, "a", Json::array()});
  for (const char* name : {"truncate", "normalize", "prompt_name", "parameters", "dimensions"}) {
    expect_each_taken("/embed", body, name, {nullptr});
  }
  expect_each_taken("/embed", body, "parameters", {Json::object()});
  expect_each_taken("/embed", body, "dimensions", {4});
  const std::vector<std::string> many(2049, "d");
  EXPECT_EQ(refused("/embed", {{"inputs", many}}), "inputs");
  make_classifier({"bad", "good"});
  Json pairs = Json::array();
  for (int i = 0; i < 2049; ++i) pairs.push_back(Json::array({"a", "b"}));
  EXPECT_EQ(refused("/predict", {{"inputs", pairs}}), "inputs");
  pairs.erase(0);
  EXPECT_EQ(ok("/predict", {{"inputs", pairs}}).size(), 2048U);
  expect_each_refused("/predict",
                      body,
                      "inputs",
                      {"",
                       7,
                       Json::array(),
                       Json::array({Json::array()}),
                       Json::array({"a", "b", "c"}),
                       Json::array({Json::array({"a"}), 7})});
  expect_each_refused("/predict", body, "dimensions", {2});
  expect_each_refused("/predict", body, "prompt_name", {"query"});
  expect_each_refused("/predict", body, "raw_scores", {"yes"});
}

// Hugging Face's clients put fields into `parameters`.
TEST_F(PooledRefusals, ParametersOfTei) {
  info().prompts = {{"query", "q: "}};
  const std::string text(100, 'x');
  const Json cut = Json::object({{"truncate", true}, {"truncation_direction", "left"}});
  EXPECT_EQ(ok("/embed", {{"inputs", text + "z"}, {"parameters", cut}})[0],
            (Json{64.0, 258.0, 122.0, 0.5}));
  EXPECT_EQ(refused("/embed", {{"inputs", text}, {"parameters", {{"truncate", 1}}}}), "truncate");
  const Json sentences = {{"source_sentence", "a"}, {"sentences", {"a", text}}};
  EXPECT_EQ(refused("/similarity", {{"inputs", sentences}}), "inputs");
  EXPECT_EQ(ok("/similarity", {{"inputs", sentences}, {"parameters", cut}}).size(), 2U);
  EXPECT_EQ(ok("/similarity", {{"inputs", sentences}, {"truncate", true}}).size(), 2U);
  const Json asked = {{"source_sentence", "a"}, {"sentences", {"b"}}};
  ok("/similarity", {{"inputs", asked}, {"parameters", {{"prompt_name", "query"}}}});
  EXPECT_EQ(engine_.last_prompt(), "<s>q: b");
  EXPECT_EQ(refused("/similarity", {{"inputs", asked}, {"prompt_name", "other"}}), "prompt_name");
}

TEST_F(PooledRefusals, ErrorsHaveTheFormThatClientsOfAPathRead) {
  const auto error_of = [this](const char* path, const char* body, int status) {
    const HttpReply reply = post(path, body);
    EXPECT_EQ(reply.status, status) << path << reply.body;
    return Json::parse(reply.body);
  };
  for (const char* path : {"/", "/embed", "/embed_all", "/similarity", "/predict"}) {
    for (const char* body : {R"({"inputs":7})", "{}", "{"}) {
      const Json error = error_of(path, body, 400);
      EXPECT_TRUE(error["error"].is_string()) << path << error;
      EXPECT_EQ(error["error_type"], "Validation") << path << error;
    }
  }
  const Json of_tei = error_of("/rerank", R"({"query":7,"texts":["a"]})", 400);
  EXPECT_TRUE(of_tei["error"].is_string()) << of_tei;
  EXPECT_EQ(of_tei["param"], "query");
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    const Json error = error_of(path, R"({"query":7,"documents":["a"]})", 400);
    EXPECT_EQ(error["message"], error["error"]["message"]) << path << error;
    EXPECT_EQ(error["error"]["param"], "query");
  }
  for (const char* path : {"/v1/embed", "/v2/embed"}) {
    EXPECT_TRUE(error_of(path, R"({"texts":7})", 400)["message"].is_string()) << path;
  }
  const Json of_openai = error_of(kPath, R"({"input":{}})", 400);
  EXPECT_FALSE(of_openai.contains("message")) << of_openai;
  EXPECT_EQ(of_openai["error"]["param"], "input");
}

TEST_F(PooledRefusals, ErrorsOfScarcityAndOfKeysHaveThatFormToo) {
  config_.api_key = {"secret"};
  const Json error = Json::parse(post("/embed", R"({"inputs":"a"})").body);
  EXPECT_TRUE(error["error"].is_string()) << error;
  EXPECT_TRUE(Json::parse(post("/v2/embed", R"({"texts":["a"]})").body)["message"].is_string());
  server_.reset();
  config_.api_key.clear();
  engine_.set_queue_limit(0);
  const HttpReply busy = post("/embed", R"({"inputs":"a"})");
  EXPECT_EQ(busy.status, 429) << busy.body;
  EXPECT_EQ(Json::parse(busy.body)["error_type"], "Overloaded");
}

// Cohere's codes of elements far outside of -1 to 1 are those of the ends.
TEST_F(PooledRefusals, CoheresCodesOfLargeElements) {
  engine_.set_pooled({1e30F, -1e30F, 3e38F, -2});
  const Json types =
      ok("/v2/embed", {{"texts", {"a"}}, {"embedding_types", {"int8", "uint8"}}})["embeddings"];
  EXPECT_EQ(types["int8"][0], (Json{127, -128, 127, -128}));
  EXPECT_EQ(types["uint8"][0], (Json{255, 0, 255, 0}));
}

}  // namespace
}  // namespace sluice
