// SPDX-License-Identifier: Apache-2.0
#include "server/load/load_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "engine/core/descriptor_limit.h"
#include "server/load/client_connection.h"

namespace sluice::load {

using boost::system::error_code;

namespace {

// Limits simultaneous attempts to connect: more only overflow the server's queue of them.
constexpr size_t kMaxConnecting = 256;
constexpr auto kSweepInterval = std::chrono::milliseconds(100);
// Time from the plan's zero to the first intended start: the loop is running by then.
constexpr auto kLead = std::chrono::milliseconds(5);

double thread_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A start that is due: the first turn of a sample, or a later one.
struct Due {
  double at = 0;
  size_t sample = 0;
  int32_t turn = 0;

  bool operator>(const Due& other) const { return at > other.at; }
};

class LoadRun final : public ConnectionOwner {
 public:
  LoadRun(client::StreamFactory& factory,
          boost::asio::io_context& loop,
          const RequestFormat& format,
          const Dataset& dataset,
          const std::vector<double>& arrivals,
          const RunOptions& options)
      : factory_(factory),
        loop_(loop),
        format_(format),
        dataset_(dataset),
        arrivals_(arrivals),
        options_(options),
        start_(Clock::now() + kLead),
        start_timer_(loop),
        sweep_timer_(loop) {}

  RunResult run() {
    const double cpu_before = thread_cpu_seconds();
    result_.records.reserve(arrivals_.size());
    schedule_sweep();
    wait_for_next();
    loop_.run();
    result_.cpu_s = thread_cpu_seconds() - cpu_before;
    for (const Record& record : result_.records) {
      result_.duration_s = std::max(result_.duration_s, record.end);
    }
    auto& records = result_.records;
    std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
      return std::tie(a.intended, a.sample, a.turn) < std::tie(b.intended, b.sample, b.turn);
    });
    return std::move(result_);
  }

 private:
  [[nodiscard]] double now() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  // Returns the earliest start that the plan still holds.
  [[nodiscard]] const Due* next_due() {
    if (next_arrival_ < arrivals_.size()) {
      first_turn_ = {arrivals_[next_arrival_], next_arrival_, 0};
      if (later_turns_.empty() || !(first_turn_.at > later_turns_.top().at)) return &first_turn_;
    }
    return later_turns_.empty() ? nullptr : &later_turns_.top();
  }

  void wait_for_next() {
    const double at_now = now();
    const Due* due = nullptr;
    while ((due = next_due()) != nullptr && due->at <= at_now) {
      waiting_.push(*due);
      if (due == &first_turn_) {
        ++next_arrival_;
      } else {
        later_turns_.pop();
      }
    }
    dispatch();
    if (due == nullptr) return;
    start_timer_.expires_at(start_ + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(due->at)));
    start_timer_.async_wait([this](error_code error) {
      if (!error) wait_for_next();
    });
  }

  void dispatch() {
    while (!waiting_.empty() && num_connecting_ < kMaxConnecting &&
           (options_.max_concurrency == 0 || num_active_ < options_.max_concurrency)) {
      const Due due = waiting_.front();
      waiting_.pop();
      start(due);
    }
    end_when_done();
  }

  Connection& free_connection() {
    if (!idle_open_.empty()) {
      Connection& connection = *idle_open_.back();
      idle_open_.pop_back();
      return connection;
    }
    if (!idle_closed_.empty()) {
      Connection& connection = *idle_closed_.back();
      idle_closed_.pop_back();
      return connection;
    }
    connections_.push_back(std::make_unique<Connection>(factory_, *this, start_));
    return *connections_.back();
  }

  void start(const Due& due) {
    const Sample sample = dataset_.sample(due.sample);
    const Turn& turn = sample.turns[static_cast<size_t>(due.turn)];
    auto exchange = std::make_unique<Exchange>();
    static const std::vector<SpokenTurn> kNothing;
    const auto spoken = histories_.find(due.sample);
    exchange->request = format_.post(turn, spoken == histories_.end() ? kNothing : spoken->second);
    Record& record = exchange->record;
    record.sample = static_cast<int32_t>(due.sample);
    record.turn = due.turn;
    record.intended = due.at;
    record.requested_tokens = turn.output_len;
    record.planned_input_len = turn.input_len;
    const bool more_turns = static_cast<size_t>(due.turn) + 1 < sample.turns.size();
    exchange->keep_text = options_.keep_text || more_turns;
    ++num_active_;
    ++num_started_;
    free_connection().start(std::move(exchange));
  }

  void on_connect_begin() override { ++num_connecting_; }

  void on_connect_end() override {
    --num_connecting_;
    if (!waiting_.empty() && !sweeping_) dispatch();
  }

  void on_exchange_end(Connection& connection) override {
    const std::unique_ptr<Exchange> exchange = connection.take_exchange();
    (connection.is_open() ? idle_open_ : idle_closed_).push_back(&connection);
    --num_active_;
    Record& record = exchange->record;
    if (record.is_ok()) {
      plan_next_turn(record);
      ++num_completed_;
      num_chunks_ += record.num_text_chunks;
    } else {
      ++num_failed_;
      histories_.erase(static_cast<size_t>(record.sample));
    }
    if (!options_.keep_text) record.text = {};
    result_.records.push_back(std::move(record));
    if (!sweeping_) dispatch();
  }

  void plan_next_turn(const Record& record) {
    const auto index = static_cast<size_t>(record.sample);
    const auto next = static_cast<size_t>(record.turn) + 1;
    if (result_.is_interrupted) return;
    if (record.turn == 0 && record.text.empty() && !histories_.contains(index)) {
      // Conversations of one turn, the common case, kept no text.
      if (dataset_.sample(index).turns.size() == 1) return;
    }
    const Sample sample = dataset_.sample(index);
    if (next >= sample.turns.size()) {
      histories_.erase(index);
      return;
    }
    histories_[index].push_back({json_escaped(sample.turns[next - 1].text), record.text});
    later_turns_.push({record.end + sample.turns[next].delay_s, index, static_cast<int32_t>(next)});
    start_timer_.cancel();
    wait_for_next_soon_ = true;
  }

  void end_when_done() {
    if (wait_for_next_soon_) {
      wait_for_next_soon_ = false;
      return wait_for_next();
    }
    if (num_active_ > 0 || !waiting_.empty() || next_due() != nullptr) return;
    start_timer_.cancel();
    sweep_timer_.cancel();
    ended_ = true;
  }

  void schedule_sweep() {
    sweep_timer_.expires_after(kSweepInterval);
    sweep_timer_.async_wait([this](error_code error) {
      if (error || ended_) return;
      sweep();
      if (!ended_) schedule_sweep();
    });
  }

  void sweep() {
    const auto limit = std::chrono::duration<double>(options_.timeout_s);
    const auto at_now = Clock::now();
    sweeping_ = true;  // timeouts start nothing before the loop over connections is over
    if (options_.stop != nullptr && options_.stop->load()) interrupt();
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      if (connection.is_busy() && at_now - connection.last_progress() > limit) {
        connection.abandon(ErrorKind::kTimeout, "no byte for the time of --timeout-s");
      }
    }
    sweeping_ = false;
    report_progress();
    dispatch();
  }

  void interrupt() {
    result_.is_interrupted = true;
    waiting_ = {};
    later_turns_ = {};
    next_arrival_ = arrivals_.size();
    for (const auto& connection : connections_) {
      connection->abandon(ErrorKind::kInterrupted, "interrupted");
    }
  }

  void report_progress() const {
    if (!options_.on_progress) return;
    options_.on_progress({.elapsed_s = now(),
                          .num_started = num_started_,
                          .num_active = num_active_,
                          .num_completed = num_completed_,
                          .num_failed = num_failed_,
                          .num_planned = arrivals_.size(),
                          .num_chunks = num_chunks_});
  }

  client::StreamFactory& factory_;
  boost::asio::io_context& loop_;
  const RequestFormat& format_;
  const Dataset& dataset_;
  const std::vector<double>& arrivals_;
  const RunOptions& options_;
  const Clock::time_point start_;
  boost::asio::steady_timer start_timer_;
  boost::asio::steady_timer sweep_timer_;

  size_t next_arrival_ = 0;
  Due first_turn_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> later_turns_;
  std::queue<Due> waiting_;  // due, but held back by the limit on concurrency
  std::unordered_map<size_t, std::vector<SpokenTurn>> histories_;  // of running conversations

  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_open_;
  std::vector<Connection*> idle_closed_;
  size_t num_connecting_ = 0;
  size_t num_active_ = 0;
  size_t num_started_ = 0;
  size_t num_completed_ = 0;
  size_t num_failed_ = 0;
  int64_t num_chunks_ = 0;
  bool sweeping_ = false;
  bool ended_ = false;
  bool wait_for_next_soon_ = false;
  RunResult result_;
};

// Runs the loop to the end of its one exchange.
class OneExchange final : public ConnectionOwner {
 public:
  OneExchange(client::StreamFactory& factory, boost::asio::io_context& loop, double timeout_s)
      : connection_(factory, *this, Clock::now()), timer_(loop) {
    timer_.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s)));
    timer_.async_wait([this](error_code error) {
      if (!error) connection_.abandon(ErrorKind::kTimeout, "no answer in time");
    });
  }

  void start(const std::string& request) {
    auto started = std::make_unique<Exchange>();
    started->request = request;
    started->is_plain = true;
    connection_.start(std::move(started));
  }

  void on_exchange_end(Connection& connection) override {
    exchange = connection.take_exchange();
    timer_.cancel();
  }

  void on_connect_begin() override {}

  void on_connect_end() override {}

  std::unique_ptr<Exchange> exchange;  // set when it has ended

 private:
  Connection connection_;
  boost::asio::steady_timer timer_;
};

}  // namespace

Expected<RunResult> run_load(const Server& server,
                             const RequestFormat& format,
                             const Dataset& dataset,
                             const std::vector<double>& arrivals,
                             const RunOptions& options) {
  raise_descriptor_limit();
  boost::asio::io_context loop(BOOST_ASIO_CONCURRENCY_HINT_UNSAFE);
  SLUICE_TRY(const auto factory,
             client::create_stream_factory(loop, server.address, server.verification));
  // Connections close before the loop, which holds their handlers, is destroyed.
  LoadRun run(*factory, loop, format, dataset, arrivals, options);
  return run.run();
}

Expected<std::string> fetch(const Server& server, const std::string& request, double timeout_s) {
  boost::asio::io_context loop(1);
  SLUICE_TRY(const auto factory,
             client::create_stream_factory(loop, server.address, server.verification));
  OneExchange one(*factory, loop, timeout_s);
  one.start(request);
  loop.run();
  const Record& record = one.exchange->record;
  if (!record.is_ok()) return make_error(ErrorCode::kUnavailable, record.error_message);
  return std::move(one.exchange->body);
}

}  // namespace sluice::load
