// SPDX-License-Identifier: Apache-2.0
#include "server/router/discovery.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "server/http/socket_name.h"
#include "server/router/discovery_kubernetes.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kBetweenLookups{5};
constexpr std::string_view kDns = "dns:";
constexpr std::string_view kKubernetes = "k8s:";

tl::unexpected<Error> invalid(const std::string& item) {
  return make_error(ErrorCode::kInvalidArgument,
                    "--workers: must be host:port, dns:name:port or k8s:namespace/service:port, "
                    "got \"" +
                        item + "\"",
                    "workers");
}

// Resolves a name repeatedly. If it cannot be resolved, the last addresses stay.
class DnsSource final : public AddressSource {
 public:
  explicit DnsSource(SocketName name) : name_(std::move(name)) {}

  ~DnsSource() override {
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void begin(AddressSink sink) override {
    thread_ = std::thread([this, sink = std::move(sink)] { run(sink); });
  }

 private:
  void run(const AddressSink& sink) {
    std::vector<std::string> known;
    std::unique_lock lock(mutex_);
    while (!is_ending_) {
      lock.unlock();
      std::vector<std::string> found = resolve_name(name_.host, name_.port);
      if (!found.empty() && found != known) {
        known = std::move(found);
        sink(known);
      }
      lock.lock();
      changed_.wait_for(lock, kBetweenLookups, [this] { return is_ending_; });
    }
  }

  const SocketName name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

class JoinedDiscovery final : public Discovery {
 public:
  JoinedDiscovery(std::vector<std::string> fixed,
                  std::vector<std::unique_ptr<AddressSource>> sources,
                  AddressSink sink)
      : found_(sources.size()), sink_(std::move(sink)), sources_(std::move(sources)) {
    found_.push_back(std::move(fixed));
  }

  void begin() override {
    take(found_.size() - 1, found_.back());
    for (size_t i = 0; i < sources_.size(); ++i) {
      sources_[i]->begin([this, i](std::vector<std::string> found) { take(i, std::move(found)); });
    }
  }

 private:
  void take(size_t source, std::vector<std::string> found) {
    const std::scoped_lock lock(mutex_);
    found_[source] = std::move(found);
    std::vector<std::string> all;
    for (const auto& some : found_) all.insert(all.end(), some.begin(), some.end());
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    sink_(std::move(all));
  }

  std::mutex mutex_;
  std::vector<std::vector<std::string>> found_;  // by source, then the fixed ones; guarded by
                                                 // mutex_
  const AddressSink sink_;
  std::vector<std::unique_ptr<AddressSource>> sources_;  // last: their threads use the rest
};

}  // namespace

std::vector<std::string> resolve_name(const std::string& name, int32_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return {};
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(
            each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.push_back(text_of(SocketName{text, port}));
    }
  }
  ::freeaddrinfo(found);
  std::ranges::sort(addresses);
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

Expected<std::unique_ptr<Discovery>> Discovery::create(const std::vector<std::string>& items,
                                                       AddressSink sink) {
  std::vector<std::string> fixed;
  std::vector<std::unique_ptr<AddressSource>> sources;
  for (const std::string& item : items) {
    if (item.starts_with(kKubernetes)) {
      SLUICE_TRY(auto source, watch_service(item.substr(kKubernetes.size())));
      sources.push_back(std::move(source));
      continue;
    }
    const bool is_dns = item.starts_with(kDns);
    auto name = parse_socket_name(is_dns ? std::string_view(item).substr(kDns.size()) : item);
    if (!name || name->port == 0) return invalid(item);
    if (is_dns) {
      sources.push_back(std::make_unique<DnsSource>(std::move(*name)));
    } else {
      fixed.push_back(text_of(*name));
    }
  }
  if (items.empty()) return invalid("");
  return std::make_unique<JoinedDiscovery>(std::move(fixed), std::move(sources), std::move(sink));
}

}  // namespace sluice
