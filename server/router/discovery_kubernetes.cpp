// SPDX-License-Identifier: Apache-2.0
#include "server/router/discovery_kubernetes.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>
#include <utility>

#include "engine/core/log.h"
#include "server/http/client/fetch.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kAccount = "/var/run/secrets/kubernetes.io/serviceaccount";
constexpr std::chrono::seconds kAfterFailure{1};
constexpr size_t kMostLineBytes = size_t{16} << 20;
constexpr int32_t kMostPort = 65535;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Reads the token, for each request again, because tokens are renewed.
std::string read_token(const std::string& account) {
  std::ifstream file(account + "/token", std::ios::binary);
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= 253 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

const Json& member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::string text_in(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Returns a condition. `unsaid`: its value if missing (ready counts as true, terminating as false).
bool condition(const Json& endpoint, const char* name, bool unsaid) {
  const Json& value = member(member(endpoint, "conditions"), name);
  return value.is_boolean() ? value.get<bool>() : unsaid;
}

int32_t port_of(const Json& slice, int32_t given) {
  if (given > 0) return given;
  const Json& ports = member(slice, "ports");
  if (!ports.is_array() || ports.empty()) return 0;
  const Json& port = member(ports.front(), "port");
  if (!port.is_number_integer()) return 0;
  const int64_t number = port.get<int64_t>();
  return number > 0 && number <= kMostPort ? static_cast<int32_t>(number) : 0;
}

std::vector<std::string> addresses_of(const Json& slice, int32_t given_port) {
  std::vector<std::string> addresses;
  const int32_t port = port_of(slice, given_port);
  const Json& endpoints = member(slice, "endpoints");
  if (port == 0 || !endpoints.is_array()) return addresses;
  for (const Json& endpoint : endpoints) {
    if (!condition(endpoint, "ready", true) || condition(endpoint, "terminating", false)) continue;
    const Json& names = member(endpoint, "addresses");
    if (!names.is_array() || names.empty() || !names.front().is_string()) continue;
    addresses.push_back(text_of(SocketName{names.front().get<std::string>(), port}));
  }
  return addresses;
}

tl::unexpected<Error> no_answer(const char* what) {
  return make_error(ErrorCode::kDataLoss,
                    std::string("The API server's answer is no ") + what + ".");
}

// Takes the lines of a watch, or one whole document.
class JsonSink final : public client::ResponseSink {
 public:
  using Take = std::function<Expected<void>(std::string_view)>;

  JsonSink(bool by_line, Take take) : by_line_(by_line), take_(std::move(take)) {}

  Expected<void> on_head(const client::ResponseHead& head) override {
    constexpr int kOk = 200;
    if (head.status == kOk) return {};
    return make_error(ErrorCode::kUnavailable,
                      "The API server answers with status " + std::to_string(head.status) + ".");
  }

  Expected<void> on_body(std::string_view bytes) override {
    text_ += bytes;
    if (text_.size() > kMostLineBytes) return no_answer("list within 16 MiB");
    if (!by_line_) return {};
    size_t begin = 0;
    for (size_t end = 0; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      SLUICE_TRY_VOID(take_(std::string_view(text_).substr(begin, end - begin)));
    }
    text_.erase(0, begin);
    return {};
  }

  Expected<void> finish() {
    if (by_line_) return {};
    return take_(text_);
  }

 private:
  const bool by_line_;
  const Take take_;
  std::string text_;
};

struct Place {
  std::string api;      // https://host:port
  std::string account;  // folder of token and ca.crt
  std::string space;
  std::string service;
  int32_t port = 0;
};

class SliceSource final : public AddressSource {
 public:
  explicit SliceSource(Place place) : place_(std::move(place)) {}

  ~SliceSource() override {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

  void begin(AddressSink sink) override {
    thread_ = std::jthread(
        [this, sink = std::move(sink)](const std::stop_token& stop) { run(stop, sink); });
  }

 private:
  void run(const std::stop_token& stop, const AddressSink& sink) {
    while (!stop.stop_requested()) {
      const Expected<void> done = list_and_watch(stop, sink);
      if (done || stop.stop_requested()) continue;
      log_event(LogLevel::kWarning,
                "endpoints_unknown",
                "service",
                place_.space + "/" + place_.service,
                "reason",
                done.error().message);
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any().wait_for(lock, stop, kAfterFailure, [] { return false; });
    }
  }

  // Returns at an error or a stop. Known addresses stay when the API server is gone.
  Expected<void> list_and_watch(const std::stop_token& stop, const AddressSink& sink) {
    EndpointSlices slices(place_.port);
    const auto take_list = [&](std::string_view json) { return slices.take_list(json); };
    SLUICE_TRY_VOID(fetch(stop, {}, false, take_list));
    sink(slices.addresses());
    std::vector<std::string> known = slices.addresses();
    const auto take_line = [&](std::string_view line) -> Expected<void> {
      SLUICE_TRY_VOID(slices.take_event(line));
      if (slices.addresses() == known) return {};
      known = slices.addresses();
      sink(known);
      return {};
    };
    for (;;) {  // a watch ends by itself; the next one continues
      const std::string query = "&watch=1&allowWatchBookmarks=true&timeoutSeconds=25" +
                                ("&resourceVersion=" + slices.version());
      SLUICE_TRY_VOID(fetch(stop, query, true, take_line));
      if (stop.stop_requested()) return {};
    }
  }

  Expected<void> fetch(const std::stop_token& stop,
                       const std::string& query,
                       bool by_line,
                       JsonSink::Take take) const {
    client::FetchRequest request;
    request.url = place_.api + "/apis/discovery.k8s.io/v1/namespaces/" + place_.space +
                  "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D" + place_.service +
                  query;
    request.headers.emplace_back("Accept", "application/json");
    if (const std::string token = read_token(place_.account); !token.empty()) {
      request.headers.emplace_back("Authorization", "Bearer " + token);
    }
    request.ca_file = place_.account + "/ca.crt";
    request.may_use_proxy = false;
    request.stop = stop;
    JsonSink sink(by_line, std::move(take));
    SLUICE_TRY_VOID(client::fetch(request, sink));
    return sink.finish();
  }

  const Place place_;
  std::jthread thread_;
};

}  // namespace

Expected<void> EndpointSlices::take_list(std::string_view json) {
  const Json list = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json& items = member(list, "items");
  if (!items.is_array()) return no_answer("list of EndpointSlices");
  by_slice_.clear();
  for (const Json& slice : items) {
    by_slice_[text_in(member(slice, "metadata"), "name")] = addresses_of(slice, port_);
  }
  version_ = text_in(member(list, "metadata"), "resourceVersion");
  return {};
}

Expected<void> EndpointSlices::take_event(std::string_view json) {
  const Json event = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const std::string type = text_in(event, "type");
  const Json& slice = member(event, "object");
  const Json& metadata = member(slice, "metadata");
  const std::string name = text_in(metadata, "name");
  if (type == "ADDED" || type == "MODIFIED") {
    by_slice_[name] = addresses_of(slice, port_);
  } else if (type == "DELETED") {
    by_slice_.erase(name);
  } else if (type != "BOOKMARK") {
    return no_answer("event of a watch");
  }
  if (std::string version = text_in(metadata, "resourceVersion"); !version.empty()) {
    version_ = std::move(version);
  }
  return {};
}

std::vector<std::string> EndpointSlices::addresses() const {
  std::vector<std::string> all;
  for (const auto& [name, some] : by_slice_) all.insert(all.end(), some.begin(), some.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Expected<std::unique_ptr<AddressSource>> watch_service(const std::string& item) {
  const auto invalid = [&](const std::string& what) {
    return make_error(
        ErrorCode::kInvalidArgument, "--workers: k8s:" + item + ": " + what, "workers");
  };
  Place place;
  std::string service = item;
  if (const size_t colon = item.rfind(':'); colon != std::string::npos) {
    const auto name = parse_socket_name("service" + item.substr(colon));
    if (!name || name->port == 0) return invalid("the port must be in [1, 65535]");
    place.port = name->port;
    service.resize(colon);
  }
  const size_t slash = service.find('/');
  if (slash == std::string::npos) return invalid("must be namespace/service:port");
  place.space = service.substr(0, slash);
  place.service = service.substr(slash + 1);
  if (!is_label(place.space) || !is_label(place.service)) {
    return invalid("must be namespace/service:port");
  }
  place.api = environment("SLUICE_KUBERNETES_API");
  if (place.api.empty()) {
    const std::string host = environment("KUBERNETES_SERVICE_HOST");
    const std::string port = environment("KUBERNETES_SERVICE_PORT");
    if (host.empty() || port.empty())
      return invalid("KUBERNETES_SERVICE_HOST and _PORT name no API server");
    place.api =
        "https://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
  }
  place.account = environment("SLUICE_KUBERNETES_ACCOUNT");
  if (place.account.empty()) place.account = kAccount;
  return std::make_unique<SliceSource>(std::move(place));
}

}  // namespace sluice
