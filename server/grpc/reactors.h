// SPDX-License-Identifier: Apache-2.0
// gRPC's callback objects of a generation, one type for each kind of call. They pass events to the
// GrpcCall and delete themselves when gRPC is done with them.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/grpc/call.h"

namespace sluice {

// The reactor of a stream; without a call it is finished at once.
template <typename Response>
class StreamReactor final : public grpc::ServerWriteReactor<Response>,
                            public MessageWriter<Response> {
 public:
  void begin(std::shared_ptr<GrpcCall> call) {
    call_ = std::move(call);
    call_->begin();
  }

  Response& message() override { return message_; }

  void write() override { this->StartWrite(&message_); }

  void finish(const grpc::Status& status) override { this->Finish(status); }

  void OnWriteDone(bool ok) override { call_->on_write_done(ok); }

  void OnCancel() override {
    if (call_ != nullptr) call_->on_cancel();
  }

  void OnDone() override {
    if (call_ != nullptr) call_->on_done();
    delete this;
  }

 private:
  std::shared_ptr<GrpcCall> call_;  // also held by its posted work and its generation
  Response message_;
};

template <typename Response>
class UnaryReactor final : public grpc::ServerUnaryReactor, public MessageWriter<Response> {
 public:
  explicit UnaryReactor(Response& response) : response_(response) {}

  void begin(std::shared_ptr<GrpcCall> call) {
    call_ = std::move(call);
    call_->begin();
  }

  Response& message() override { return response_; }

  void write() override { call_->on_write_done(true); }  // leaves with the status

  void finish(const grpc::Status& status) override { this->Finish(status); }

  void OnCancel() override {
    if (call_ != nullptr) call_->on_cancel();
  }

  void OnDone() override {
    if (call_ != nullptr) call_->on_done();
    delete this;
  }

 private:
  std::shared_ptr<GrpcCall> call_;  // also held by its posted work and its generation
  Response& response_;
};

}  // namespace sluice
