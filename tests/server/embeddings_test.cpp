// SPDX-License-Identifier: Apache-2.0
// Requests for vectors and scores over HTTP: every form of input and answer, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/text/base64.h"
#include "tests/server/embeddings_rig.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

TEST_F(Embeddings, EveryFormOfInputIsAnsweredInItsOrder) {
  const Json one = ok(kPath, {{"input", "abc"}, {"model", "fake"}});
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["model"], "fake");
  ASSERT_EQ(one["data"].size(), 1U);
  EXPECT_EQ(one["data"][0]["object"], "embedding");
  EXPECT_EQ(one["data"][0]["index"], 0);
  EXPECT_EQ(one["data"][0]["embedding"], vector_of("abc"));
  EXPECT_EQ(one["usage"], (Json{{"prompt_tokens", 4}, {"total_tokens", 4}}));

  const Json many = ok(kPath, {{"input", {"a", "bcd", "ef"}}});
  ASSERT_EQ(many["data"].size(), 3U);
  EXPECT_EQ(many["data"][0]["embedding"], vector_of("a"));
  EXPECT_EQ(many["data"][1]["embedding"], vector_of("bcd"));
  EXPECT_EQ(many["data"][2]["embedding"], vector_of("ef"));
  EXPECT_EQ(many["data"][2]["index"], 2);
  EXPECT_EQ(many["usage"]["total_tokens"], 9);

  // Ids are taken as they are.
  EXPECT_EQ(ok(kPath, {{"input", {5, 6, 7}}})["data"][0]["embedding"], (Json{3.0, 5.0, 7.0, 0.5}));
  const Json lists = ok(kPath, {{"input", Json::array({{9}, {8, 7}})}});
  ASSERT_EQ(lists["data"].size(), 2U);
  EXPECT_EQ(lists["data"][1]["embedding"], (Json{2.0, 8.0, 7.0, 0.5}));
  const Json bare = ok(kPath, {{"input", "abc"}, {"add_special_tokens", false}});
  EXPECT_EQ(bare["data"][0]["embedding"], (Json{3.0, 97.0, 99.0, 0.5}));
}

TEST_F(Embeddings, Base64IsLittleEndianFloats) {
  const Json body = ok(kPath, {{"input", {"abc", "d"}}, {"encoding_format", "base64"}});
  for (size_t i = 0; i < 2; ++i) {
    const auto bytes = decode_base64(body["data"][i]["embedding"].get<std::string>());
    ASSERT_TRUE(bytes);
    ASSERT_EQ(bytes->size(), 16U);
    std::vector<float> floats(4);
    std::memcpy(floats.data(), bytes->data(), 16);
    EXPECT_EQ(Json(floats), vector_of(i == 0 ? "abc" : "d"));
  }
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"encoding_format", "hex"}}), "encoding_format");
}

TEST_F(Embeddings, DimensionsAreForModelsThatHaveThem) {
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"dimensions", 2}}), "dimensions");
  EXPECT_NE(message_.find("hf-overrides"), std::string::npos);
  info().is_matryoshka = true;
  EXPECT_EQ(ok(kPath, {{"input", "a"}, {"dimensions", 2}})["data"][0]["embedding"],
            (Json{2.0, 258.0}));
  for (const int wrong : {0, 5, -1}) {
    EXPECT_EQ(refused(kPath, {{"input", "a"}, {"dimensions", wrong}}), "dimensions");
  }
  info().matryoshka_dimensions = {1, 3};
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"dimensions", 2}}), "dimensions");
  ok(kPath, {{"input", "a"}, {"dimensions", 3}});
}

TEST_F(Embeddings, WrongInputsAreNamedByTheirPlace) {
  for (const Json& wrong : {Json(""),
                            Json::array(),
                            Json(7),
                            Json::object(),
                            Json{"a", ""},
                            Json{"a", 3},
                            Json{3, "a"},
                            Json{1.5},
                            Json{259},
                            Json{-1},
                            Json::array({Json::array()}),
                            Json::array({{1}, "a"})}) {
    EXPECT_EQ(refused(kPath, {{"input", wrong}}), "input") << wrong;
  }
  EXPECT_EQ(refused(kPath, {{"input", {"a", "b", ""}}}), "input");
  EXPECT_NE(message_.find("input[2]"), std::string::npos);
  EXPECT_EQ(refused(kPath, {{"input", {1, 2, 259}}}), "input");
  EXPECT_NE(message_.find("input[2]"), std::string::npos) << message_;
  EXPECT_EQ(refused(kPath, {{"input", Json::array({{1}, {2, -1}})}}), "input");
  EXPECT_NE(message_.find("input[1][1]"), std::string::npos) << message_;
  EXPECT_EQ(refused(kPath, Json::object()), "input");
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"model", "other"}}, 404), "model");
}

TEST_F(Embeddings, LongTextsAreRefusedOrCutAtTheEndThatIsAsked) {
  const std::string text = std::string(80, 'x') + "yz";
  EXPECT_EQ(refused(kPath, {{"input", text}}), "input");
  EXPECT_NE(message_.find("64"), std::string::npos);
  const Json cut = ok(kPath, {{"input", text}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(cut["data"][0]["embedding"], (Json{64.0, 258.0, 120.0, 0.5}));
  const Json end =
      ok(kPath, {{"input", text}, {"truncate_prompt_tokens", 10}, {"truncation_side", "left"}});
  EXPECT_EQ(end["data"][0]["embedding"], (Json{10.0, 258.0, 122.0, 0.5}));
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"truncate_prompt_tokens", 0}}),
            "truncate_prompt_tokens");
  server_.reset();
  config_.auto_truncate = true;
  ok(kPath, {{"input", text}});
}

TEST_F(Embeddings, ARequestMayHaveManyTextsAndNoMoreThanTheKnobSays) {
  Json texts = Json::array();
  for (int i = 0; i < 2048; ++i) texts.push_back("text " + std::to_string(i));
  const Json body = ok(kPath, {{"input", texts}});
  ASSERT_EQ(body["data"].size(), 2048U);
  for (size_t i = 0; i < 2048; ++i) {
    ASSERT_EQ(body["data"][i]["embedding"], vector_of(texts[i].get<std::string>()));
  }
  texts.push_back("one more");
  EXPECT_EQ(refused(kPath, {{"input", texts}}), "input");
}

// Lines, or ids, in any number end at the limits, within the client's ten seconds.
TEST_F(Embeddings, ManyLinesAreRefusedByTheKnobAndManyIdsByTheModel) {
  const int num_items = testing::sample_of(100'000, 1'000'000);
  const std::string lines(R"("a line",)");
  std::string texts = R"({"input":[)";
  std::string ids = R"({"input":[)";
  for (int i = 0; i < num_items; ++i) {
    texts += lines;
    ids += "7,";
  }
  for (std::string* body : {&texts, &ids}) {
    body->pop_back();
    *body += "]}";
    const HttpReply reply = post(kPath, *body);
    EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 300);
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "input");
  }
  ok(kPath, {{"input", "a"}});
}

// The engine's queue is never filled by one request: others find room between its texts.
TEST_F(Embeddings, AWindowOfTextsIsSubmittedAndAFullQueueIsWaitedFor) {
  engine_.set_queue_limit(5);
  Json texts = Json::array();
  for (int i = 0; i < 100; ++i) texts.push_back("t");
  EXPECT_EQ(ok(kPath, {{"input", texts}})["data"].size(), 100U);
  engine_.set_queue_limit(0);
  refused(kPath, {{"input", "a"}}, 429);
}

TEST_F(Embeddings, AVectorThatFailsEndsTheRequestWithItsPlace) {
  engine_.fail_at(0);
  const HttpReply reply = post(kPath, R"({"input":["a","b"]})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_NE(reply.body.find("text 0"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.body.find("embedding"), std::string::npos);
}

TEST_F(Embeddings, EachKindOfModelSaysWhatItLacks) {
  EXPECT_EQ(refused(kChatPath, Json::parse(chat_body())), "model");
  EXPECT_NE(message_.find("vectors"), std::string::npos);
  EXPECT_EQ(refused("/classify", {{"input", "a"}}), "model");
  make_classifier({"LABEL_0"});
  EXPECT_EQ(refused(kPath, {{"input", "a"}}), "model");
  engine_.editable_model().pooling.reset();
  const auto is_told = [this](const char* flag) {
    return message_.find(flag) != std::string::npos;
  };
  for (const char* path : {kPath, "/pooling"}) {
    EXPECT_EQ(refused(path, {{"input", "a"}}), "model") << path;
    EXPECT_TRUE(is_told("--convert embed")) << message_;
  }
  EXPECT_EQ(refused("/embed", {{"inputs", "a"}}), "model");
  EXPECT_TRUE(is_told("--convert embed")) << message_;
  EXPECT_EQ(refused("/classify", {{"input", "a"}}), "model");
  EXPECT_TRUE(is_told("--convert classify")) << message_;
  EXPECT_EQ(refused("/predict", {{"inputs", "a"}}), "model");
  EXPECT_TRUE(is_told("--convert classify")) << message_;
  EXPECT_EQ(refused("/rerank", {{"query", "a"}, {"documents", {"b"}}}), "model");
  EXPECT_TRUE(is_told("--convert classify")) << "rerankers are such models: " << message_;
  EXPECT_EQ(refused("/score", {{"queries", "a"}, {"documents", {"b"}}}), "model");
  EXPECT_TRUE(is_told("--convert classify")) << message_;
}

TEST_F(Embeddings, PoolingGivesOneVectorATokenWhereAsked) {
  const Json texts = ok("/pooling", {{"input", "ab"}});
  EXPECT_EQ(texts["data"][0]["data"], vector_of("ab"));
  const Json tokens = ok("/pooling", {{"input", "ab"}, {"task", "token_embed"}});
  ASSERT_EQ(tokens["data"][0]["data"].size(), 3U);
  EXPECT_EQ(tokens["data"][0]["data"][2], vector_of("ab"));
  EXPECT_EQ(refused("/pooling", {{"input", "ab"}, {"task", "classify"}}), "task");
}

TEST_F(Embeddings, TeisShapes) {
  EXPECT_EQ(ok("/embed", {{"inputs", "abc"}}), Json::array({vector_of("abc")}));
  EXPECT_EQ(ok("/embed", {{"inputs", {"a", "bc"}}}), Json::array({vector_of("a"), vector_of("bc")}));
  EXPECT_EQ(ok("/embed_all", {{"inputs", "a"}}),
            Json::array({Json::array({vector_of("a"), vector_of("a")})}));
  EXPECT_EQ(refused("/embed", {{"inputs", std::string(100, 'x')}}), "inputs");
  const Json near = ok("/similarity",
                       {{"inputs", {{"source_sentence", "ab"}, {"sentences", {"ab", "zz"}}}}});
  ASSERT_EQ(near.size(), 2U);
  EXPECT_NEAR(near[0].get<double>(), 1, 1e-6);
  EXPECT_LT(near[1].get<double>(), 1);
  for (const Json& wrong : {Json("a"), Json{{"source_sentence", "a"}}, Json{{"sentences", {"a"}}}}) {
    EXPECT_EQ(refused("/similarity", {{"inputs", wrong}}), "inputs") << wrong;
  }
  ok("/embed", {{"inputs", std::string(100, 'x')}, {"truncate", true}});
  const Json told = Json::parse(get("/info").body);
  EXPECT_EQ(told["model_type"]["embedding"]["pooling"], "last");
  EXPECT_EQ(told["max_input_length"], 64);
  make_classifier({"bad", "good"});
  const Json labels = ok("/predict", {{"inputs", "a"}});
  EXPECT_EQ(labels[0]["label"], "bad");
  EXPECT_EQ(labels[0]["score"], 0.97);
  EXPECT_EQ(ok("/predict", {{"inputs", Json::array({Json{"a"}, Json{"a", "b"}})}}).size(), 2U);
}

TEST_F(Embeddings, TeisTokens) {
  const Json plain = ok("/tokenize", {{"inputs", "ab"}});
  const auto token = [](int id, const char* text, const Json& start, const Json& stop) {
    return Json{{"id", id}, {"text", text}, {"special", start.is_null()}, {"start", start}, {"stop", stop}};
  };
  const Json a = token('a', "a", 0, 1);
  const Json first = token(258, "<s>", nullptr, nullptr);
  EXPECT_EQ(plain, Json::array({Json::array({first, a, token('b', "b", 1, 2)})}));
  EXPECT_EQ(ok("/tokenize", {{"inputs", {"a", "a"}}, {"add_special_tokens", false}}),
            Json::array({Json::array({a}), Json::array({a})}));
  // Places are bytes, of the text with its prompt.
  info().prompts = {{"query", "\u00e4"}};
  const Json prompted = ok("/tokenize", {{"inputs", "a"}, {"prompt_name", "query"}});
  EXPECT_EQ(prompted[0].back(), token('a', "a", 2, 3));
  EXPECT_EQ(refused("/tokenize", {{"inputs", "a"}, {"prompt_name", "other"}}), "prompt_name");
  EXPECT_EQ(refused("/tokenize", {{"prompt", "a"}, {"prompt_name", "query"}}), "prompt_name");
  for (const Json& wrong : {Json(7), Json::array(), Json::array({7}), Json::object()}) {
    EXPECT_EQ(refused("/tokenize", {{"inputs", wrong}}), "inputs") << wrong;
  }
  EXPECT_EQ(ok("/tokenize", {{"prompt", "ab"}})["count"], 3) << "vLLM's";
}

TEST_F(Embeddings, TeisTextsOfTokens) {
  EXPECT_EQ(ok("/decode", {{"ids", {258, 97, 98}}}), Json{"ab"});
  EXPECT_EQ(ok("/decode", {{"ids", {258, 97}}, {"skip_special_tokens", false}}), Json{"<s>a"});
  EXPECT_EQ(ok("/decode", {{"ids", Json::array({{97}, {98, 99}})}}), (Json{"a", "bc"}));
  for (const Json& wrong : {Json("a"), Json{259}, Json{-1}, Json::array({{97}, 98}), Json{"a"}}) {
    EXPECT_EQ(refused("/decode", {{"ids", wrong}}), "ids") << wrong;
  }
  EXPECT_EQ(refused("/decode", Json::object()), "ids");
}

TEST_F(Embeddings, CoheresShape) {
  constexpr const char* kCohere = "/v2/embed";
  info().width = 4;
  const Json asked = {{"model", "fake"},
                      {"texts", {"ab", "c"}},
                      {"input_type", "search_document"},
                      {"embedding_types",
                       {"float", "int8", "uint8", "binary", "ubinary", "base64"}}};
  const Json body = ok(kCohere, asked);
  EXPECT_EQ(body["response_type"], "embeddings_by_type");
  EXPECT_EQ(body["texts"], (Json{"ab", "c"}));
  EXPECT_EQ(body["meta"]["billed_units"]["input_tokens"], 5);
  const Json& types = body["embeddings"];
  EXPECT_EQ(types.size(), 6U);
  EXPECT_EQ(types["float"], Json::array({vector_of("ab"), vector_of("c")}));
  EXPECT_EQ(types["int8"][0], (Json{127, 127, 127, 64}));  // what is above 1 is cut
  EXPECT_EQ(types["uint8"][0], (Json{255, 255, 255, 192}));
  EXPECT_EQ(types["ubinary"][0], Json{0xF0});
  EXPECT_EQ(types["binary"][0], Json{0xF0 - 128});
  const auto bytes = decode_base64(types["base64"][1].get<std::string>());
  ASSERT_TRUE(bytes && bytes->size() == 16);

  const Json parts = {{"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}};
  const Json joined = ok(kCohere, {{"inputs", Json::array({parts})}});
  EXPECT_EQ(joined["embeddings"], (Json{{"float", Json::array({vector_of("ab")})}}));
}

// What langchain-cohere asks.
TEST_F(Embeddings, CoheresFirstVersion) {
  const Json bare = ok("/v1/embed", {{"texts", {"ab"}}, {"input_type", "search_query"}});
  EXPECT_EQ(bare["response_type"], "embeddings_floats");
  EXPECT_EQ(bare["embeddings"], Json::array({vector_of("ab")}));
  EXPECT_EQ(bare["meta"]["api_version"]["version"], "1");
  const Json typed = ok("/v1/embed", {{"texts", {"ab"}}, {"embedding_types", {"float"}}});
  EXPECT_EQ(typed["response_type"], "embeddings_by_type");
  EXPECT_EQ(typed["embeddings"], (Json{{"float", Json::array({vector_of("ab")})}}));
}

TEST_F(Embeddings, AUrlWithoutAPathIsOfTheModelsKind) {
  EXPECT_EQ(ok("/", {{"inputs", "ab"}}), Json::array({vector_of("ab")}));
  make_classifier({"LABEL_0"});
  EXPECT_EQ(ok("/", {{"query", "q"}, {"texts", {"a", "b"}}})[0].size(), 2U);
  make_classifier({"bad", "fair", "good"});
  EXPECT_EQ(ok("/", {{"inputs", "a"}})[0]["label"], "bad");
}

TEST_F(Embeddings, PromptsOfTheFilesArePutBeforeTextsByName) {
  info().prompts = {{"query", "q: "}, {"passage", "psg: "}};
  const Json query = Json::array({vector_of("q: a")});
  EXPECT_EQ(ok("/embed", {{"inputs", "a"}, {"prompt_name", "query"}}), query);
  EXPECT_EQ(ok(kPath, {{"input", "a"}, {"prompt_name", "query"}})["data"][0]["embedding"], query[0]);
  EXPECT_EQ(ok(kPath, {{"input", "a"}, {"input_type", "document"}})["data"][0]["embedding"],
            vector_of("psg: a"));
  const auto cohere = [&](const char* kind) {
    return ok("/v2/embed", {{"texts", {"a"}}, {"input_type", kind}})["embeddings"]["float"];
  };
  EXPECT_EQ(cohere("search_query"), query);
  EXPECT_EQ(cohere("search_document"), Json::array({vector_of("psg: a")}));
  EXPECT_EQ(cohere("classification"), Json::array({vector_of("a")}));
  EXPECT_EQ(refused(kPath, {{"input", "a"}, {"input_type", "classification"}}), "input_type");
  EXPECT_EQ(refused("/embed", {{"inputs", "a"}, {"prompt_name", "document"}}), "prompt_name");
  EXPECT_NE(message_.find("\"query\" \"passage\""), std::string::npos) << message_;
  info().default_prompt = "q: ";
  EXPECT_EQ(ok("/embed", {{"inputs", "a"}}), query);
  EXPECT_EQ(ok("/embed", {{"inputs", Json{97}}})[0][0], 1.0) << "ids have no prompt";
  // Cohere's clients name the kind of their texts; what they do not ask for is not put before them.
  EXPECT_EQ(cohere("search_document"), Json::array({vector_of("psg: a")}));
  EXPECT_EQ(cohere("classification"), Json::array({vector_of("a")}));
  EXPECT_EQ(ok("/v2/embed", {{"texts", {"a"}}})["embeddings"]["float"],
            Json::array({vector_of("a")}));
}

TEST_F(Embeddings, CoheresTextsAreCutWhereAsked) {
  constexpr const char* kCohere = "/v2/embed";
  const std::string text = std::string(80, 'x') + "yz";
  const auto vector = [&](const char* side) {
    return ok(kCohere, {{"texts", {text}}, {"truncate", side}})["embeddings"]["float"][0];
  };
  EXPECT_EQ(vector("END"), (Json{64.0, 258.0, 120.0, 0.5}));
  EXPECT_EQ(vector("START"), (Json{64.0, 258.0, 122.0, 0.5}));
  ok(kCohere, {{"texts", {text}}});  // as Cohere does
  EXPECT_EQ(refused(kCohere, {{"texts", {text}}, {"truncate", "NONE"}}), "texts");
  EXPECT_EQ(ok(kCohere, {{"texts", {text}}, {"max_tokens", 10}})["embeddings"]["float"][0][0], 10.0);
}

TEST_F(Embeddings, WhatCohereCannotBeAskedIsNamed) {
  constexpr const char* kCohere = "/v2/embed";
  EXPECT_EQ(refused(kCohere, Json::object()), "texts");
  EXPECT_EQ(refused(kCohere, {{"texts", "a"}}), "texts");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a", ""}}}), "texts");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a", 7}}}), "texts");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"inputs", {"a"}}}), "texts");
  EXPECT_EQ(refused(kCohere, {{"inputs", {"a"}}}), "inputs");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"truncate", "MIDDLE"}}), "truncate");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"embedding_types", {"int4"}}}), "embedding_types");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"embedding_types", Json::array()}}),
            "embedding_types");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"output_dimension", 2}}), "output_dimension");
  EXPECT_EQ(refused(kCohere, {{"texts", {"a"}}, {"images", {"data:..."}}}), "images");
  info().is_matryoshka = true;
  const Json cut = ok(kCohere, {{"texts", {"a"}}, {"output_dimension", 2}});
  EXPECT_EQ(cut["embeddings"]["float"][0].size(), 2U);
}

TEST_F(Embeddings, DocumentsAreRankedByTheirScores) {
  make_classifier({"LABEL_0"});
  const Json documents = {"xa", {{"text", "xc"}}, "xb", "yb"};
  const Json body = ok("/v1/rerank", {{"query", "q"}, {"documents", documents}});
  ASSERT_EQ(body["results"].size(), 4U);
  std::vector<int> order;
  for (const Json& row : body["results"]) order.push_back(row["index"].get<int>());
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 0}));  // equal scores in their order
  EXPECT_EQ(body["results"][0]["document"]["text"], "xc");
  EXPECT_EQ(body["results"][0]["relevance_score"], 0.99);
  EXPECT_GT(body["usage"]["total_tokens"].get<int>(), 0);
  const Json top = ok("/v2/rerank", {{"query", "q"}, {"documents", documents}, {"top_n", 2}});
  EXPECT_EQ(top["results"].size(), 2U);
  EXPECT_FALSE(top["results"][0].contains("document"));
  EXPECT_TRUE(top.contains("meta"));
  const Json tei = ok("/rerank", {{"query", "q"}, {"texts", {"xa", "xb"}}, {"return_text", true}});
  EXPECT_EQ(tei[0], (Json{{"index", 1}, {"score", 0.98}, {"text", "xb"}}));
  EXPECT_EQ(refused("/rerank", {{"documents", {"a"}}}), "query");
  EXPECT_EQ(refused("/rerank", {{"query", "q"}}), "documents");
  EXPECT_EQ(refused("/rerank", {{"query", "q"}, {"documents", {1}}}), "documents");
}

TEST_F(Embeddings, VectorsAreComparedByTheirCosine) {
  const Json body = ok("/score", {{"queries", "ab"}, {"documents", {"ab", "zz"}}});
  ASSERT_EQ(body["data"].size(), 2U);
  EXPECT_NEAR(body["data"][0]["score"].get<double>(), 1, 1e-6);
  EXPECT_LT(body["data"][1]["score"].get<double>(), 1);
  const Json pairs = ok("/score", {{"text_1", {"a", "b"}}, {"text_2", {"a", "b"}}});
  EXPECT_NEAR(pairs["data"][1]["score"].get<double>(), 1, 1e-6);
  EXPECT_EQ(refused("/score", {{"queries", {"a", "b"}}, {"documents", {"a", "b", "c"}}}),
            "documents");
  const std::string longer(100, 'x');
  EXPECT_EQ(refused("/score", {{"text_1", longer}, {"text_2", {"a", "b"}}}), "text_1");
  EXPECT_EQ(refused("/score", {{"text_1", {"a", longer}}, {"text_2", {"a", "b"}}}), "text_1");
  EXPECT_NE(message_.find("text_1[1]"), std::string::npos) << message_;
  EXPECT_EQ(refused("/score", {{"text_1", "a"}, {"text_2", {"a", longer}}}), "documents");
}

TEST_F(Embeddings, TokensAreComparedByLateInteraction) {
  info().type = PoolingType::kEvery;
  const Json body = ok("/pooling", {{"input", "ab"}});
  const Json& tokens = body["data"][0]["data"];
  ASSERT_EQ(tokens.size(), 3U);
  double wanted = 0;
  for (const Json& query : tokens) {
    double best = 0;
    for (const Json& each : tokens) {
      double dot = 0;
      for (size_t i = 0; i < 4; ++i) dot += query[i].get<double>() * each[i].get<double>();
      best = std::max(best, dot);
    }
    wanted += best;
  }
  const Json scored = ok("/score", {{"queries", "ab"}, {"documents", {"ab", "ab"}}});
  ASSERT_EQ(scored["data"].size(), 2U);
  EXPECT_NEAR(scored["data"][0]["score"].get<double>(), wanted, 1e-6 * wanted);
  EXPECT_EQ(ok("/rerank", {{"query", "a"}, {"documents", {"b", "c"}}})["results"].size(), 2U);
  EXPECT_EQ(refused(kPath, {{"input", "a"}}), "model");
  EXPECT_EQ(refused("/embed", {{"inputs", "a"}}), "model");
  EXPECT_EQ(refused("/v2/embed", {{"texts", {"a"}}}), "model");
  EXPECT_EQ(refused("/pooling", {{"input", "a"}, {"task", "embed"}}), "task");
  ok("/embed_all", {{"inputs", "a"}});
  info().width = 1 << 20;
  const std::string text(60, 'x');
  EXPECT_EQ(refused("/score", {{"queries", text}, {"documents", {text}}}), "documents");
}

TEST_F(Embeddings, QueriesAndDocumentsHaveMarkersLengthsAndTokensWithoutVectors) {
  info().type = PoolingType::kEvery;
  TokenComparison& comparison = info().comparison;
  comparison.query = {.prompt = "Q", .marker = 'm', .max_tokens = 8, .skipped = {}};
  comparison.document = {.prompt = "", .marker = 'm', .max_tokens = 5, .skipped = {'b', 'm'}};
  comparison.expansion = 'x';
  comparison.expanded_tokens = 7;
  const auto count = [&](const char* text, const Json& kind) {
    Json body = {{"input", text}};
    if (!kind.is_null()) body["input_type"] = kind;
    const Json answer = ok("/pooling", body);
    return std::pair(answer["usage"]["prompt_tokens"].get<int>(), answer["data"][0]["data"].size());
  };
  using Counts = std::pair<int, size_t>;
  EXPECT_EQ(count("ab", nullptr), Counts(3, 3U));
  EXPECT_EQ(count("ab", "query"), Counts(7, 7U)) << "<s>, m, Q, a, b, x, x";
  EXPECT_EQ(count("abcdefgh", "query"), Counts(8, 8U)) << "cut, and not filled up";
  EXPECT_EQ(count("abcdefgh", "document"), Counts(5, 3U)) << "<s>, m, a, b, c without m and b";
  EXPECT_EQ(refused("/pooling", {{"input", "a"}, {"input_type", "clustering"}}), "input_type");
  // A prompt by name would stand where a marker has to.
  info().prompts = {{"query", "q: "}};
  info().default_prompt = "q: ";
  EXPECT_EQ(refused("/pooling", {{"input", "a"}, {"prompt_name", "query"}}), "prompt_name");
  EXPECT_EQ(refused("/embed_all", {{"inputs", "a"}, {"prompt_name", "query"}}), "prompt_name");
  EXPECT_EQ(count("ab", nullptr), Counts(3, 3U)) << "without the default prompt";
  EXPECT_EQ(count("ab", "query"), Counts(7, 7U));
  EXPECT_EQ(ok("/embed_all", {{"inputs", "ab"}})[0].size(), 3U);
  EXPECT_EQ(ok("/score", {{"queries", "a"}, {"documents", "ab"}})["usage"]["prompt_tokens"], 7 + 4);
}

TEST_F(Embeddings, LabelsAreNamed) {
  make_classifier({"bad", "fair", "good"});
  const Json body = ok("/classify", {{"input", {"a", "\t"}}});
  EXPECT_EQ(body["data"][0]["label"], "bad");
  EXPECT_EQ(body["data"][0]["probs"], (Json{0.97, 0.125, 0.125}));
  EXPECT_EQ(body["data"][0]["num_classes"], 3);
  EXPECT_EQ(body["data"][1]["label"], "fair");
  EXPECT_EQ(refused("/rerank", {{"query", "q"}, {"documents", {"a"}}}), "model");
}

TEST_F(Embeddings, TheModelsListSaysWhatItMakes) {
  const Json meta = Json::parse(get("/v1/models").body)["data"][0]["meta"]["pooling"];
  EXPECT_EQ(meta["task"], "embed");
  EXPECT_EQ(meta["type"], "last");
  EXPECT_EQ(meta["dimensions"], 4);
  EXPECT_EQ(meta["normalized"], true);
  make_classifier({"bad", "good"});
  const Json scores = Json::parse(get("/v1/models").body)["data"][0]["meta"]["pooling"];
  EXPECT_EQ(scores["task"], "classify");
  EXPECT_EQ(scores["function"], "sigmoid") << "which scale scores have";
  EXPECT_EQ(scores["labels"], (Json{"bad", "good"}));
}

TEST_F(Embeddings, AClientThatLeavesHasItsTextsAborted) {
  FakeEngine manual(FakeEngine::Stepping::kManual);
  manual.editable_model().pooling = info();
  RunningServer server(manual, config_);
  {
    HttpClient client(server.port());
    client.post(kPath, R"({"input":["a","b","c"]})");
    ASSERT_TRUE(eventually([&] { return manual.num_running() == 3; }));
  }
  EXPECT_TRUE(eventually([&] { return manual.num_aborted() == 3; }));
  manual.end_aborted();
}

TEST_F(Embeddings, TooLittleMemoryForATextEndsThoseBeforeIt) {
  FakeEngine manual(FakeEngine::Stepping::kManual);
  manual.editable_model().pooling = info();
  RunningServer server(manual, config_);
  manual.throw_next(std::make_exception_ptr(std::bad_alloc()), 2);
  HttpClient client(server.port());
  client.post(kPath, R"({"input":["a","b","c"]})");
  EXPECT_EQ(client.read_reply().status, 503);
  EXPECT_EQ(manual.num_aborted(), 2);
  manual.end_aborted();
}

}  // namespace
}  // namespace sluice
