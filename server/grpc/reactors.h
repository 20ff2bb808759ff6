// SPDX-License-Identifier: Apache-2.0
// gRPC's callback objects of a generation, one type for each kind of call. They pass events to the
// GrpcCall and delete themselves when gRPC is done with them.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/grpc/call.h"

namespace sluice {

// What the reactors share. Without a call they are finished at once.
template <typename Reactor, typename Response>
class CallReactor : public Reactor, public MessageWriter<Response> {
 public:
  void begin(std::shared_ptr<GrpcCall> call) {
    call_ = std::move(call);
    call_->begin();
  }

  void finish(const grpc::Status& status) override { this->Finish(status); }

  void OnCancel() override {
    if (call_ != nullptr) call_->on_cancel();
  }

  void OnDone() override {
    if (call_ != nullptr) call_->on_done();
    delete this;
  }

 protected:
  std::shared_ptr<GrpcCall> call_;  // also held by its posted work and its generation
};

template <typename Response>
class StreamReactor final : public CallReactor<grpc::ServerWriteReactor<Response>, Response> {
 public:
  Response& message() override { return message_; }

  void write() override { this->StartWrite(&message_); }

  void OnWriteDone(bool ok) override { this->call_->on_write_done(ok); }

 private:
  Response message_;
};

template <typename Response>
class UnaryReactor final : public CallReactor<grpc::ServerUnaryReactor, Response> {
 public:
  explicit UnaryReactor(Response& response) : response_(response) {}

  Response& message() override { return response_; }

  void write() override { this->call_->on_write_done(true); }  // leaves with the status

 private:
  Response& response_;
};

}  // namespace sluice
