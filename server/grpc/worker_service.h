// SPDX-License-Identifier: Apache-2.0
// sluice.worker.v1.Worker over an engine: the calls, and the thread that feeds them. Calls belong
// to that thread; gRPC's threads only post to it. They read requests too, except large ones, which
// have a thread of their own: gRPC has few, and they write the streams of all routers.
#pragma once

#include <worker.pb.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "engine/engine.h"
#include "server/grpc/reactors.h"
#include "server/keys/digest.h"

namespace sluice {

class CountedPort;
class FrontEnd;
class WorkerCall;

class WorkerService final : public MetadataFirstService, public OutputSink {
 public:
  explicit WorkerService(FrontEnd& front_end);
  ~WorkerService() override;
  WorkerService(const WorkerService&) = delete;
  WorkerService& operator=(const WorkerService&) = delete;

  // Called on the engine thread.
  void publish(OutputBatch batch) override;

  // Before the first call: the port of the calls; outlives them.
  void set_port(CountedPort* port) { port_ = port; }

  // Called on any thread.
  void post(std::function<void()> task);
  void cut_calls();

  [[nodiscard]] int64_t num_watched() const { return num_watched_.load(); }

 private:
  friend class WorkerCall;

  // Adds a method whose reactor `begin` makes for calls with the secret.
  template <typename Response, typename Begin>
  void serve_if_allowed(std::string_view method, Begin begin) {
    serve<Response>("sluice.worker.v1.Worker",
                    method,
                    [this, begin](auto* context) -> OneRequestWire<Response>* {
                      if (is_allowed(*context)) return begin();
                      return new UnreadReactor<Response>(grpc::Status(
                          grpc::StatusCode::UNAUTHENTICATED,
                          "The worker's secret is missing or another one."));
                    });
  }

  // Called on gRPC's threads. Also marks the connection as authenticated.
  [[nodiscard]] bool is_allowed(const grpc::CallbackServerContext& context) const;
  [[nodiscard]] bool knows_secret(const grpc::CallbackServerContext& context) const;
  [[nodiscard]] worker::v1::Description description() const;
  [[nodiscard]] worker::v1::State state() const;
  // A status: the request may not run.
  tl::expected<std::shared_ptr<WorkerCall>, grpc::Status> read_call(
      grpc::ByteBuffer& message, MessageWriter<worker::v1::GenerateResponse>& writer);
  void deliver(OutputBatch& batch);

  FrontEnd& front_end_;
  CountedPort* port_ = nullptr;
  const uint64_t epoch_;
  const bool has_secret_;
  const Digest secret_;
  std::atomic<int64_t> num_watched_{0};
  std::atomic<int64_t> queued_tokens_{0};
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  // Members below belong to the service's thread.
  std::unordered_map<RequestId, std::shared_ptr<WorkerCall>> by_id_;
  std::unordered_set<std::shared_ptr<WorkerCall>> calls_;  // not finished
  std::thread thread_;                                     // uses the members above
  boost::asio::thread_pool reader_{1};                     // of large messages; last, too
};

}  // namespace sluice
