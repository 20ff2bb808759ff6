// SPDX-License-Identifier: Apache-2.0
// Changes of the prefix cache over gRPC, and its flush.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

namespace common = smg::grpc::common;
using grpc::StatusCode;

KvEvent stored(uint64_t tenant_salt) {
  KvEvent event;
  event.kind = KvEventKind::kStored;
  event.hashes = {0xffffffffffffff01, 2};
  event.parent_hash = 7;
  event.token_ids = {10, 11, 12, 13};
  event.tenant_salt = tenant_salt;
  event.group = 1;
  event.group_kind = "sliding_window";
  event.window = 64;
  event.medium = "CPU";
  return event;
}

KvEventBatch batch_of(int64_t number, KvEvent event) {
  KvEventBatch batch;
  batch.number = number;
  batch.unix_time = 1.5;
  batch.block_size = 2;
  batch.events.push_back(std::move(event));
  return batch;
}

struct Subscription {
  explicit Subscription(GrpcClient& client, uint64_t first = 0, const std::string& key = {}) {
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    common::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(first);
    reader = client.vllm->SubscribeKvEvents(&context, request);
  }

  common::KvEventBatch next() {
    common::KvEventBatch batch;
    EXPECT_TRUE(reader->Read(&batch));
    return batch;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<common::KvEventBatch>> reader;
};

TEST(KvEventStream, BatchesHaveTheNumbersAndFieldsThatRoutersRead) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  Subscription subscription(client, 41);
  ASSERT_TRUE(eventually([&] { return engine.publish(batch_of(41, stored(0))) == 1; }));
  EXPECT_EQ(engine.first_watched(), 41);
  const common::KvEventBatch first = subscription.next();
  EXPECT_EQ(first.sequence_number(), 41U);
  EXPECT_EQ(first.timestamp(), 1.5);
  ASSERT_EQ(first.events_size(), 1);
  const common::KvBlocksStored& blocks = first.events(0).stored();
  EXPECT_EQ(blocks.parent_block_hash(), 7);
  EXPECT_EQ(blocks.tier(), common::KV_CACHE_TIER_HOST);
  EXPECT_EQ(blocks.group_idx(), 1U);
  EXPECT_EQ(blocks.kv_cache_spec_kind(), "sliding_window");
  EXPECT_EQ(blocks.kv_cache_spec_sliding_window(), 64U);
  ASSERT_EQ(blocks.blocks_size(), 2);
  EXPECT_EQ(static_cast<uint64_t>(blocks.blocks(0).block_hash()), 0xffffffffffffff01);
  EXPECT_EQ(blocks.blocks(1).token_ids(0), 12U);
  EXPECT_EQ(blocks.blocks(1).token_ids(1), 13U);
  EXPECT_EQ(blocks.blocks(1).block_size(), 2);
  KvEvent removed;
  removed.kind = KvEventKind::kRemoved;
  removed.hashes = {9};
  removed.medium = "GPU";
  engine.publish(batch_of(42, removed));
  const common::KvEventBatch second = subscription.next();
  EXPECT_EQ(second.events(0).removed().block_hashes(0), 9);
  EXPECT_EQ(second.events(0).removed().tier(), common::KV_CACHE_TIER_DEVICE);
  engine.publish(batch_of(43, KvEvent{}));
  EXPECT_TRUE(subscription.next().events(0).has_cleared());
}

TEST(KvEventStream, ATenantHearsOfItsOwnPrefixesAlone) {
  FakeEngine engine;
  Config config;
  config.api_key = {"first", "second"};
  RunningServer server(engine, grpc_config(config));
  GrpcClient client(server->grpc_port());
  ASSERT_TRUE(client.generate(token_request(), "first").status.ok());
  const uint64_t salt = engine.submitted().back().tenant_salt;
  Subscription first(client, 0, "first");
  Subscription second(client, 0, "second");
  ASSERT_TRUE(eventually([&] { return engine.publish(batch_of(0, KvEvent{})) == 2; }));
  engine.publish(batch_of(1, stored(salt)));
  const auto number_one = [](Subscription& subscription) {
    common::KvEventBatch batch = subscription.next();
    while (batch.sequence_number() == 0) batch = subscription.next();
    return batch;
  };
  EXPECT_EQ(number_one(first).events_size(), 1);
  EXPECT_EQ(number_one(second).events_size(), 0);
  Subscription unknown(client, 0, "third");
  EXPECT_EQ(unknown.reader->Finish().error_code(), StatusCode::UNAUTHENTICATED);
}

TEST(KvEventStream, AnEngineThatTellsNobodySaysSo) {
  FakeEngine engine;
  engine.set_has_events(false);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  Subscription subscription(client);
  EXPECT_EQ(subscription.reader->Finish().error_code(), StatusCode::UNIMPLEMENTED);
}

TEST(KvEventStream, EndsWithItsClientAndWithTheServer) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  {
    Subscription left(client);
    ASSERT_TRUE(eventually([&] { return engine.publish(batch_of(0, KvEvent{})) == 1; }));
    left.context.TryCancel();
    EXPECT_EQ(left.reader->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(eventually([&] { return engine.publish(batch_of(1, KvEvent{})) == 0; }));
  Subscription stays(client);
  ASSERT_TRUE(eventually([&] { return engine.publish(batch_of(2, KvEvent{})) == 1; }));
  server.stop();
  for (common::KvEventBatch batch; stays.reader->Read(&batch);) {
  }
  EXPECT_FALSE(stays.reader->Finish().ok());
}

TEST(KvEventStream, ASubscriberThatDoesNotReadIsLetGo) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  Subscription subscription(client);
  ASSERT_TRUE(eventually([&] { return engine.publish(batch_of(0, stored(0))) == 1; }));
  KvEvent large = stored(0);
  large.token_ids.assign(4, 1);
  large.hashes.assign(2000, 1);
  for (int64_t i = 1; i < 6000; ++i) engine.publish(batch_of(i, large));
  int64_t num_read = 0;
  for (common::KvEventBatch batch; subscription.reader->Read(&batch);) ++num_read;
  EXPECT_EQ(subscription.reader->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(num_read, 6000);
}

TEST(FlushCache, SucceedsWhenNothingRunsBeforeItsTimeIsUp) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  const auto flush = [&](float timeout_s) {
    grpc::ClientContext context;
    common::FlushCacheRequest request;
    request.set_timeout_s(timeout_s);
    common::FlushCacheResponse response;
    const grpc::Status status = client.vllm->FlushCache(&context, request, &response);
    return std::pair(status.error_code(), response.success());
  };
  EXPECT_EQ(flush(0), std::pair(StatusCode::OK, true));
  EXPECT_EQ(flush(-1).first, StatusCode::INVALID_ARGUMENT);
  std::thread asking([&] { client.generate(token_request()); });
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  EXPECT_EQ(flush(0), std::pair(StatusCode::OK, false));
  EXPECT_EQ(flush(0.2F), std::pair(StatusCode::OK, false));
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    while (engine.num_running() > 0) engine.step();
  });
  EXPECT_EQ(flush(30), std::pair(StatusCode::OK, true));
  ending.join();
  asking.join();
}

}  // namespace
}  // namespace sluice
