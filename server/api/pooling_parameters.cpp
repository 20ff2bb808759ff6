// SPDX-License-Identifier: Apache-2.0
// The parameters of requests for vectors and scores: those of OpenAI, vLLM, Jina, Cohere and
// text-embeddings-inference (TEI).
#include <array>
#include <nlohmann/json.hpp>

#include "engine/core/config.h"
#include "server/api/parameters.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto joined(Endpoint a, Endpoint b) {
  return static_cast<Endpoint>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

constexpr Endpoint kVectors = Endpoint::kEmbeddings;
constexpr Endpoint kRanks = Endpoint::kRerank;
constexpr Endpoint kScoring = joined(Endpoint::kScore, Endpoint::kClassify);
constexpr Endpoint kVllm = joined(kVectors, joined(kRanks, kScoring));
constexpr Endpoint kCohere = Endpoint::kCohereEmbed;
constexpr Endpoint kEveryEndpoint = joined(kVllm, joined(kCohere, Endpoint::kTei));

constexpr std::string_view kString = R"("type":"string")";
constexpr std::string_view kSwitchValue = R"("type":"boolean")";
constexpr std::string_view kAnyObject = R"("type":"object")";
constexpr std::string_view kOneOrMore = R"("type":"integer","minimum":1)";
constexpr std::string_view kZeroOrMore = R"("type":"integer","minimum":0)";
constexpr std::string_view kConversation = R"("type":"array","minItems":1,"items":{"type":"object"})";
constexpr std::string_view kTextsOrIds =
    R"("anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"items":{"anyOf":[)"
    R"({"type":"string","minLength":1},{"type":"integer","minimum":0},{"type":"array","minItems":)"
    R"(1,"items":{"type":"integer","minimum":0}},{"type":"object","required":["text"],)"
    R"("maxProperties":1}]}}])";
constexpr std::string_view kIdLists =
    R"("type":"array","items":{"anyOf":[{"type":"integer","minimum":0},{"type":"array","items":)"
    R"({"type":"integer","minimum":0}}]})";
constexpr std::string_view kTextList =
    R"("type":"array","minItems":1,"items":{"type":"string","minLength":1})";
constexpr std::string_view kTexts = R"("type":"array","minItems":1,"items":{"type":"string"})";
constexpr std::string_view kTextObjects =
    R"("type":"array","minItems":1,"items":{"anyOf":[{"type":"string"},{"type":"object",)"
    R"("required":["text"]}]})";
constexpr std::string_view kOneOrManyTexts =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1}])";
constexpr std::string_view kTextParts =
    R"("type":"array","minItems":1,"items":{"type":"object","required":["content"]})";
constexpr std::string_view kVectorTypes =
    R"("type":"array","minItems":1,"items":{"enum":["float","int8","uint8","binary","ubinary","base64"]})";
constexpr std::string_view kTextsOrPairs =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1},{"type":"object",)"
    R"("required":["source_sentence","sentences"]}])";
constexpr std::string_view kTasks =
    R"("enum":["embed","token_embed","classify","retrieval.query","retrieval.passage",)"
    R"("text-matching","classification","separation","code.query","code.passage"])";
constexpr std::string_view kCutSide = R"("enum":["left","right","Left","Right"])";

bool no_value(const Json&) { return false; }

bool is_any_text(const Json& v) { return v.is_string(); }

bool is_float32(const Json& v) { return v == "float32"; }

bool is_float(const Json& v) { return v == "float" || v == Json::array({"float"}); }

bool is_true(const Json& v) { return v == true; }

bool is_euclidean(const Json& v) { return v == 2; }

bool is_native(const Json& v) { return v == "native" || v == "little"; }

constexpr Parameter taken(std::string_view name,
                                Endpoint endpoints,
                                std::string_view schema) {
  return {name, endpoints, Disposition::kImplemented, no_value, schema, {}};
}

constexpr Parameter ignored_text(std::string_view name, Endpoint endpoints) {
  return {name, endpoints, Disposition::kIgnored, is_any_text, kString, {}};
}

constexpr Parameter same_as_none(std::string_view name,
                            Endpoint endpoints,
                            bool (*holds)(const Json&),
                            std::string_view schema) {
  return {name, endpoints, Disposition::kNeutralOnly, holds, schema, {}};
}

constexpr Parameter named_otherwise(std::string_view name,
                                    Endpoint endpoints,
                                    std::string_view instead) {
  Parameter parameter = same_as_none(name, endpoints, no_value, {});
  parameter.instead = instead;
  return parameter;
}

// False would change the answer.
constexpr Parameter only_true(std::string_view name,
                              Endpoint endpoints,
                              std::string_view instead) {
  Parameter parameter = same_as_none(name, endpoints, is_true, R"("const":true)");
  parameter.false_asks = true;
  parameter.instead = instead;
  return parameter;
}

constexpr std::array kRows = {
    taken("model", joined(kEveryEndpoint, Endpoint::kTeiDecode), kString),
    taken("input", joined(kVectors, Endpoint::kClassify), kTextsOrIds),
    taken("messages", joined(kVectors, Endpoint::kClassify), kConversation),
    taken("add_generation_prompt", joined(kVectors, Endpoint::kClassify), kSwitchValue),
    taken("continue_final_message", joined(kVectors, Endpoint::kClassify), kSwitchValue),
    taken("chat_template_kwargs", joined(kVectors, Endpoint::kClassify), kAnyObject),
    taken("encoding_format", kVectors, R"("enum":["float","base64"])"),
    taken("dimensions", joined(kVectors, Endpoint::kTei), kOneOrMore),
    taken("task", kVectors, kTasks),
    taken("use_activation", kVllm, kSwitchValue),
    taken("truncate_prompt_tokens", kVllm, R"("type":"integer","minimum":-1)"),
    taken("truncation_side", kVllm, kCutSide),
    taken("add_special_tokens", kVllm, kSwitchValue),
    taken("priority", joined(kVllm, kCohere), R"("type":"integer")"),
    taken("cache_salt", kVllm, R"("type":"string","minLength":1,"maxLength":128)"),
    ignored_text("user", kVllm),
    ignored_text("request_id", kVllm),
    same_as_none("embed_dtype", kVectors, is_float32, R"("const":"float32")"),
    same_as_none("endianness", kVectors, is_native, R"("enum":["native","little"])"),
    same_as_none("chat_template", joined(kVectors, Endpoint::kClassify), no_value, {}),
    // Former names of use_activation.
    only_true("normalize", kVectors, "use_activation"),
    only_true("activation", kVllm, "use_activation"),
    only_true("softmax", kVllm, "use_activation"),
    // Names of Jina, then of Mistral and Voyage, then of llama-server.
    only_true("normalized", kVectors, "use_activation"),
    same_as_none("embedding_type", kVectors, is_float, R"("enum":["float",["float"]])"),
    same_as_none("late_chunking", kVectors, no_value, R"("const":false)"),
    same_as_none("output_dtype", kVectors, is_float, R"("const":"float")"),
    named_otherwise("output_dimension", kVectors, "dimensions"),
    same_as_none("embd_normalize", kVectors, is_euclidean, R"("const":2)"),
    // Reranking: Jina's and Cohere's names, then TEI's.
    taken("query", kRanks, kString),
    taken("documents", joined(kRanks, Endpoint::kScore), kTextObjects),
    taken("top_n", kRanks, kZeroOrMore),
    taken("return_documents", kRanks, R"("enum":[true,false,"true","false"])"),
    taken("max_tokens_per_doc", kRanks, kZeroOrMore),
    taken("texts", kRanks, kTexts),
    taken("texts", kCohere, kTextList),
    taken("return_text", kRanks, kSwitchValue),
    taken("raw_scores", joined(kRanks, Endpoint::kTei), kSwitchValue),
    taken("truncate", kEveryEndpoint, R"("enum":[true,false,"NONE","START","END"])"),
    taken("truncation_direction", joined(kRanks, Endpoint::kTei), kCutSide),
    // Pairs, under vLLM's names.
    taken("queries", Endpoint::kScore, kOneOrManyTexts),
    taken("items", Endpoint::kScore, kOneOrManyTexts),
    taken("text_1", Endpoint::kScore, kOneOrManyTexts),
    taken("text_2", Endpoint::kScore, kOneOrManyTexts),
    taken("data_1", Endpoint::kScore, kOneOrManyTexts),
    taken("data_2", Endpoint::kScore, kOneOrManyTexts),
    // Cohere.
    taken("inputs", kCohere, kTextParts),
    taken("embedding_types", kCohere, kVectorTypes),
    taken("output_dimension", kCohere, kOneOrMore),
    taken("max_tokens", kCohere, kOneOrMore),
    same_as_none("images", kCohere, no_value, {}),
    // TEI.
    taken("inputs", Endpoint::kTei, kTextsOrPairs),
    taken("normalize", Endpoint::kTei, kSwitchValue),
    taken("parameters", Endpoint::kTei, kAnyObject),
    taken("ids", Endpoint::kTeiDecode, kIdLists),
    taken("skip_special_tokens", Endpoint::kTeiDecode, kSwitchValue),
    // Prompts of the model's files, by name.
    taken("input_type", joined(kVectors, kCohere), kString),
    taken("prompt_name", joined(kVectors, Endpoint::kTei), kString),
};

}  // namespace

std::span<const Parameter> pooling_parameters() { return kRows; }

}  // namespace sluice
