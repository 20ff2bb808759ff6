// SPDX-License-Identifier: Apache-2.0
// The load client's capacity, against its mock server in another process, beside that of the
// machine's loopback, probed in the same run. Prints a table.
//   one event a write:  64 streams, a send and a receive for each token
//   coalesced:          64 streams, 64 tokens a send
//   many streams:       in as many processes as the descriptor limit requires
// usage: load_client [--seconds 3] [--streams 20000]
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "server/load/load_run.h"
#include "server/load/summary.h"
#include "server/mock/mock_server.h"

namespace sluice::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kProbeSockets = 64;
constexpr size_t kFrameBytes = 160;  // about one event of the mock server, chunk framing included

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct SocketPair {
  int sender = -1;
  int receiver = -1;
};

std::vector<SocketPair> connect_pairs(size_t count) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, generic, size) != 0 || ::listen(listener, 128) != 0 ||
      ::getsockname(listener, generic, &size) != 0) {
    std::perror("probe");
    std::exit(1);
  }
  std::vector<SocketPair> pairs;
  const int one = 1;
  for (size_t i = 0; i < count; ++i) {
    SocketPair pair;
    pair.sender = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::setsockopt(pair.sender, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(pair.sender, generic, size) != 0) std::exit(1);
    pair.receiver = ::accept(listener, nullptr, nullptr);
    pairs.push_back(pair);
  }
  ::close(listener);
  return pairs;
}

// Sends a frame and receives it, on one thread, over all sockets in turn.
double probe_pairs_per_second(double seconds) {
  const auto pairs = connect_pairs(kProbeSockets);
  char frame[kFrameBytes] = {};
  char buffer[4096];
  int64_t count = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    for (const SocketPair& pair : pairs) {
      if (::send(pair.sender, frame, sizeof frame, MSG_NOSIGNAL) <= 0) std::exit(1);
      if (::recv(pair.receiver, buffer, sizeof buffer, 0) <= 0) std::exit(1);
      ++count;
    }
  }
  const double rate = static_cast<double>(count) / seconds_since(start);
  for (const SocketPair& pair : pairs) {
    ::close(pair.sender);
    ::close(pair.receiver);
  }
  return rate;
}

// Sends and receives frames like probe_pairs_per_second, with receives on a second thread.
double probe_threaded_pairs_per_second(double seconds) {
  const auto pairs = connect_pairs(kProbeSockets);
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    char frame[kFrameBytes] = {};
    while (!stop) {
      for (const SocketPair& pair : pairs) {
        if (::send(pair.sender, frame, sizeof frame, MSG_NOSIGNAL) <= 0) return;
      }
    }
    for (const SocketPair& pair : pairs) ::shutdown(pair.sender, SHUT_WR);
  });
  char buffer[kFrameBytes];
  int64_t count = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    for (const SocketPair& pair : pairs) {
      if (::recv(pair.receiver, buffer, sizeof buffer, MSG_WAITALL) <= 0) std::exit(1);
      ++count;
    }
  }
  const double rate = static_cast<double>(count) / seconds_since(start);
  stop = true;
  for (const SocketPair& pair : pairs) {  // lets a sender that waits for room go on
    while (::recv(pair.receiver, buffer, sizeof buffer, MSG_DONTWAIT) > 0) continue;
    ::shutdown(pair.receiver, SHUT_RDWR);
  }
  for (const SocketPair& pair : pairs) ::close(pair.receiver);
  sender.join();
  for (const SocketPair& pair : pairs) ::close(pair.sender);
  return rate;
}

// The mock server in a process of its own, for as long as the object lives.
class MockProcess {
 public:
  explicit MockProcess(const mock::MockScript& script) {
    int ends[2];
    if (::pipe(ends) != 0) std::exit(1);
    pid_ = ::fork();
    if (pid_ == 0) {
      auto server = mock::MockServer::create("127.0.0.1", 0, script);
      const uint16_t port = server ? (*server)->port() : 0;
      const bool told = ::write(ends[1], &port, sizeof port) == sizeof port;
      if (server && told) (*server)->run();
      ::_exit(1);
    }
    ::close(ends[1]);
    if (pid_ < 0 || ::read(ends[0], &port_, sizeof port_) != sizeof port_ || port_ == 0) {
      std::fprintf(stderr, "the mock server cannot be started\n");
      std::exit(1);
    }
    ::close(ends[0]);
  }

  ~MockProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

RunResult run_streams(const mock::MockScript& script, size_t streams, int32_t tokens) {
  const MockProcess mock(script);
  const Server server{*client::parse_base_url("http://127.0.0.1:" + std::to_string(mock.port())),
                      client::Verification::kCertificate};
  RequestOptions request;
  request.model = "mock";
  const auto format = RequestFormat::create(request, server.address);
  DatasetOptions data;
  data.num_prompts = streams;
  data.input_len = 8;
  data.output_len = tokens;
  const auto dataset = create_dataset(data);
  auto result =
      run_load(server, *format, **dataset, std::vector<double>(streams, 0.0), RunOptions{});
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(*result);
}

struct Throughput {
  double tokens_per_second = 0;
  double client_cpu = 0;  // share of one core while tokens came
};

// Measures from the last stream's first token to the first stream's last one.
Throughput measure(int32_t events_per_write, double seconds, double guess) {
  mock::MockScript script;
  script.ttft_s = 0.5;  // all streams are open before the first token
  script.events_per_write = events_per_write;
  const auto tokens = static_cast<int32_t>(seconds * guess / kProbeSockets);
  const RunResult result = run_streams(script, kProbeSockets, std::max(tokens, 100));
  double begin = 0;
  double end = std::numeric_limits<double>::infinity();
  for (const Record& record : result.records) {
    if (!record.is_ok()) {
      std::fprintf(stderr, "a stream failed: %s\n", record.error_message.c_str());
      std::exit(1);
    }
    begin = std::max(begin, record.first_token);
    end = std::min(end, record.last_token);
  }
  int64_t count = 0;
  for (const Record& record : result.records) {
    double at = record.first_token;
    for (const float gap : record.gaps) {
      at += static_cast<double>(gap);
      count += at > begin && at <= end ? 1 : 0;
    }
  }
  return {static_cast<double>(count) / std::max(end - begin, 1e-9),
          result.cpu_s / std::max(result.duration_s, 1e-9)};
}

// The report of one process with many streams.
struct ManyStreams {
  uint64_t under_way = 0;
  uint64_t failed = 0;
  double median_itl_ms = 0;
  double p99_itl_ms = 0;
  double client_cpu = 0;  // share of one core
};

ManyStreams run_many_streams(size_t streams) {
  mock::MockScript script;
  script.ttft_s = 8;  // all streams are open before the first token
  script.itl_s = 2;
  const RunResult result = run_streams(script, streams, /*tokens=*/5);
  const Summary summary = summarize(result.records, result.duration_s, SummaryOptions{});
  const Distribution& itl = summary.find("itl")->ms;
  return {summary.max_concurrent_requests,
          summary.failed,
          itl.median,
          itl.percentiles[0].second,
          result.cpu_s / result.duration_s};
}

// Runs a client in a process of its own, which reports through the returned pipe.
int start_many_streams(size_t streams) {
  int ends[2];
  if (::pipe(ends) != 0) std::exit(1);
  const pid_t pid = ::fork();
  if (pid < 0) std::exit(1);
  if (pid == 0) {
    const ManyStreams told = run_many_streams(streams);
    ::_exit(::write(ends[1], &told, sizeof told) == sizeof told ? 0 : 1);
  }
  ::close(ends[1]);
  return ends[0];
}

// Runs as many processes as the descriptor limit requires, all at the same time.
void show_many_streams(size_t streams) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const size_t room = static_cast<size_t>(limit.rlim_max) - 32;
  const size_t processes = (streams + room - 1) / room;
  std::vector<int> pipes;
  for (size_t i = 0; i < processes; ++i) {
    pipes.push_back(start_many_streams((streams + i) / processes));
  }
  ManyStreams all;
  for (const int pipe : pipes) {
    ManyStreams one;
    if (::read(pipe, &one, sizeof one) != sizeof one) std::exit(1);
    ::close(pipe);
    all.under_way += one.under_way;
    all.failed += one.failed;
    all.median_itl_ms = std::max(all.median_itl_ms, one.median_itl_ms);
    all.p99_itl_ms = std::max(all.p99_itl_ms, one.p99_itl_ms);
    all.client_cpu += one.client_cpu;
  }
  while (::wait(nullptr) > 0) continue;
  std::printf("%-28s %lu under way at once in %zu process%s, %lu failed\n",
              "many streams",
              all.under_way,
              processes,
              processes == 1 ? "" : "es",
              all.failed);
  std::printf("%-28s median ITL %.1f ms of 2000, p99 %.1f; client CPU %.2f of one core\n",
              "",
              all.median_itl_ms,
              all.p99_itl_ms,
              all.client_cpu);
}

int run(double seconds, size_t streams) {
  const double pairs = probe_pairs_per_second(seconds);
  const double threaded = probe_threaded_pairs_per_second(seconds);
  std::printf("%-28s %12.0f /s; with the receives on a second thread %.0f\n",
              "send+receive, probed",
              pairs,
              threaded);
  std::fflush(stdout);
  const Throughput single = measure(/*events_per_write=*/1, seconds, pairs);
  std::printf("%-28s %12.0f tokens/s, %.2f and %.2f of the probes; client CPU %.2f\n",
              "one event a write",
              single.tokens_per_second,
              single.tokens_per_second / pairs,
              single.tokens_per_second / threaded,
              single.client_cpu);
  std::fflush(stdout);
  const Throughput coalesced = measure(/*events_per_write=*/64, seconds, 2e6);
  std::printf("%-28s %12.0f tokens/s; client CPU %.2f\n",
              "coalesced, 64 a write",
              coalesced.tokens_per_second,
              coalesced.client_cpu);
  std::fflush(stdout);
  if (streams > 0) show_many_streams(streams);
  return 0;
}

}  // namespace
}  // namespace sluice::load

int main(int argc, char** argv) {
  double seconds = 3;
  size_t streams = 20'000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--streams") == 0) streams = std::strtoul(argv[i + 1], nullptr, 10);
  }
  return sluice::load::run(seconds, streams);
}
