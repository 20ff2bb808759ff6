// SPDX-License-Identifier: Apache-2.0
// gRPC's callback object of a generation. It reads the message, passes events to the GrpcCall, and
// deletes itself when gRPC is done with it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "server/grpc/call.h"
#include "server/grpc/metadata_first.h"

namespace sluice {

// `Call`: has the functions of GrpcCall that gRPC's threads call.
template <typename Response, typename Call = GrpcCall>
class CallReactor final : public OneRequestReactor<Response>, public MessageWriter<Response> {
 public:
  // Makes the call of a message that has arrived; a status refuses it.
  using Start = std::function<tl::expected<std::shared_ptr<Call>, grpc::Status>(
      grpc::ByteBuffer& message, CallReactor& reactor)>;

  // Runs `start` for a message of so many bytes.
  using Place = std::function<void(size_t message_bytes, const std::function<void()>& start)>;

  // `is_stream`: otherwise the one message leaves with the status. `place`: empty means on gRPC's
  // threads.
  CallReactor(bool is_stream, Start start, Place place = {})
      : is_stream_(is_stream), start_(std::move(start)), place_(std::move(place)) {
    this->read();
  }

  void take(grpc::ByteBuffer& message) override {
    auto call = start_(message, *this);
    if (!call) return this->Finish(call.error());
    const std::scoped_lock lock(mutex_);
    call_ = std::move(*call);
    call_->begin();
    if (is_cancelled_) call_->on_cancel();
  }

  Response& message() override { return response_; }

  void write() override {
    if (is_stream_) return this->StartWrite(&response_);
    has_response_ = true;
    call_->on_write_done(true);
  }

  void finish(const grpc::Status& status) override {
    if (!has_response_ || !status.ok()) return this->Finish(status);
    this->StartWriteAndFinish(&response_, {}, status);
  }

  void OnWriteDone(bool ok) override {
    if (is_stream_) call_->on_write_done(ok);
  }

  void OnCancel() override {
    const std::scoped_lock lock(mutex_);
    is_cancelled_ = true;
    if (call_ != nullptr) call_->on_cancel();
  }

  void OnDone() override {
    if (call_ != nullptr) call_->on_done();
    delete this;
  }

 private:
  void place(size_t message_bytes, const std::function<void()>& start) override {
    return place_ ? place_(message_bytes, start) : start();
  }

  const bool is_stream_;
  const Start start_;
  const Place place_;
  std::mutex mutex_;                // a client may disconnect while its message is taken
  std::shared_ptr<Call> call_;  // also held by its posted work and its generation
  bool is_cancelled_ = false;
  Response response_;
  bool has_response_ = false;  // of a unary call
};

}  // namespace sluice
