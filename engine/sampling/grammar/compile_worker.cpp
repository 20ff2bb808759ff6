// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/compile_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/sampling/grammar/compile_protocol.h"
#include "engine/sampling/grammar/frames.h"

namespace sluice {
namespace {

constexpr auto kStartTime = std::chrono::seconds(30);
// Extra time beyond the limit that the worker itself keeps.
constexpr auto kSlack = std::chrono::seconds(2);

}  // namespace

CompileWorker::CompileWorker(std::string program, const CompileSetup& setup)
    : program_(std::move(program)), setup_(setup) {}

CompileWorker::~CompileWorker() { stop(); }

Expected<void> CompileWorker::start() {
  std::array<int, 2> sockets = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("no socket for compiling grammars: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], kCompileSocket);
  std::array<char*, 3> arguments = {
      const_cast<char*>(program_.c_str()), const_cast<char*>(kCompileWorkerArgument), nullptr};
  pid_t pid = -1;
  const int failed =
      posix_spawn(&pid, program_.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  if (failed != 0) {
    close(sockets[0]);
    return make_error(ErrorCode::kUnavailable,
                      std::string("no process for compiling grammars: ") + std::strerror(failed));
  }
  pid_ = pid;
  {
    const std::scoped_lock lock(mutex_);
    socket_ = sockets[0];
    if (is_cancelled_) shutdown(socket_, SHUT_RDWR);
  }
  const FrameDeadline deadline = std::chrono::steady_clock::now() + kStartTime;
  if (!write_frame(socket_, encode_setup(setup_), deadline)) {
    stop();
    return make_error(ErrorCode::kUnavailable, "the process for compiling grammars has died");
  }
  return {};
}

void CompileWorker::stop() {
  if (pid_ < 0) return;
  {
    const std::scoped_lock lock(mutex_);
    close(socket_);
    socket_ = -1;
  }
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void CompileWorker::cancel() {
  const std::scoped_lock lock(mutex_);
  is_cancelled_ = true;
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
}

Expected<std::string> CompileWorker::compile(const GrammarSpec& spec) {
  const bool is_first = pid_ < 0;
  if (is_first) SLUICE_TRY_VOID(start());
  const FrameDeadline deadline = std::chrono::steady_clock::now() +
                                 std::chrono::seconds(setup_.limits.wall_s) + kSlack +
                                 (is_first ? kStartTime : std::chrono::seconds(0));
  constexpr size_t kHead = 4096;
  std::optional<std::string> reply;
  if (write_frame(socket_, encode_spec(spec), deadline)) {
    reply = read_frame(socket_, static_cast<size_t>(setup_.limits.result_bytes) + kHead, deadline);
  }
  auto result = reply ? decode_reply(*reply) : make_error(ErrorCode::kDataLoss, "none came");
  // A process whose replies cannot be read says nothing of the grammar, nor of the next one.
  if (!result && result.error().code == ErrorCode::kDataLoss) {
    stop();
    return make_error(ErrorCode::kUnavailable, "the process for compiling grammars has died");
  }
  return result;
}

bool is_compile_worker(int argc, const char* const* argv) {
  return argc == 2 && std::strcmp(argv[1], kCompileWorkerArgument) == 0;
}

}  // namespace sluice
