// SPDX-License-Identifier: Apache-2.0
// What bodies of routers say of handoffs, and what becomes of it by role, peers and prompt.
#include "server/front/kv_params.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/config.h"
#include "server/api/request_validator.h"
#include "server/front/choice_seed.h"
#include "tests/support/byte_tokenizer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Recorded of llm-d's sidecar, of its two halves and the concurrent dances.
constexpr const char* kPrefillHalf =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";
constexpr const char* kMooncakeDecode =
    R"({"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"xfer-12",)"
    R"("remote_bootstrap_addr":"http://10.0.0.7:8998/x","remote_engine_id":"abc@10.0.0.7:9001"})";

KvParams read(const std::string& body) {
  const auto params = read_kv_params(Json::parse(body));
  EXPECT_TRUE(params.has_value()) << body << (params ? "" : params.error().message);
  return params ? *params : KvParams{};
}

NamedHandoff read_transfer(const std::string& json) {
  const KvParams params = read(R"({"kv_transfer_params":)" + json + "}");
  EXPECT_EQ(params.handoffs.size(), 1U) << json;
  EXPECT_FALSE(params.is_list);
  return params.handoffs.empty() ? NamedHandoff{} : params.handoffs.front();
}

std::string refusal(const std::string& body) {
  const auto params = read_kv_params(Json::parse(body));
  EXPECT_FALSE(params.has_value()) << body;
  return params ? std::string() : params.error().message;
}

const HandoffInfo kInfo = {.epoch = 0x0123456789abcdef, .host = "10.0.0.7", .port = 9001};
const std::vector<TokenId> kPromptIds = {5, 6, 7, 8, 9};

HandoffOffer an_offer() {
  HandoffOffer offer;
  for (size_t i = 0; i < offer.transfer.size(); ++i) offer.transfer[i] = static_cast<uint8_t>(i);
  offer.epoch = kInfo.epoch;
  offer.num_groups = 2;
  offer.result.key.fill(0xee);
  offer.result.num_prompt_tokens = static_cast<int32_t>(kPromptIds.size());
  offer.result.num_blocks = 1;
  offer.result.seed = 0xfffffffffffffff1;
  offer.result.first_token = 42;
  offer.result.check = 0x8000000000000001;
  return offer;
}

std::string an_offer_json() {
  return offer_json(an_offer(), kInfo, "fp_abc", prompt_digest(kPromptIds), 4);
}

TEST(KvParams, BodiesThatAskForNothingHaveNoHandoff) {
  EXPECT_TRUE(read("{}").handoffs.empty());
  EXPECT_TRUE(read(R"({"kv_transfer_params":null})").handoffs.empty());
  EXPECT_TRUE(read(R"({"kv_transfer_params":{}})").handoffs.empty());
  EXPECT_TRUE(read(R"({"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":null}})")
                  .handoffs.empty());
  EXPECT_TRUE(read(R"({"bootstrap_host":"a","bootstrap_port":1})").handoffs.empty());
}

TEST(KvParams, ThePrefillHalfIsASerialOffer) {
  const NamedHandoff named = read_transfer(kPrefillHalf);
  EXPECT_EQ(named.spec.kind, HandoffKind::kOffer);
  EXPECT_EQ(named.spec.mode, HandoffMode::kSerial);
  EXPECT_EQ(named.spec.transfer, TransferId{});
  EXPECT_FALSE(named.is_foreign);
}

TEST(KvParams, WhatAnOfferWritesTheDecodeHalfReads) {
  const Json written = Json::parse(an_offer_json());
  EXPECT_EQ(written["do_remote_prefill"], true);
  EXPECT_EQ(written["remote_engine_id"], "0123456789abcdef");
  EXPECT_EQ(written["remote_host"], "10.0.0.7");
  EXPECT_EQ(written["remote_port"], 9001);
  EXPECT_EQ(written["remote_block_ids"], Json::parse("[[],[]]"));
  EXPECT_EQ(written["tp_size"], 4);
  const NamedHandoff named = read_transfer(written.dump());
  const HandoffOffer offer = an_offer();
  EXPECT_EQ(named.spec.kind, HandoffKind::kFetch);
  EXPECT_EQ(named.spec.mode, HandoffMode::kSerial);
  EXPECT_EQ(named.spec.transfer, offer.transfer);
  EXPECT_EQ(named.spec.peer, "10.0.0.7:9001");
  EXPECT_EQ(named.spec.peer_epoch, kInfo.epoch);
  EXPECT_EQ(named.spec.peer_fingerprint, "fp_abc");
  EXPECT_EQ(named.prompt_digest, prompt_digest(kPromptIds));
  ASSERT_TRUE(named.spec.result.has_value());
  EXPECT_EQ(named.spec.result->key, offer.result.key);
  EXPECT_EQ(named.spec.result->num_prompt_tokens, offer.result.num_prompt_tokens);
  EXPECT_EQ(named.spec.result->num_blocks, offer.result.num_blocks);
  EXPECT_EQ(named.spec.result->seed, offer.result.seed);
  EXPECT_EQ(named.spec.result->first_token, offer.result.first_token);
  EXPECT_EQ(named.spec.result->check, offer.result.check);
}

TEST(KvParams, EachMemberOfAnOfferIsCheckedAndNamed) {
  const Json good = Json::parse(an_offer_json());
  for (const auto& [name, value] : good["sluice"].items()) {
    for (const Json& bad : {Json(nullptr), Json("x"), Json(-1), Json(Json::array())}) {
      const bool may_be_text = name == "addr" || name == "fingerprint";
      if (may_be_text && (bad.is_null() || bad.is_string())) continue;
      Json broken = good;
      broken["sluice"][name] = bad;
      const Json body = {{"kv_transfer_params", broken}};
      if (name == "v" && bad.is_number()) {
        EXPECT_TRUE(read(body.dump()).handoffs.front().is_foreign);  // another version's
        continue;
      }
      const auto params = read_kv_params(body);
      ASSERT_FALSE(params.has_value()) << name << " " << bad;
      EXPECT_EQ(params.error().param, "kv_transfer_params");
      EXPECT_NE(params.error().message.find("sluice." + name), std::string::npos)
          << params.error().message;
    }
  }
}

TEST(KvParams, BothHalvesOfAMooncakeTransferHaveOneName) {
  const NamedHandoff prefill = read_transfer(
      R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-12"})");
  const NamedHandoff decode = read_transfer(kMooncakeDecode);
  EXPECT_EQ(prefill.spec.kind, HandoffKind::kOffer);
  EXPECT_EQ(decode.spec.kind, HandoffKind::kFetch);
  EXPECT_EQ(prefill.spec.mode, HandoffMode::kConcurrent);
  EXPECT_EQ(decode.spec.mode, HandoffMode::kConcurrent);
  EXPECT_EQ(prefill.spec.transfer, decode.spec.transfer);
  EXPECT_NE(prefill.spec.transfer, TransferId{});
  EXPECT_EQ(decode.spec.peer, "10.0.0.7:9001");  // of the engine's name, not the router's address
  EXPECT_EQ(decode.spec.peer_epoch, 0U);
  const NamedHandoff other =
      read_transfer(R"({"do_remote_prefill":true,"transfer_id":"xfer-13","remote_engine_id":"abc",)"
                    R"("remote_bootstrap_addr":"http://10.0.0.7:8998/x"})");
  EXPECT_NE(other.spec.transfer, decode.spec.transfer);
  EXPECT_EQ(other.spec.peer, "10.0.0.7:8998");
}

TEST(KvParams, OffersOfOtherEnginesAreForeign) {
  for (const char* blob :
       {R"({"do_remote_prefill":true})",
        R"({"do_remote_prefill":true,"remote_engine_id":"a","remote_block_ids":[[1,2]],)"
        R"("remote_host":"h","remote_port":5600,"tp_size":1})",
        R"({"do_remote_prefill":true,"transfer_id":"xfer-1"})",
        R"({"do_remote_prefill":true,"remote_prefiller":{"kv_request_id":"x"},"notify_port":1})",
        R"({"do_remote_prefill":true,"sluice":{"v":2,"transfer_id":7}})"}) {
    EXPECT_TRUE(read_transfer(blob).is_foreign) << blob;
  }
  EXPECT_TRUE(
      read(R"({"kv_transfer_params":{"remote_decoder":{"kv_request_id":"x"}}})").handoffs.empty());
}

TEST(KvParams, ARoomIsAHandoffOfWhoeverHearsOfIt) {
  const auto named = [](const std::string& body) { return read(body).handoffs.front(); };
  const NamedHandoff room =
      named(R"({"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":9223372036854775807})");
  EXPECT_TRUE(room.is_bootstrap);
  EXPECT_FALSE(room.is_foreign);
  EXPECT_EQ(room.spec.peer, "p:8998");
  EXPECT_EQ(room.spec.transfer,
            (transfer_id_of(std::array<std::string, 3>{"p", "8998", "9223372036854775807"})));
  for (const char* other :
       {R"({"bootstrap_host":"q","bootstrap_port":8998,"bootstrap_room":9223372036854775807})",
        R"({"bootstrap_host":"p","bootstrap_port":8999,"bootstrap_room":9223372036854775807})",
        R"({"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":1})"}) {
    EXPECT_NE(named(other).spec.transfer, room.spec.transfer) << other;
  }
  EXPECT_TRUE(
      named(R"({"bootstrap_host":"p","bootstrap_port":null,"bootstrap_room":1})").is_foreign);
}

TEST(KvParams, ListsOfRoomsHaveOneHostOrOneForEach) {
  const KvParams rooms =
      read(R"({"bootstrap_host":["a","b"],"bootstrap_port":[1,null],"bootstrap_room":[7,8]})");
  ASSERT_EQ(rooms.handoffs.size(), 2U);
  EXPECT_TRUE(rooms.is_list);
  EXPECT_EQ(rooms.handoffs[0].spec.peer, "a:1");
  EXPECT_TRUE(rooms.handoffs[1].is_foreign);
  EXPECT_EQ(read(R"({"bootstrap_host":"a","bootstrap_port":1,"bootstrap_room":[7,8]})")
                .handoffs[1]
                .spec.peer,
            "a:1");
  EXPECT_NE(refusal(R"({"bootstrap_port":[1],"bootstrap_room":[7,8]})").find("bootstrap_port"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"bootstrap_port":[1,2],"bootstrap_room":7})").find("as many items"),
            std::string::npos);
}

TEST(KvParams, NamesOfTransfersAndPromptsAreWhatTheirCommentsSay) {
  // Python: hashlib.sha256(b"p\x008998\x007\x00").digest()[:16].hex(), and of the ids
  // struct.pack("<5I", 5, 6, 7, 8, 9).
  const TransferId id = transfer_id_of(std::array<std::string, 3>{"p", "8998", "7"});
  const TransferId expected = {0x53,
                               0x85,
                               0x07,
                               0xb8,
                               0xe5,
                               0xdd,
                               0xd7,
                               0xec,
                               0x7b,
                               0x92,
                               0x84,
                               0xcd,
                               0xda,
                               0x67,
                               0x33,
                               0x8a};
  EXPECT_EQ(id, expected);
  EXPECT_EQ(prompt_digest(kPromptIds), "3867106cccaf1f6e8be3b9187d8b7a78");
}

ResolvedHandoff resolve(const NamedHandoff& named,
                        HandoffRole role,
                        bool has_peers = true,
                        bool scores_prompt = false) {
  const std::optional<HandoffInfo> info =
      has_peers ? std::optional<HandoffInfo>(kInfo) : std::nullopt;
  return resolve_handoff(named, kPromptIds, scores_prompt, {role, info});
}

TEST(Handoffs, ARoleLimitsWhatIsOfferedAndAskedFor) {
  const NamedHandoff offer = read_transfer(kPrefillHalf);
  const NamedHandoff fetch = read_transfer(an_offer_json());
  for (const HandoffRole role : {HandoffRole::kBoth, HandoffRole::kPrefill}) {
    EXPECT_TRUE(resolve(offer, role).spec.has_value());
  }
  for (const HandoffRole role : {HandoffRole::kBoth, HandoffRole::kDecode}) {
    EXPECT_TRUE(resolve(fetch, role).spec.has_value());
  }
  EXPECT_EQ(resolve(offer, HandoffRole::kDecode).fallback, HandoffFallback::kNoHandoff);
  EXPECT_EQ(resolve(fetch, HandoffRole::kPrefill).fallback, HandoffFallback::kNoHandoff);
}

TEST(Handoffs, WithoutPeersEverythingIsComputedHere) {
  for (const std::string& blob :
       {std::string(kPrefillHalf), an_offer_json(), std::string(kMooncakeDecode)}) {
    const ResolvedHandoff resolved = resolve(read_transfer(blob), HandoffRole::kBoth, false);
    EXPECT_EQ(resolved.fallback, HandoffFallback::kNoHandoff) << blob;
    EXPECT_FALSE(resolved.spec.has_value());
  }
}

TEST(Handoffs, AnOfferForAnotherPromptIsNotAskedFor) {
  HandoffOffer offer = an_offer();
  const std::vector<TokenId> other = {5, 6, 7, 8, 10};
  const auto resolve_json = [&](const std::string& digest) {
    return resolve(read_transfer(offer_json(offer, kInfo, "fp_abc", digest, 1)),
                   HandoffRole::kDecode);
  };
  EXPECT_TRUE(resolve_json(prompt_digest(kPromptIds)).spec.has_value());
  EXPECT_EQ(resolve_json(prompt_digest(kPromptIds)).seed, offer.result.seed);
  const ResolvedHandoff wrong = resolve_json(prompt_digest(other));
  EXPECT_EQ(wrong.fallback, HandoffFallback::kWrongPrompt);
  EXPECT_FALSE(wrong.seed.has_value());
  offer.result.num_prompt_tokens += 1;
  EXPECT_EQ(resolve_json(prompt_digest(kPromptIds)).fallback, HandoffFallback::kWrongPrompt);
}

TEST(Handoffs, APromptThatIsScoredIsComputedHere) {
  const NamedHandoff fetch = read_transfer(an_offer_json());
  EXPECT_EQ(resolve(fetch, HandoffRole::kDecode, true, true).fallback,
            HandoffFallback::kScoresPrompt);
  EXPECT_TRUE(resolve(read_transfer(kPrefillHalf), HandoffRole::kPrefill, true, true).spec);
}

TEST(Handoffs, TheRoleSaysWhichHalfOfARoomThisIs) {
  const auto room = [](const std::string& host) {
    return read(R"({"bootstrap_host":")" + host + R"(","bootstrap_port":9001,"bootstrap_room":1})")
        .handoffs.front();
  };
  const ResolvedHandoff prefill = resolve(room("p"), HandoffRole::kPrefill);
  EXPECT_EQ(prefill.spec->kind, HandoffKind::kOffer);
  EXPECT_EQ(prefill.spec->peer, "");
  EXPECT_TRUE(prefill.makes_one_token);
  const ResolvedHandoff decode = resolve(room("p"), HandoffRole::kDecode);
  EXPECT_EQ(decode.spec->kind, HandoffKind::kFetch);
  EXPECT_EQ(decode.spec->peer, "p:9001");
  EXPECT_FALSE(decode.makes_one_token);
  EXPECT_EQ(prefill.spec->transfer, decode.spec->transfer);
  // A worker of both roles is the prefill half of rooms with its own address.
  EXPECT_EQ(resolve(room("p"), HandoffRole::kBoth).spec->kind, HandoffKind::kFetch);
  EXPECT_EQ(resolve(room("10.0.0.7"), HandoffRole::kBoth).spec->kind, HandoffKind::kOffer);
  EXPECT_TRUE(resolve(room("p"), HandoffRole::kPrefill, false).makes_one_token);
}

class Validated : public ::testing::Test {
 protected:
  Validated() {
    model_.vocab_size = ByteTokenizer::kVocabSize;
    model_.max_model_len = 100;
    model_.handoff = kInfo;
  }

  GenerationRequest validate(const std::string& body) {
    const ValidationContext context{config_,
                                    model_,
                                    tokenizer_,
                                    template_,
                                    names_,
                                    7,
                                    0,
                                    std::chrono::steady_clock::now(),
                                    nullptr,
                                    role_};
    auto request = validate_generation(context, body, Endpoint::kCompletion, ignored_);
    EXPECT_TRUE(request.has_value()) << body << (request ? "" : request.error().message);
    return request ? std::move(*request) : GenerationRequest{};
  }

  Config config_;
  ModelInfo model_;
  HandoffRole role_ = HandoffRole::kBoth;
  ByteTokenizer tokenizer_;
  IgnoredArguments ignored_{UnknownArguments::kRefuse};
  const std::vector<std::string> names_ = {"m"};
  const Expected<ChatTemplate> template_ = ChatTemplate::compile("");
};

TEST_F(Validated, TheFirstChoiceFetchesAndAllHaveTheSeedOfTheOffer) {
  const std::string body = R"({"prompt":[5,6,7,8,9],"n":2,"kv_transfer_params":)" + an_offer_json();
  const GenerationRequest drawn = validate(body + "}");
  ASSERT_EQ(drawn.requests.size(), 2U);
  EXPECT_TRUE(drawn.requests[0].handoff.has_value());
  EXPECT_FALSE(drawn.requests[1].handoff.has_value());
  EXPECT_EQ(drawn.seed, 0xfffffffffffffff1);
  EXPECT_EQ(drawn.requests[0].sampling.seed, drawn.seed);
  EXPECT_EQ(drawn.requests[1].sampling.seed, choice_seed(drawn.seed, 1));
  EXPECT_FALSE(drawn.requests[0].handoff->adopts_seed);
  EXPECT_EQ(validate(body + R"(,"seed":3})").seed, 3U);
}

TEST_F(Validated, AConcurrentFetchAdoptsTheSeedUnlessTheClientNamedOne) {
  const std::string body = R"({"prompt":"x","kv_transfer_params":)" + std::string(kMooncakeDecode);
  EXPECT_TRUE(validate(body + "}").requests[0].handoff->adopts_seed);
  EXPECT_FALSE(validate(body + R"(,"seed":3})").requests[0].handoff->adopts_seed);
}

TEST_F(Validated, ListsOfRoomsGoToPromptsOrToChoices) {
  const std::string prompts = R"({"prompt":["x","y"],"n":2,"bootstrap_host":"p",)"
                              R"("bootstrap_port":1,"bootstrap_room":)";
  const GenerationRequest by_prompt = validate(prompts + "[1,2]}");
  const auto has = [](const GenerationRequest& request) {
    std::vector<bool> out;
    for (const ValidRequest& each : request.requests) out.push_back(each.handoff.has_value());
    return out;
  };
  EXPECT_EQ(has(by_prompt), (std::vector{true, false, true, false}));
  EXPECT_EQ(has(validate(prompts + "[1,2,3,4]}")), (std::vector{true, true, true, true}));
  EXPECT_EQ(has(validate(prompts + "1}")), (std::vector{true, false, false, false}));
}

TEST_F(Validated, ThePrefillHalfOfARoomMakesOneToken) {
  role_ = HandoffRole::kPrefill;
  model_.handoff.reset();
  const GenerationRequest request = validate(
      R"({"prompt":"x","max_tokens":20,"min_tokens":5,"bootstrap_host":"p","bootstrap_port":1,)"
      R"("bootstrap_room":1})");
  EXPECT_EQ(request.requests[0].sampling.max_tokens, 1);
  EXPECT_EQ(request.requests[0].sampling.min_tokens, 1);
  EXPECT_EQ(request.fallbacks[static_cast<size_t>(HandoffFallback::kNoHandoff)], 1);
}

}  // namespace
}  // namespace sluice
