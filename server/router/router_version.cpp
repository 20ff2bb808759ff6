// SPDX-License-Identifier: Apache-2.0
#include "server/router/router_version.h"

#include "server/router/remote_engine.h"

namespace sluice {

Expected<RequestId> RouterVersion::submit(ValidRequest request, OutputSink& sink) {
  return router_.submit_to(shared_from_this(), std::move(request), sink);
}

void RouterVersion::abort(RequestId id) { router_.abort(id); }

EngineStats RouterVersion::stats() const { return router_.stats(); }

void RouterVersion::report_state(int32_t num_steps, std::function<void(EngineState)> done) {
  router_.report_state(num_steps, std::move(done));
}

void RouterVersion::drain() { router_.drain(); }

void RouterVersion::stop() { router_.stop(); }

}  // namespace sluice
