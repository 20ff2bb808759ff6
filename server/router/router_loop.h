// SPDX-License-Identifier: Apache-2.0
// The router's thread: all changes of workers and requests happen there, one after the other.
// Callbacks of gRPC and of discovery hold the loop and post to it; tasks posted after its end are
// never run.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace sluice {

class RouterLoop {
 public:
  RouterLoop() : work_(boost::asio::make_work_guard(context_)) {}

  ~RouterLoop() { end(); }

  RouterLoop(const RouterLoop&) = delete;
  RouterLoop& operator=(const RouterLoop&) = delete;

  boost::asio::io_context& context() { return context_; }

  void begin() {
    thread_ = std::thread([this] { context_.run(); });
  }

  // Posts a task. Any thread.
  void post(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    if (has_ended_) return;
    boost::asio::post(context_, [this, task = std::move(task)] {
      if (!is_ending()) task();
    });
  }

  // Returns when no task runs or waits any more. Any thread but its own.
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      if (std::exchange(has_ended_, true)) return;
    }
    context_.stop();
    if (thread_.joinable()) thread_.join();
    context_.restart();
    context_.poll();  // releases tasks that waited
  }

 private:
  bool is_ending() {
    const std::scoped_lock lock(mutex_);
    return has_ended_;
  }

  std::mutex mutex_;
  bool has_ended_ = false;  // guarded by mutex_
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace sluice
