// SPDX-License-Identifier: Apache-2.0
// The router's thread: what happens to workers and requests happens there, one thing after the
// other. Callbacks of gRPC and of discovery hold the loop and post to it; once it has ended, what
// they post is never run.
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

  // Any thread.
  void post(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    if (has_ended_) return;
    boost::asio::post(context_, [this, task = std::move(task)] {
      if (!is_ending()) task();
    });
  }

  // Any thread but its own: returns when nothing runs any more and nothing waits.
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      if (std::exchange(has_ended_, true)) return;
    }
    context_.stop();
    if (thread_.joinable()) thread_.join();
    context_.restart();
    context_.poll();  // lets go of what waited
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
