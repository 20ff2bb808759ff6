// SPDX-License-Identifier: Apache-2.0
// The client against the mock server on loopback: what it reports is the script's truth, and every
// way to fail has its name.
#include "server/load/load_run.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "server/load/arrivals.h"
#include "server/load/summary.h"
#include "server/mock/mock_server.h"

namespace sluice::load {
namespace {

class RunningMock {
 public:
  explicit RunningMock(const mock::MockScript& script) {
    auto server = mock::MockServer::create("127.0.0.1", 0, script);
    if (!server) {
      ADD_FAILURE() << server.error().message;
      return;
    }
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->run(); });
  }

  ~RunningMock() {
    server_->stop();
    thread_.join();
  }

  [[nodiscard]] uint16_t port() const { return server_->port(); }

 private:
  std::unique_ptr<mock::MockServer> server_;
  std::thread thread_;
};

Server server_at(uint16_t port, const std::string& scheme = "http") {
  return {*client::parse_base_url(scheme + "://127.0.0.1:" + std::to_string(port)),
          client::Verification::kCertificate};
}

struct Load {
  size_t count = 20;
  double rate = std::numeric_limits<double>::infinity();
  int32_t output_len = 6;
  Api api = Api::kCompletions;
  std::string dataset = "random";
  RunOptions options;
};

RunResult run(const Server& server, const Load& load) {
  RequestOptions request;
  request.api = load.api;
  request.model = "mock";
  if (load.api == Api::kChat) request.endpoint = "/v1/chat/completions";
  const auto format = RequestFormat::create(request, server.address);
  DatasetOptions data;
  data.name = load.dataset;
  data.num_prompts = load.count;
  data.input_len = 8;
  data.output_len = load.output_len;
  data.num_turns = 3;
  ArrivalPlan plan;
  plan.count = load.count;
  plan.rate = load.rate;
  plan.seed = 11;
  auto result =
      run_load(server, *format, **create_dataset(data), plan_arrivals(plan), load.options);
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return std::move(*result);
}

Summary summary_of(const RunResult& result, double rate) {
  SummaryOptions options;
  options.request_rate = rate;
  return summarize(result.records, result.duration_s, options);
}

// How late a sleeping thread wakes up, for as long as the object lives: what the machine itself
// adds to every time that is measured.
class WakeUpProbe {
 public:
  WakeUpProbe()
      : thread_([this] {
          while (!stop_) {
            const auto begin = std::chrono::steady_clock::now();
            ::poll(nullptr, 0, kSleepMs);
            const std::chrono::duration<double, std::milli> slept =
                std::chrono::steady_clock::now() - begin;
            sum_ms_ += slept.count() - kSleepMs;
            ++count_;
          }
        }) {}

  double stop() {
    stop_ = true;
    thread_.join();
    return count_ > 0 ? sum_ms_ / count_ : 0;
  }

 private:
  static constexpr int kSleepMs = 5;

  std::atomic<bool> stop_ = false;
  double sum_ms_ = 0;
  int count_ = 0;
  std::thread thread_;
};

constexpr double kOnTimeMs = 0.25;

// A sanitizer makes client and mock several times slower, and the one-slot queue adds up what each
// request loses: such a build runs the code but gives no verdict on times.
#ifdef SLUICE_SANITIZED
constexpr bool kMayJudgeTimes = false;
#else
constexpr bool kMayJudgeTimes = true;
#endif

// Times are measured, so a machine that is busy with something else gets more attempts, and in the
// end no verdict. A machine that wakes its threads in time gets one attempt.
template <typename Attempt>
void expect_on_a_quiet_machine(const Attempt& attempt) {
  if (!kMayJudgeTimes) {
    const testing::AssertionResult unjudged = attempt();
    GTEST_SKIP() << "times are not judged under a sanitizer" << (unjudged ? "" : ": ")
                 << unjudged.message();
  }
  for (int i = 0; i < 4; ++i) {
    WakeUpProbe probe;
    const testing::AssertionResult result = attempt();
    const double lateness_ms = probe.stop();
    if (result) return;
    if (lateness_ms < kOnTimeMs) {
      ADD_FAILURE() << result.message();
      return;
    }
  }
  GTEST_SKIP() << "the machine is too busy to measure times";
}

testing::AssertionResult is_near(double value, double expected, double tolerance) {
  if (std::abs(value - expected) <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure() << value << " is not " << expected << " +- " << tolerance;
}

TEST(LoadRun, ReportsTheScriptsTimes) {
  mock::MockScript script;
  script.ttft_s = 0.15;
  script.itl_s = 0.02;
  const RunningMock mock(script);
  for (const Api api : {Api::kCompletions, Api::kChat}) {
    Load load;
    load.api = api;
    load.rate = 40;
    load.output_len = 11;
    expect_on_a_quiet_machine([&]() -> testing::AssertionResult {
      const Summary s = summary_of(run(server_at(mock.port()), load), load.rate);
      EXPECT_EQ(s.completed, 20U);
      EXPECT_EQ(s.total_output_tokens, 220);
      EXPECT_EQ(s.chunk_disagreements, 0U);
      EXPECT_EQ(s.without_usage, 0U);
      EXPECT_GE(s.find("ttft")->ms.median, 149);
      if (auto near = is_near(s.find("ttft")->ms.median, 150, 10); !near) return near;
      if (auto near = is_near(s.find("tpot")->ms.median, 20, 1); !near) return near;
      return is_near(s.find("e2el")->ms.median, 350, 15);
    });
  }
}

constexpr double kTtft = 0.02;
constexpr double kItl = 0.005;
constexpr int kTokens = 4;
constexpr double kStallAt = 0.4;
constexpr double kStallFor = 1.2;

mock::MockScript stalling_script() {
  mock::MockScript script;
  script.ttft_s = kTtft;
  script.itl_s = kItl;
  script.slots = 1;
  script.stall_at_s = kStallAt;
  script.stall_for_s = kStallFor;
  return script;
}

// Mean latency of the one-slot queue from each arrival on, worked out request by request.
double true_mean_latency(const std::vector<double>& arrivals) {
  const double stall_begin = arrivals.front() + kStallAt;
  const auto after_stall = [&](double t) {
    return t >= stall_begin && t < stall_begin + kStallFor ? stall_begin + kStallFor : t;
  };
  double free_at = 0;
  double sum = 0;
  for (const double arrival : arrivals) {
    double at = after_stall(std::max(arrival, free_at) + kTtft);
    for (int token = 1; token < kTokens; ++token) at = after_stall(at + kItl);
    free_at = at;
    sum += at - arrival;
  }
  return sum / static_cast<double>(arrivals.size());
}

Load stalling_load(size_t max_concurrency) {
  Load load;
  load.count = 50;
  load.rate = 20;
  load.output_len = kTokens;
  load.options.max_concurrency = max_concurrency;
  return load;
}

double truth_of(const Load& load) {
  ArrivalPlan plan;
  plan.count = load.count;
  plan.rate = load.rate;
  plan.seed = 11;
  return true_mean_latency(plan_arrivals(plan));
}

TEST(LoadRun, LatencyThroughAStallIsTheSchedulesTruth) {
  const Load load = stalling_load(/*max_concurrency=*/0);
  const double truth_ms = 1e3 * truth_of(load);
  EXPECT_GT(truth_ms, 200);
  expect_on_a_quiet_machine([&] {
    const RunningMock mock(stalling_script());
    const Summary s = summary_of(run(server_at(mock.port()), load), load.rate);
    return is_near(s.find("e2el_including_client_queue")->ms.mean, truth_ms, 0.02 * truth_ms);
  });
}

// Mean latency of a queue that serves one request at a time, each for as long as it took.
double mean_latency_of_one_at_a_time(const std::vector<Record>& records) {
  double free_at = 0;
  double sum = 0;
  for (const Record& record : records) {
    free_at = std::max(record.intended, free_at) + (record.end - record.sent);
    sum += free_at - record.intended;
  }
  return sum / static_cast<double>(records.size());
}

// A client that sends only when an answer has come leaves out what the stall did to the others.
// With one request at a time the figure from the send is that client's; the other one is the truth.
// Every request that waits inherits what the machine added to those before it, so the truth is
// worked out from the times they took, and is never below the schedule's.
TEST(LoadRun, LatencyFromTheIntendedStartOmitsNothingWhereTheNaiveOneDoes) {
  const Load load = stalling_load(/*max_concurrency=*/1);
  const double schedule_ms = 1e3 * truth_of(load);
  expect_on_a_quiet_machine([&] {
    const RunningMock mock(stalling_script());
    const RunResult result = run(server_at(mock.port()), load);
    const Summary s = summary_of(result, load.rate);
    EXPECT_EQ(s.max_concurrent_requests, 1U);
    EXPECT_LT(s.find("e2el")->ms.mean, 0.5 * schedule_ms);
    const double reported_ms = s.find("e2el_including_client_queue")->ms.mean;
    EXPECT_GE(reported_ms, 0.98 * schedule_ms);
    const double truth_ms = 1e3 * mean_latency_of_one_at_a_time(result.records);
    return is_near(reported_ms, truth_ms, 0.02 * truth_ms);
  });
}

TEST(LoadRun, EveryFaultHasItsName) {
  const struct {
    mock::MockFault fault;
    ErrorKind kind;
  } cases[] = {{mock::MockFault::kNoAnswer, ErrorKind::kNoAnswer},
               {mock::MockFault::kDie, ErrorKind::kDied},
               {mock::MockFault::kHang, ErrorKind::kTimeout},
               {mock::MockFault::kHalfFrame, ErrorKind::kHalfFrame},
               {mock::MockFault::kTruncate, ErrorKind::kTruncated},
               {mock::MockFault::kBadJson, ErrorKind::kBadJson},
               {mock::MockFault::kErrorEvent, ErrorKind::kServerError},
               {mock::MockFault::kRateLimit, ErrorKind::kRateLimited},
               {mock::MockFault::kServerError, ErrorKind::kHttpStatus},
               {mock::MockFault::kNotHttp, ErrorKind::kBadHttp}};

  for (const auto& [fault, kind] : cases) {
    mock::MockScript script;
    script.fault = fault;
    script.fault_every = 2;
    const RunningMock mock(script);
    Load load;
    load.count = 10;
    load.options.timeout_s = 0.4;
    const RunResult result = run(server_at(mock.port()), load);
    const Summary s = summary_of(result, load.rate);
    EXPECT_EQ(s.completed, 5U) << to_string(kind);
    EXPECT_EQ(s.errors, (std::map<ErrorKind, size_t>{{kind, 5}}))
        << to_string(kind) << " seen: " << to_string(s.errors.begin()->first) << ": "
        << s.error_examples.begin()->second;
    EXPECT_FALSE(s.error_examples.at(kind).empty());
    if (kind == ErrorKind::kRateLimited) {
      EXPECT_EQ(s.max_retry_after_s, mock::MockServer::kRetryAfterSeconds);
      EXPECT_EQ(s.statuses.at(429), 5U);
    }
  }
}

TEST(LoadRun, AServerThatIsNotThereIsAConnectError) {
  uint16_t port = 0;
  {
    const RunningMock mock(mock::MockScript{});
    port = mock.port();
  }
  const RunResult result = run(server_at(port), Load{});
  EXPECT_EQ(summary_of(result, 1).errors, (std::map<ErrorKind, size_t>{{ErrorKind::kConnect, 20}}));
}

TEST(LoadRun, KeepsConnectionsAndTheLimitOnConcurrency) {
  mock::MockScript script;
  script.ttft_s = 0.005;
  const RunningMock mock(script);
  Load load;
  load.count = 200;
  load.options.max_concurrency = 8;
  const Summary s = summary_of(run(server_at(mock.port()), load), load.rate);
  EXPECT_EQ(s.completed, 200U);
  EXPECT_LE(s.max_concurrent_requests, 8U);
}

TEST(LoadRun, ConversationsSendWhatWasSaidBefore) {
  const RunningMock mock(mock::MockScript{});
  Load load;
  load.api = Api::kChat;
  load.dataset = "multi_turn";
  load.count = 5;
  const RunResult result = run(server_at(mock.port()), load);
  ASSERT_EQ(result.records.size(), 15U);
  std::map<int32_t, int64_t> prompt_tokens;  // by turn; the mock counts the prompt's commas
  for (const Record& record : result.records) {
    EXPECT_TRUE(record.is_ok());
    prompt_tokens[record.turn] = record.prompt_tokens;
  }
  EXPECT_LT(prompt_tokens[0], prompt_tokens[1]);
  EXPECT_LT(prompt_tokens[1], prompt_tokens[2]);
}

TEST(LoadRun, ABreakLeavesAReportOfWhatWasDone) {
  mock::MockScript script;
  script.ttft_s = 0.01;
  script.fault = mock::MockFault::kHang;
  script.fault_every = 2;
  const RunningMock mock(script);
  std::atomic<bool> stop = false;
  Load load;
  load.options.stop = &stop;
  load.options.on_progress = [&stop](const Progress& progress) {
    if (progress.num_completed == 10) stop = true;
  };
  const RunResult result = run(server_at(mock.port()), load);
  EXPECT_TRUE(result.is_interrupted);
  const Summary s = summary_of(result, load.rate);
  EXPECT_EQ(s.completed, 10U);
  EXPECT_EQ(s.errors, (std::map<ErrorKind, size_t>{{ErrorKind::kInterrupted, 10}}));
}

// Answers one request on each connection (that is, what came when `until` has), then closes it
// without having said so.
class ClosingServer {
 public:
  ClosingServer(int num_requests, std::string until, std::string answer)
      : until_(std::move(until)), answer_(std::move(answer)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, num_requests] {
      for (int i = 0; i < num_requests; ++i) serve_one();
    });
  }

  ~ClosingServer() {
    thread_.join();
    ::close(fd_);
  }

  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  void serve_one() const {
    const int peer = ::accept(fd_, nullptr, nullptr);
    std::string input;
    char buffer[4096];
    ssize_t count = 0;
    while ((input.empty() || input.find(until_) == std::string::npos) &&
           (count = ::recv(peer, buffer, sizeof buffer, 0)) > 0) {
      input.append(buffer, static_cast<size_t>(count));
    }
    ::send(peer, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    ::poll(nullptr, 0, 20);  // the client takes the answer and keeps the connection
    ::close(peer);
  }

  const std::string until_;
  const std::string answer_;
  int fd_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST(LoadRun, AKeptConnectionThatTheServerClosedIsNoError) {
  const std::string body =
      R"({"choices":[{"text":"hi","finish_reason":"stop"}],"usage":{"completion_tokens":1}})";
  const ClosingServer server(4,
                             "\"stream\"",
                             "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                             "Content-Length: " +
                                 std::to_string(body.size()) + "\r\n\r\n" + body);
  Load load;
  load.count = 4;
  load.rate = 20;
  load.options.max_concurrency = 1;
  const RunResult result = run(server_at(server.port()), load);
  ASSERT_EQ(result.records.size(), 4U);
  for (const Record& record : result.records) {
    EXPECT_TRUE(record.is_ok()) << record.error_message;
    EXPECT_EQ(record.completion_tokens, 1);
  }
}

RunResult answered_with(const std::string& type, const std::string& body) {
  const ClosingServer server(1,
                             "\"stream\"",
                             "HTTP/1.1 200 OK\r\nContent-Type: " + type + "\r\nContent-Length: " +
                                 std::to_string(body.size()) + "\r\n\r\n" + body);
  Load load;
  load.count = 1;
  return run(server_at(server.port()), load);
}

const std::string kMark = "\xEF\xBB\xBF";
const std::string kWord = R"({"choices":[{"text":"hi","finish_reason":null}]})";
const std::string kEnd = R"({"choices":[{"text":"","finish_reason":"stop"}]})";

TEST(LoadRun, EventsOfNothingAndAByteOrderMarkAreNoFault) {
  const std::string answers[] = {kMark + "data: " + kWord + "\n\ndata: null\n\ndata:\n\ndata: " +
                                     kEnd + "\n\ndata: [DONE]\n\n",
                                 "data: null\n\ndata: " + kWord + "\n\ndata: " + kEnd + "\n\n",
                                 "data: " + kWord + "\r\rdata: [DONE]\r\r",
                                 "data: " + kWord + "\n\ndata: [DONE]\n",
                                 "data: " + kWord + "\n\ndata: [DONE]"};
  for (const std::string& answer : answers) {
    const RunResult result = answered_with("text/event-stream", answer);
    ASSERT_EQ(result.records.size(), 1U);
    EXPECT_TRUE(result.records[0].is_ok()) << result.records[0].error_message;
    EXPECT_EQ(result.records[0].num_text_chunks, 1);
  }
  const RunResult cut = answered_with("text/event-stream", "data: " + kWord + "\n\ndata: [DON");
  EXPECT_EQ(cut.records.at(0).error, ErrorKind::kHalfFrame);
  const RunResult whole = answered_with("application/json", kMark + kWord);
  EXPECT_TRUE(whole.records.at(0).is_ok()) << whole.records.at(0).error_message;
}

TEST(LoadRun, AnAnswerWithoutATokenIsNotComplete) {
  const auto stream = [](const std::string& event) {
    return "data: " + event + "\n\ndata: [DONE]\n\n";
  };
  const std::string zero = R"({"choices":[],"usage":{"completion_tokens":0}})";
  const std::string three = R"({"choices":[],"usage":{"completion_tokens":3}})";
  const std::pair<std::string, std::string> empty[] = {
      {"text/event-stream", "data: [DONE]\n\n"},
      {"text/event-stream", stream("null")},
      {"text/event-stream", stream(kEnd)},
      {"text/event-stream", stream(kEnd + "\n\ndata: " + zero)},
      {"text/event-stream", stream(three)},
      {"application/json", kEnd},
      {"application/json", zero},
      {"application/json", "{}"}};
  for (const auto& [type, body] : empty) {
    const RunResult result = answered_with(type, body);
    ASSERT_EQ(result.records.size(), 1U);
    EXPECT_EQ(result.records[0].error, ErrorKind::kNoToken) << body;
    EXPECT_EQ(to_string(result.records[0].error), "no_token");
    EXPECT_EQ(summary_of(result, 1).completed, 0U) << body;
  }
  // Tokens without text, such as an end token alone, are tokens.
  const RunResult silent = answered_with("text/event-stream", stream(kEnd + "\n\ndata: " + three));
  EXPECT_TRUE(silent.records.at(0).is_ok()) << silent.records.at(0).error_message;
}

TEST(LoadRun, AServerThatDoesNotSpeakTlsIsATlsError) {
  const ClosingServer server(3, "", "HTTP/1.1 400 Bad Request\r\n\r\n");
  Load load;
  load.count = 3;
  const RunResult result = run(server_at(server.port(), "https"), load);
  EXPECT_EQ(summary_of(result, load.rate).errors,
            (std::map<ErrorKind, size_t>{{ErrorKind::kTls, 3}}));
}

}  // namespace
}  // namespace sluice::load
