// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/health_service.h"

#include <health.pb.h>

#include <string>
#include <utility>

#include "server/front/metrics.h"
#include "server/grpc/rpc_context.h"

namespace sluice {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Status = HealthCheckResponse::ServingStatus;

bool is_known(std::string_view service) {
  return service.empty() || service == kVllmService || service == kSluiceService;
}

Status status_of(bool is_serving) {
  return is_serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

HealthCheckResponse response_of(bool is_serving) {
  HealthCheckResponse response;
  response.set_status(status_of(is_serving));
  return response;
}

}  // namespace

// A call that gets the status, and each change of it. Between two writes it may miss one.
class HealthService::Watch final : public OneRequestWire<HealthCheckResponse> {
 public:
  // `reads`: the message says which service is meant.
  Watch(HealthService& service, bool reads) : service_(service) {
    const std::scoped_lock lock(service_.mutex_);
    service_.watches_.insert(this);
    if (service_.has_ended_) {
      end(grpc::Status::CANCELLED);
    } else if (reads) {
      StartRead(&message_);
    } else {
      begin(true);
    }
  }

  void OnReadDone(bool ok) override {
    const size_t bytes = message_.Length();
    HealthCheckRequest request;
    const bool is_read = ok && bytes <= kMostQuestionBytes && parse(message_, request);
    const std::scoped_lock lock(service_.mutex_);
    if (is_read) return begin(is_known(request.service()));
    end(!ok                          ? grpc::Status::CANCELLED
        : bytes > kMostQuestionBytes ? too_long(bytes)
                                     : malformed());
  }

  void OnWriteDone(bool ok) override {
    const std::scoped_lock lock(service_.mutex_);
    is_writing_ = false;
    if (ok) return notify();
    end(grpc::Status::CANCELLED);
  }

  void OnCancel() override {
    const std::scoped_lock lock(service_.mutex_);
    end(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    {
      const std::scoped_lock lock(service_.mutex_);
      service_.watches_.erase(this);
    }
    delete this;
  }

  // The service's mutex is held, also in the next two.
  void notify() {
    if (!has_begun_ || is_writing_ || has_ended_) return;
    const Status now =
        is_known_ ? status_of(service_.is_serving_) : HealthCheckResponse::SERVICE_UNKNOWN;
    if (sent_ == now) return;
    sent_ = now;
    response_.set_status(now);
    is_writing_ = true;
    StartWrite(&response_);
  }

  void end(const grpc::Status& status) {
    if (!std::exchange(has_ended_, true)) Finish(status);
  }

 private:
  void begin(bool is_known) {
    has_begun_ = true;
    is_known_ = is_known;
    notify();
  }

  HealthService& service_;
  grpc::ByteBuffer message_;
  HealthCheckResponse response_;
  std::optional<Status> sent_;
  bool has_begun_ = false;
  bool is_known_ = false;
  bool is_writing_ = false;
  bool has_ended_ = false;
};

HealthService::HealthService(const RpcContext& rpc) : rpc_(rpc) {
  using Wire = OneRequestWire<HealthCheckResponse>;
  serve<HealthCheckResponse>(kHealthService, "Check", [this](auto* context) -> Wire* {
    if (!rpc_.admit(*context)) {
      return new UnreadReactor<HealthCheckResponse>(response_of(is_serving()));
    }
    using Reactor = AnswerReactor<HealthCheckRequest, HealthCheckResponse>;
    return new Reactor(
        [this](const HealthCheckRequest& request, Reactor& reactor) {
          if (!is_known(request.service())) {
            return reactor.finish({grpc::StatusCode::NOT_FOUND, "There is no such service."});
          }
          reactor.response() = response_of(is_serving());
          reactor.finish(grpc::Status::OK);
        },
        kMostQuestionBytes);
  });
  serve<HealthCheckResponse>(kHealthService, "Watch", [this](auto* context) -> Wire* {
    return new Watch(*this, rpc_.admit(*context).has_value());
  });
}

HealthService::~HealthService() = default;

void HealthService::set_serving(bool is_serving) {
  const std::scoped_lock lock(mutex_);
  is_serving_ = is_serving;
  for (Watch* watch : watches_) watch->notify();
}

void HealthService::end_watches() {
  const std::scoped_lock lock(mutex_);
  has_ended_ = true;
  for (Watch* watch : watches_) watch->end(grpc::Status::CANCELLED);
}

bool HealthService::is_serving() const {
  const std::scoped_lock lock(mutex_);
  return is_serving_;
}

}  // namespace sluice
