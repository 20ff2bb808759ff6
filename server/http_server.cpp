// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/engine.h"
#include "server/api/routes.h"
#include "server/front/front_end.h"
#include "server/front/io_worker.h"
#include "engine/core/memory_reserve.h"
#include "server/front/start_check.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/worker_server.h"
#include "server/http/connection.h"
#include "server/http/listener.h"
#include "server/keys/file_watch.h"

namespace sluice {

using boost::system::error_code;

struct HttpServer::Impl {
  Impl(const Config& server_config,
       Engine& served,
       FileWatch read_files,
       std::unique_ptr<FrontEnd> front,
       std::unique_ptr<Listener> bound)
      : config(server_config),
        limits(server_config, front->cors),
        engine(served),
        files(std::move(read_files)),
        front_end(std::move(front)),
        listener(std::move(bound)) {
    auto large = std::make_unique<IoWorker>(*front_end, limits, nullptr);
    for (int32_t i = 0; i < config.io_threads; ++i) {
      workers.push_back(std::make_unique<IoWorker>(*front_end, limits, large.get()));
    }
    workers.push_back(std::move(large));
    waiter = std::make_unique<boost::asio::posix::stream_descriptor>(workers.front()->context(),
                                                                     listener->descriptor());
    front_end->on_quiescent([this] { wake(); });
  }

  ~Impl() { waiter->release(); }  // the listener closes the descriptor

  Expected<void> bind_grpc(bool joins);
  Expected<void> bind_worker(bool joins);
  void accept();
  void accept_later();
  void adopt(int descriptor);
  void stop_accepting();
  [[nodiscard]] int64_t num_offers() const;
  void wait_for_end();
  void end_requests();

  // Makes run() look at the state again.
  void wake() {
    const std::scoped_lock lock(mutex);
    ++num_wakes;
    changed.notify_all();
  }

  const Config config;
  const ConnectionLimits limits;
  Engine& engine;
  FileWatch files;  // used by reload_changed()'s thread
  std::unique_ptr<FrontEnd> front_end;
  std::vector<std::unique_ptr<IoWorker>> workers;  // the last one: of large bodies
  std::unique_ptr<GrpcServer> grpc;    // null: not configured
  std::unique_ptr<WorkerServer> worker_server;  // null: not configured
  std::unique_ptr<Listener> listener;  // like waiter, next_worker: worker 0's thread once it runs
  std::unique_ptr<boost::asio::posix::stream_descriptor> waiter;
  size_t next_worker = 0;

  std::mutex mutex;  // guards the state that signals from any thread change for run()
  std::condition_variable changed;
  uint64_t num_wakes = 0;
  bool is_draining = false;
  bool is_stopping = false;
};

// Accepts pending connections whenever the listener is readable.
void HttpServer::Impl::accept() {
  waiter->async_wait(boost::asio::posix::descriptor_base::wait_read, [this](error_code error) {
    if (error || listener->descriptor() < 0) return;
    constexpr int kMostAtOnce = 64;  // bounds how long other work of this thread waits
    for (int i = 0; i < kMostAtOnce; ++i) {
      const int descriptor = listener->accept();
      if (descriptor >= 0) {
        adopt(descriptor);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != ECONNABORTED && errno != EINTR) {
        return accept_later();
      }
    }
    accept();
  });
}

Expected<void> HttpServer::Impl::bind_grpc(bool joins) {
  if (config.grpc_port < 0) return {};
  std::vector<IoWorker*> all;
  for (const auto& worker : workers) all.push_back(worker.get());
  SLUICE_TRY(grpc, GrpcServer::create(*front_end, std::move(all), joins));
  workers.front()->watch_deadlines(grpc.get(), [this] { grpc->refresh_health(); });
  return {};
}

Expected<void> HttpServer::Impl::bind_worker(bool joins) {
  if (config.worker_listen.empty()) return {};
  SLUICE_TRY(worker_server, WorkerServer::create(*front_end, joins));
  return {};
}

// Retries after an error such as too few descriptors; the backlog holds the connections meanwhile.
void HttpServer::Impl::accept_later() {
  log_event(LogLevel::kWarning, "accept_failed", "error", std::strerror(errno));
  auto timer = std::make_shared<boost::asio::steady_timer>(workers.front()->context());
  timer->expires_after(std::chrono::milliseconds(50));
  timer->async_wait([this, timer](error_code cancelled) {
    if (!cancelled && listener->descriptor() >= 0) accept();
  });
}

// Gives a connection to the next worker; closes it where memory lacks for it.
void HttpServer::Impl::adopt(int descriptor) {
  IoWorker& worker = *workers[next_worker];
  std::shared_ptr<StreamSocket> socket;
  error_code error;
  try {
    socket = std::make_shared<StreamSocket>(worker.context());
    socket->assign({listener->family(), 0}, descriptor, error);
  } catch (const std::bad_alloc&) {
    error = boost::asio::error::no_memory;
  }
  if (error) {
    ::close(descriptor);
    return;
  }
  const bool is_counted = front_end->connection_opened();
  const auto kind = is_counted ? Connection::Kind::kCounted : Connection::Kind::kReserved;
  try {
    worker.post([&worker, socket, kind] { worker.adopt(std::move(*socket), kind); });
  } catch (const std::bad_alloc&) {
    if (is_counted) front_end->connection_closed();
  }
  next_worker = (next_worker + 1) % (workers.size() - 1);
}

void HttpServer::Impl::stop_accepting() {
  if (listener->descriptor() < 0) return;
  waiter->release();  // cancels the wait
  listener->close();
}

// Returns the number of prompts whose KV is kept for other workers.
int64_t HttpServer::Impl::num_offers() const {
  const EngineStats stats = engine.stats();
  return stats.handoff ? stats.handoff->num_offered : 0;
}

// Returns when the server should end: drained, out of time, or stopped. Cut streams get an error.
void HttpServer::Impl::wait_for_end() {
  std::unique_lock lock(mutex);
  const auto all_ended = [this] { return front_end->num_requests() == 0 && num_offers() == 0; };
  changed.wait(lock, [this] { return is_draining || is_stopping; });
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(config.drain_timeout_s);
  // No event tells when a worker has taken the KV that was kept for it.
  constexpr std::chrono::milliseconds kLook{50};
  while (!is_stopping && !all_ended() && std::chrono::steady_clock::now() < deadline) {
    const auto next_look = std::min(deadline, std::chrono::steady_clock::now() + kLook);
    changed.wait_until(lock, next_look, [&] { return is_stopping || all_ended(); });
  }
  if (all_ended()) return;
  if (!is_stopping) {
    log_event(LogLevel::kWarning,
              "drain_timeout",
              "open_requests",
              front_end->num_requests(),
              "kept_prompts",
              num_offers());
  }
  const Error reason{ErrorCode::kUnavailable, "The server is shutting down.", {}, {}};
  for (auto& worker : workers) {
    worker->post([&target = *worker, reason] { target.cut_generations(reason); });
  }
  if (worker_server != nullptr) worker_server->cut_calls();
  // A client that does not read its last bytes within this time loses them.
  constexpr std::chrono::milliseconds kLastBytes{2000};
  constexpr std::chrono::milliseconds kLastBytesAtOnce{200};
  if (!is_stopping) changed.wait_for(lock, kLastBytes, [&] { return is_stopping || all_ended(); });
  if (is_stopping) changed.wait_for(lock, kLastBytesAtOnce, all_ended);
}

// Closes all connections and waits until the engine has reported the end of every request.
void HttpServer::Impl::end_requests() {
  for (auto& worker : workers) {
    worker->post([&target = *worker] { target.close_connections(); });
  }
  constexpr std::chrono::seconds kPatience{5};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto num_watched = [this] {
    int64_t sum = front_end->num_requests();
    for (const auto& worker : workers) sum += worker->num_watched();
    if (worker_server != nullptr) sum += worker_server->num_watched();
    return sum;
  };
  while (num_watched() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The engine calls no sink after this.
  if (num_watched() > 0) engine.stop();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

Expected<void> HttpServer::check(const Config& config, bool binds) {
  SLUICE_TRY_VOID(check_front_end(config));
  if (!binds) return {};
  SLUICE_TRY_VOID(Listener::create(config));
  if (config.grpc_port <= 0) return {};
  Config grpc = config;
  grpc.uds.clear();
  grpc.port = config.grpc_port;
  if (!config.grpc_host.empty()) grpc.host = config.grpc_host;
  const auto bound = Listener::create(grpc);
  if (bound) return {};
  return make_error(bound.error().code, "gRPC: " + bound.error().message, "grpc-port");
}

Expected<std::unique_ptr<HttpServer>> HttpServer::create(const Config& config,
                                                         Engine& engine,
                                                         int inherited) {
  // Watched before the files are read: a write in between counts as a change.
  FileWatch files(
      {config.api_key_file, config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs});
  SLUICE_TRY(auto front_end, FrontEnd::create(config, engine, routes()));
  SLUICE_TRY(auto listener,
             inherited >= 0 ? Listener::adopt(config, inherited) : Listener::create(config));
  auto impl = std::make_unique<Impl>(
      config, engine, std::move(files), std::move(front_end), std::move(listener));
  SLUICE_TRY_VOID(impl->bind_grpc(/*joins=*/inherited >= 0));
  SLUICE_TRY_VOID(impl->bind_worker(/*joins=*/inherited >= 0));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

Expected<std::unique_ptr<HttpServer>> HttpServer::create_for_probes(const Config& config,
                                                                    Engine& engine) {
  FileWatch files({config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs});
  SLUICE_TRY(auto front_end, FrontEnd::create(config, engine, probe_routes()));
  SLUICE_TRY(auto listener, Listener::create(config));
  auto impl = std::make_unique<Impl>(
      config, engine, std::move(files), std::move(front_end), std::move(listener));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->listener->port(); }

int HttpServer::listening_descriptor() const { return impl_->listener->descriptor(); }

void HttpServer::hand_over() {
  impl_->front_end->start_leaving();
  if (impl_->grpc != nullptr) impl_->grpc->leave();
  impl_->workers.front()->post([this] {
    impl_->listener->hand_over();
    impl_->stop_accepting();
  });
}

void HttpServer::reload() { impl_->front_end->reload(); }

void HttpServer::reload_changed() {
  if (impl_->files.has_changed()) reload();
}

uint16_t HttpServer::grpc_port() const { return impl_->grpc == nullptr ? 0 : impl_->grpc->port(); }

uint16_t HttpServer::worker_port() const {
  return impl_->worker_server == nullptr ? 0 : impl_->worker_server->port();
}

Expected<void> HttpServer::run() {
  keep_memory_reserves();
  Expected<void> started;
  std::vector<std::thread> threads;
  threads.reserve(impl_->workers.size());
  impl_->workers.front()->post([this] { impl_->accept(); });
  try {
    for (auto& worker : impl_->workers) {
      threads.emplace_back([&target = *worker] { target.run(); });
    }
    impl_->wait_for_end();
  } catch (const std::system_error& error) {
    started = make_error(ErrorCode::kUnavailable,
                         std::string("no threads for the server: ") + error.what());
  }
  if (impl_->grpc != nullptr) impl_->grpc->shutdown();
  if (impl_->worker_server != nullptr) impl_->worker_server->shutdown();
  impl_->end_requests();
  for (auto& worker : impl_->workers) worker->context().stop();
  for (std::thread& thread : threads) thread.join();
  return started;
}

void HttpServer::log_totals() const {
  const EngineStats stats = impl_->engine.stats();
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - impl_->front_end->start;
  LogLine line(LogLevel::kInfo, "served");
  line.add("seconds", seconds.count());
  line.add("prompt_tokens", stats.prompt_tokens).add("generation_tokens", stats.generation_tokens);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    line.add("finished_" + std::string(to_string(reason)),
             impl_->front_end->finish_counters.value(reason));
  }
  line.emit();
}

void HttpServer::drain() {
  impl_->front_end->start_draining();
  impl_->engine.drain();
  for (auto& worker : impl_->workers) {
    worker->post([&target = *worker] { target.check_connections(); });
  }
  impl_->workers.front()->post([this] {
    if (impl_->grpc != nullptr) impl_->grpc->refresh_health();
    impl_->stop_accepting();
  });
  const std::scoped_lock lock(impl_->mutex);
  impl_->is_draining = true;
  impl_->changed.notify_all();
}

void HttpServer::stop() {
  impl_->front_end->start_draining();
  const std::scoped_lock lock(impl_->mutex);
  impl_->is_stopping = true;
  impl_->changed.notify_all();
}

}  // namespace sluice
