// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/kv_transports.h"

#include <algorithm>
#include <utility>

namespace sluice {

Expected<void> KvTransports::open(size_t index, const KvSessionOptions& options) {
  SLUICE_TRY_VOID(all_[index]->open(options));
  Session& session = sessions_[options.session];
  if (session.open.empty()) session.used = index;
  session.open.push_back(index);
  return {};
}

bool KvTransports::use(KvSession number, size_t index) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return false;
  Session& session = found->second;
  if (std::ranges::find(session.open, index) == session.open.end()) return false;
  if (session.is_chosen && session.used != index) return false;
  session.used = index;
  session.is_chosen = true;
  return true;
}

bool KvTransports::moves_device_memory(KvSession session) const {
  const auto found = sessions_.find(session);
  return found != sessions_.end() && all_[found->second.used]->moves_device_memory();
}

bool KvTransports::post(KvSession session, const KvLanding& landing) {
  const auto found = sessions_.find(session);
  return found != sessions_.end() && all_[found->second.used]->post(session, landing);
}

bool KvTransports::send(KvSession session, const KvFrame& frame, KvPayload payload) {
  const auto found = sessions_.find(session);
  return found != sessions_.end() &&
         all_[found->second.used]->send(session, frame, std::move(payload));
}

void KvTransports::abort(KvSession session, const KvTransferRef& ref) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) all_[found->second.used]->abort(session, ref);
}

void KvTransports::close(KvSession session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  for (const size_t index : found->second.open) all_[index]->close(session);
}

void KvTransports::poll(std::vector<KvCompletion>& out) {
  out.clear();
  for (const std::unique_ptr<KvTransport>& transport : all_) {
    transport->poll(fresh_);
    for (const KvCompletion& completion : fresh_) {
      if (completion.kind == KvCompletion::Kind::kClosed) {
        const auto found = sessions_.find(completion.session);
        if (++found->second.num_closed < found->second.open.size()) continue;
        sessions_.erase(found);
      }
      out.push_back(completion);
    }
  }
}

KvTransportCounts KvTransports::counts() const {
  KvTransportCounts sum;
  for (const std::unique_ptr<KvTransport>& transport : all_) transport->counts().add_to(sum);
  return sum;
}

}  // namespace sluice
