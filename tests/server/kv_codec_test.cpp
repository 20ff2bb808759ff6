// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_codec.h"

#include <gtest/gtest.h>
#include <kv_control.pb.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "server/grpc/kv_handshake.h"
#include "tests/server/kv_messages_sample.h"

namespace sluice {
namespace {

using kv::v1::Envelope;

TEST(KvCodec, EveryMessageComesBackWithEveryField) {
  std::set<size_t> kinds;
  for (const KvMessage& message : test::sample_messages()) {
    Envelope envelope;
    encode_kv_message(message, envelope);
    Envelope read;
    ASSERT_TRUE(read.ParseFromString(envelope.SerializeAsString()));
    const auto back = decode_kv_message(read);
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(*back, message) << message.index();
    kinds.insert(message.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<KvMessage>);
}

// Also where every field has its default, so that nothing is on the wire.
TEST(KvCodec, EmptyMessagesKeepTheirKind) {
  for (const KvMessage& message : {KvMessage(KvRenew{}),
                                   KvMessage(KvRenewAck{}),
                                   KvMessage(KvDrain{}),
                                   KvMessage(KvCredit{})}) {
    Envelope envelope;
    encode_kv_message(message, envelope);
    const auto back = decode_kv_message(envelope);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, message);
  }
}

TEST(KvCodec, HelloComesBackWithEveryField) {
  const KvHello hello = test::sample_hello();
  const auto back = decode_kv_hello(encode_kv_hello(hello));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, hello);
}

TEST(KvCodec, FieldsOfLaterVersionsAreLeftAlone) {
  Envelope envelope;
  encode_kv_message(test::sample_messages().front(), envelope);
  // Field 100 of the claim, and one of the envelope.
  auto* claim = envelope.mutable_claim();
  claim->GetReflection()->MutableUnknownFields(claim)->AddVarint(100, 7);
  envelope.GetReflection()->MutableUnknownFields(&envelope)->AddLengthDelimited(101, "later");
  Envelope read;
  ASSERT_TRUE(read.ParseFromString(envelope.SerializeAsString()));
  const auto back = decode_kv_message(read);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, test::sample_messages().front());
  EXPECT_EQ(read.SerializeAsString().size(), envelope.SerializeAsString().size());
}

TEST(KvCodec, WhatIsOutOfBoundsIsRefused) {
  const auto claim_with = [](const std::function<void(kv::v1::Claim&)>& change) {
    Envelope envelope;
    encode_kv_message(test::sample_messages().front(), envelope);
    change(*envelope.mutable_claim());
    return envelope;
  };
  std::vector<Envelope> bad = {
      Envelope(),
      claim_with([](auto& claim) { claim.set_transfer("short"); }),
      claim_with([](auto& claim) { claim.clear_transfer(); }),
      claim_with([](auto& claim) { claim.set_last_key(std::string(17, 'x')); }),
      claim_with([](auto& claim) {
        for (int i = 0; i < 20; ++i) claim.add_first_blocks(1);
      }),
      claim_with([](auto& claim) { claim.set_transport(256); }),
      claim_with([](auto& claim) { claim.set_trace(std::string(257, 'x')); }),
  };
  bad.emplace_back().mutable_ping()->set_sequence(1);
  bad.emplace_back().mutable_challenge();
  const std::string id(16, 'i');
  bad.emplace_back().mutable_accept()->set_transfer(id);
  bad.back().mutable_accept()->set_state(4);
  bad.emplace_back().mutable_refuse()->set_transfer(id);
  bad.back().mutable_refuse()->set_reason(kNumKvRefusals);
  bad.emplace_back().mutable_final()->set_transfer(id);
  bad.back().mutable_final()->set_first_token(-2);
  bad.emplace_back().mutable_cancel()->set_transfer(id);
  bad.back().mutable_cancel()->set_reason(5);
  bad.emplace_back().mutable_credit()->set_transfer(id);
  for (size_t i = 0; i <= kMaxKvCreditSlots; ++i) bad.back().mutable_credit()->add_slots();
  bad.emplace_back().mutable_renew()->add_refs()->set_transfer("short");
  bad.emplace_back();
  for (size_t i = 0; i <= kMaxKvRenewals; ++i) {
    bad.back().mutable_renew_ack()->add_refs()->set_transfer(id);
  }
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_FALSE(decode_kv_message(bad[i]).has_value()) << i;
}

TEST(KvCodec, HellosOutOfBoundsAreRefused) {
  const auto hello_with = [](const std::function<void(kv::v1::Hello&)>& change) {
    kv::v1::Hello hello;
    EXPECT_TRUE(hello.ParseFromString(encode_kv_hello(test::sample_hello())));
    change(hello);
    return hello.SerializeAsString();
  };
  const std::vector<std::string> bad = {
      "",
      "\xff\xff",
      hello_with([](auto& hello) { hello.set_epoch(0); }),
      hello_with([](auto& hello) { hello.set_worker(std::string(65, 'x')); }),
      hello_with([](auto& hello) { hello.set_fingerprint("x"); }),
      hello_with([](auto& hello) { hello.set_session("x"); }),
      hello_with([](auto& hello) {
        for (int i = 0; i < 9; ++i) hello.add_transports();
      }),
      hello_with([](auto& hello) { hello.mutable_transports(0)->set_kind(300); }),
      hello_with(
          [](auto& hello) { hello.mutable_transports(0)->set_address(std::string(257, 'x')); }),
      hello_with([](auto& hello) { hello.mutable_layout()->set_dtype(300); }),
      hello_with([](auto& hello) { hello.mutable_layout()->mutable_groups(0)->set_kind(300); }),
      hello_with([](auto& hello) {
        for (int i = 0; i < 17; ++i) hello.mutable_layout()->add_groups();
      }),
  };
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_FALSE(decode_kv_hello(bad[i]).has_value()) << i;
}

class KvHandshakeTest : public ::testing::Test {
 protected:
  KvHandshakeTest() {
    fill_random(callers_);
    fill_random(listeners_);
    sign_kv_hello(test::sample_hello(), KvSide::kCaller, secret_, listeners_, callers_, signed_);
  }

  [[nodiscard]] ErrorCode refusal(const kv::v1::SignedHello& hello,
                                  KvSide side = KvSide::kCaller) const {
    const auto proven = verify_kv_hello(hello, side, secret_, listeners_);
    return proven ? ErrorCode::kInternal : proven.error().code;
  }

  const std::string secret_ = "correct horse battery staple";
  KvNonce callers_{};
  KvNonce listeners_{};
  kv::v1::SignedHello signed_;
};

TEST_F(KvHandshakeTest, WhoHasTheSecretIsBelieved) {
  const auto proven = verify_kv_hello(signed_, KvSide::kCaller, secret_, listeners_);
  ASSERT_TRUE(proven.has_value()) << proven.error().message;
  EXPECT_EQ(proven->hello, test::sample_hello());
  EXPECT_EQ(proven->nonce, callers_);
  EXPECT_EQ(proven->version, kKvProtocolVersion);
}

TEST_F(KvHandshakeTest, NobodyElseIs) {
  constexpr auto kNo = ErrorCode::kUnauthenticated;
  // Another secret, none, an earlier stream's, the listener's own words, and anything changed.
  for (const std::string& other : {std::string("another secret here"), std::string()}) {
    kv::v1::SignedHello hello;
    sign_kv_hello(test::sample_hello(), KvSide::kCaller, other, listeners_, callers_, hello);
    EXPECT_EQ(refusal(hello), kNo);
  }
  KvNonce old = listeners_;
  old[31] ^= 1;
  kv::v1::SignedHello replayed;
  sign_kv_hello(test::sample_hello(), KvSide::kCaller, secret_, old, callers_, replayed);
  EXPECT_EQ(refusal(replayed), kNo);
  EXPECT_EQ(refusal(signed_, KvSide::kListener), kNo);
  for (size_t i = 0; i < signed_.hello().size(); i += 7) {
    kv::v1::SignedHello changed = signed_;
    (*changed.mutable_hello())[i] ^= 1;
    EXPECT_EQ(refusal(changed), kNo);
  }
  kv::v1::SignedHello changed = signed_;
  (*changed.mutable_nonce())[0] ^= 1;
  EXPECT_EQ(refusal(changed), kNo);
  changed = signed_;
  changed.mutable_mac()->pop_back();
  EXPECT_EQ(refusal(changed), kNo);
  changed = signed_;
  changed.set_nonce("short");
  EXPECT_EQ(refusal(changed), ErrorCode::kInvalidArgument);
}

TEST_F(KvHandshakeTest, VersionsWithoutACommonOneAreRefused) {
  for (const bool is_newer : {false, true}) {
    KvHello hello = test::sample_hello();
    hello.min_version = is_newer ? kKvProtocolVersion + 1 : 0;
    hello.max_version = is_newer ? kKvProtocolVersion + 2 : 0;
    sign_kv_hello(hello, KvSide::kCaller, secret_, listeners_, callers_, signed_);
    EXPECT_EQ(refusal(signed_), ErrorCode::kInvalidArgument);
    hello.min_version = 0;
    hello.max_version = 9;
    sign_kv_hello(hello, KvSide::kCaller, secret_, listeners_, callers_, signed_);
    EXPECT_TRUE(verify_kv_hello(signed_, KvSide::kCaller, secret_, listeners_).has_value());
  }
}

}  // namespace
}  // namespace sluice
