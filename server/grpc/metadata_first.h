// SPDX-License-Identifier: Apache-2.0
// Services that see a call's metadata before its message is read. For a method with one request
// message gRPC reads the message, from any client, before it calls the service; for a stream it
// reads nothing until it is asked to. Both are alike on the wire, so here every method is served as
// a stream: a caller without a key is refused by its metadata, and its message is never read.
// Messages arrive as bytes and are parsed where an exception ends one call.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <exception>
#include <forward_list>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/memory_reserve.h"

namespace sluice {

template <typename Response>
using OneRequestWire = grpc::ServerBidiReactor<grpc::ByteBuffer, Response>;

// Registers what gRPC's code generator would write for streams.
class MetadataFirstService : public grpc::Service {
 protected:
  // `begin` is called on gRPC's threads when the metadata of a call has arrived; its reactor reads.
  template <typename Response>
  void serve(std::string_view service,
             std::string_view method,
             std::function<OneRequestWire<Response>*(grpc::CallbackServerContext*)> begin) {
    using grpc::internal::RpcServiceMethod;
    const std::string& path =
        paths_.emplace_front("/" + std::string(service) + "/" + std::string(method));
    AddMethod(new RpcServiceMethod(path.c_str(), RpcServiceMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(
        num_methods_++,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, Response>(std::move(begin)));
  }

 private:
  std::forward_list<std::string> paths_;  // gRPC keeps pointers to them
  int num_methods_ = 0;
};

// Frees the bytes. Returns false if they do not parse as the message.
template <typename Message>
bool parse(grpc::ByteBuffer& bytes, Message& message) {
  return grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok();
}

inline grpc::Status malformed() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "The message is not of this method's type."};
}

// The most bytes of a message that contains no prompt.
inline constexpr size_t kMostQuestionBytes = 4096;

inline grpc::Status too_long(size_t bytes) {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          "The message has " + std::to_string(bytes) + " bytes, the most are " +
              std::to_string(kMostQuestionBytes) + " for this method."};
}

// A call whose client sends one message; deletes itself.
template <typename Response>
class OneRequestReactor : public OneRequestWire<Response> {
 public:
  // Takes the message, where place() puts it. Not called if there is none.
  virtual void take(grpc::ByteBuffer& message) = 0;

  // Ends a call whose message was not taken.
  virtual void fail(const grpc::Status& status) { this->Finish(status); }

  void OnReadDone(bool ok) final {
    if (!ok) return fail({grpc::StatusCode::INTERNAL, "The call has no message to read."});
    if (!keep_memory_for(message_.Length())) return fail(too_little());
    try {
      place(message_.Length(), [this] { take_or_fail(); });
    } catch (const std::exception&) {  // out of memory
      fail(too_little());
    }
  }

  void OnDone() override { delete this; }

 protected:
  void read() { this->StartRead(&message_); }

  // Runs the task that takes a message of so many bytes, at once or on another thread.
  virtual void place(size_t /*message_bytes*/, const std::function<void()>& task) { task(); }

 private:
  static grpc::Status too_little() {
    return {grpc::StatusCode::UNAVAILABLE, "The server has too little for this call."};
  }

  void take_or_fail() {
    try {
      take(message_);
    } catch (const std::exception&) {  // out of memory
      fail(too_little());
    }
  }

  grpc::ByteBuffer message_;
};

// Ends a call without reading its message.
template <typename Response>
class UnreadReactor final : public OneRequestWire<Response> {
 public:
  explicit UnreadReactor(const grpc::Status& status) { this->Finish(status); }

  explicit UnreadReactor(Response response) : response_(std::move(response)) {
    this->StartWriteAndFinish(&response_, {}, grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  Response response_;
};

// Answers one message with one.
template <typename Request, typename Response>
class AnswerReactor final : public OneRequestReactor<Response> {
 public:
  // Is called with the message and calls finish(), then or later.
  using Answer = std::function<void(const Request&, AnswerReactor&)>;

  explicit AnswerReactor(Answer answer, size_t most_bytes = std::numeric_limits<size_t>::max())
      : answer_(std::move(answer)), most_bytes_(most_bytes) {
    this->read();
  }

  void take(grpc::ByteBuffer& message) override {
    if (message.Length() > most_bytes_) return this->Finish(too_long(message.Length()));
    Request request;
    if (!parse(message, request)) return this->Finish(malformed());
    answer_(request, *this);
  }

  Response& response() { return response_; }

  // The last call. Any thread.
  void finish(const grpc::Status& status) {
    if (!status.ok()) return this->Finish(status);
    this->StartWriteAndFinish(&response_, {}, status);
  }

 private:
  const Answer answer_;
  const size_t most_bytes_;
  Response response_;
};

}  // namespace sluice
