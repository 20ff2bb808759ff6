// SPDX-License-Identifier: Apache-2.0
// sluice.worker.v1.Worker over an engine: the calls, and the thread that feeds them. Calls belong
// to that thread; gRPC's threads only post to it.
#pragma once

#include <worker.grpc.pb.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "engine/engine.h"
#include "server/keys/digest.h"

namespace sluice {

class CountedPort;
class FrontEnd;
class WorkerCall;

class WorkerService final : public worker::v1::Worker::CallbackService, public OutputSink {
 public:
  explicit WorkerService(FrontEnd& front_end);
  ~WorkerService() override;
  WorkerService(const WorkerService&) = delete;
  WorkerService& operator=(const WorkerService&) = delete;

  // Called on gRPC's threads.
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const worker::v1::DescribeRequest* request,
                                     worker::v1::Description* response) override;
  grpc::ServerWriteReactor<worker::v1::FilePiece>* GetTokenizer(
      grpc::CallbackServerContext* context,
      const worker::v1::GetTokenizerRequest* request) override;
  grpc::ServerWriteReactor<worker::v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const worker::v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const worker::v1::GetStateRequest* request,
                                     worker::v1::State* response) override;

  // Called on the engine thread.
  void publish(OutputBatch batch) override;

  // Before the first call: where they come from; outlives them.
  void set_port(CountedPort* port) { port_ = port; }

  // Called on any thread.
  void post(std::function<void()> task);
  void cut_calls();

  [[nodiscard]] int64_t num_watched() const { return num_watched_.load(); }

 private:
  friend class WorkerCall;

  // Also marks the connection as one that has proven itself.
  [[nodiscard]] bool is_allowed(const grpc::CallbackServerContext& context) const;
  [[nodiscard]] bool knows_secret(const grpc::CallbackServerContext& context) const;
  // Returns OK if the request may run.
  grpc::Status read_request(const grpc::CallbackServerContext& context,
                            const worker::v1::GenerateRequest& message,
                            ValidRequest& request) const;
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
  std::thread thread_;                                     // last: uses the members above
};

}  // namespace sluice
