// SPDX-License-Identifier: Apache-2.0
// One generation's call. gRPC's threads enter at begin() and the on_...() functions, which only
// post to the call's I/O thread; everything else happens there. A message leaves when the previous
// one has, so the unread output of a slow reader waits here, merged and bounded.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/api/answer.h"
#include "server/api/request_validator.h"
#include "server/front/front_end.h"
#include "server/keys/tenant.h"

namespace sluice {

// The wire's side of a call, from its I/O thread: messages of one type, then one status.
template <typename Response>
class MessageWriter {
 public:
  virtual ~MessageWriter() = default;
  virtual Response& message() = 0;  // may be filled while no write is under way
  virtual void write() = 0;         // GrpcCall::on_write_done follows
  virtual void finish(const grpc::Status& status) = 0;  // the last call
};

class GrpcCall : public Answer, public std::enable_shared_from_this<GrpcCall> {
 public:
  // The context lives until on_done(). `message` is moved from.
  GrpcCall(FrontEnd& front_end,
           IoWorker& call_worker,
           size_t method,
           grpc::CallbackServerContext& context,
           std::shared_ptr<Tenant> tenant,
           grpc::ByteBuffer& message);

  // Called on gRPC's threads. Call, reactor and posted work hold each other until on_done().
  void begin();
  void on_write_done(bool ok);
  void on_cancel();
  void on_done();

  IoWorker& worker() final { return worker_; }

  [[nodiscard]] const std::string& request_id() const final { return request_id_; }

  void attach(std::shared_ptr<Generation>) final {}

  void add_delta(const ChoiceDelta& delta, const Usage& usage) final;

  void flush() final;
  void finish(std::span<const size_t> returned, const Usage& usage) final;
  bool fail(const Error& error) final;
  void client_left() final;

 protected:
  // Parses the message once, before anything else; false: it is not a message of the method.
  virtual bool parse(grpc::ByteBuffer& message) = 0;

  // `ignored`: gets the fields that are left out.
  virtual Expected<GenerationRequest> decode(const ValidationContext& context,
                                             IgnoredArguments& ignored) = 0;

  // Called before and after the engine knows the generation; start() may refuse it.
  virtual Expected<void> start(const std::shared_ptr<Generation>&) { return {}; }

  virtual void ended() {}

  virtual void write_delta(const ChoiceDelta& delta) = 0;
  // The generation is complete: the rest of the output becomes pending.
  virtual void complete(std::span<const size_t> returned, const Usage& usage) = 0;
  // Fills the writer's message and writes it; false: nothing is pending.
  virtual bool write_pending() = 0;
  virtual void drop_pending() = 0;
  virtual void finish_wire(const grpc::Status& status) = 0;

  FrontEnd& front_end_;
  size_t pending_bytes_ = 0;  // the derived class counts
  std::string request_id_;    // x-request-id, or a message's name; not empty once prepared

 private:
  using Clock = std::chrono::steady_clock;

  void read_message();
  void run();
  void refuse(const Error& error);
  bool move_on(const Error& error);
  void begin_answer();
  void pump();
  void cancel_generation();
  void set_status(const Error& error);
  void note_end(std::string_view reason);
  void log() const;
  void check_deadline();
  // Resets the stream. Only this function and on_done() may meet the end of the context.
  void reset_stream();

  IoWorker& worker_;
  const size_t method_;
  const std::shared_ptr<Tenant> tenant_;  // shared with the keys, which may be reloaded
  const Clock::time_point arrival_ = Clock::now();
  std::mutex context_mutex_;  // a gRPC thread ends the context while the I/O thread may reset it
  grpc::CallbackServerContext* context_;  // null: done
  const size_t num_bytes_;                // of the message
  grpc::ByteBuffer message_bytes_;        // until they are parsed

  std::shared_ptr<Generation> generation_;  // set until the status is sent; it holds this call
  std::optional<grpc::Status> status_;      // it is sent when nothing is pending
  std::string ignored_;  // for the client, like the next
  std::string seed_;     // empty: not read
  int num_moves_ = 0;    // to other versions
  std::shared_ptr<TenantLease> lease_;  // while the call may move: it counts once
  bool has_begun_ = false;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<Usage> usage_;       // for the log, like the next four
  std::string client_;
  std::string model_;
  bool is_stream_ = false;
  std::string finish_reasons_;
  TraceContext trace_;               // for the log: the span's, or the client's
  Clock::time_point last_progress_;  // of a write, or of the status
};

}  // namespace sluice
