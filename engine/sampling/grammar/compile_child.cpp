// SPDX-License-Identifier: Apache-2.0
// The worker's side of compile_worker.h: a process with the vocabulary and one thread, which forks
// for each grammar. Any failure ends the forked process alone.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "engine/sampling/grammar/compile_protocol.h"
#include "engine/sampling/grammar/compile_worker.h"
#include "engine/sampling/grammar/frames.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kForever = std::chrono::hours(24 * 365);
constexpr size_t kMaxRequest = size_t{1} << 30;

void set_limit(decltype(RLIMIT_AS) what, rlim_t value) {
  const rlimit limit{.rlim_cur = value, .rlim_max = value};
  setrlimit(what, &limit);
}

// The engine's limits may be raised while it runs, and this process keeps those that it began with.
// It may use what the engine may by now: otherwise one that began when little was left would refuse
// grammars for good.
void follow_engine_limits() {
  for (const auto what : {RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_AS}) {
    rlimit of_engine{};
    rlimit own{};
    if (prlimit(getppid(), what, nullptr, &of_engine) != 0 || getrlimit(what, &own) != 0) continue;
    own.rlim_cur = std::min(of_engine.rlim_cur, own.rlim_max);
    setrlimit(what, &own);
  }
}

// A grammar's process loses kNiceStep levels of priority for each kNiceAfterUs of processor time
// that it has used, kMostNice in all. Most grammars are compiled before the first step; a hostile
// one soon has a tenth of a busy processor, and the rest stays with the threads that compute.
constexpr int kNiceStep = 3;
constexpr int kMostNice = 9;
constexpr suseconds_t kNiceAfterUs = 100'000;

int last_nice = 19;

void fall_behind_with_time() {
  last_nice = std::min(getpriority(PRIO_PROCESS, 0) + kMostNice, 19);
  struct sigaction action {};

  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int) {
    const int saved = errno;
    setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kNiceStep, last_nice));
    errno = saved;
  };
  sigaction(SIGPROF, &action, nullptr);
  const timeval period{.tv_sec = 0, .tv_usec = kNiceAfterUs};
  const itimerval timer{.it_interval = period, .it_value = period};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

// The size of this process's address space, in bytes.
rlim_t address_space() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

tl::unexpected<Error> too_complex(const std::string& limit) {
  return make_error(ErrorCode::kInvalidArgument, "the grammar is too complex: " + limit);
}

std::string in_megabytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Returns some allowed token.
TokenId any_of(std::span<const uint32_t> row, std::mt19937& random) {
  const size_t begin = random() % row.size();
  for (size_t i = 0; i < row.size(); ++i) {
    const size_t word = (begin + i) % row.size();
    if (row[word] != 0) return static_cast<TokenId>(32 * word) + std::countr_zero(row[word]);
  }
  return kInvalidToken;
}

// Walks at random through a grammar: slow masks would delay the requests that run beside it.
Expected<void> probe(const Grammar& grammar, int32_t width) {
  constexpr int kSteps = 64;
  constexpr int kMostSlow = 3;
  constexpr double kSlowMs = 20;
  std::mt19937 random(1);
  std::vector<uint32_t> row(token_mask_words(width));
  auto matcher = grammar.match();
  int num_slow = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double begun = processor_ms();
    const Allowed allowed = matcher->fill(row);
    if (step == 0 && allowed == Allowed::kNothing) {
      return make_error(ErrorCode::kInvalidArgument, "no text is allowed by the grammar");
    }
    if (allowed == Allowed::kNothing || allowed == Allowed::kOnlyEnd) {
      matcher = grammar.match();
      continue;
    }
    if (!matcher->accept(any_of(row, random))) matcher = grammar.match();
    num_slow += processor_ms() - begun > kSlowMs ? 1 : 0;
    if (num_slow > kMostSlow) return too_complex("its masks take too long");
  }
  return {};
}

// The peak resident size of this process so far, in bytes.
int64_t resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

Expected<std::string> compile_and_save(const GrammarBackend& backend,
                                       const CompileSetup& setup,
                                       const GrammarSpec& spec) {
  const double begun = processor_ms();
  const int64_t before = resident_bytes();
  SLUICE_TRY(const auto grammar, backend.compile(spec));
  const bool is_small = processor_ms() - begun < setup.limits.small_ms &&
                        resident_bytes() - before < setup.limits.small_bytes;
  SLUICE_TRY_VOID(probe(*grammar, setup.vocabulary.width));
  if (is_small) return std::string();
  std::string bytes = backend.save(*grammar);
  if (bytes.size() > static_cast<size_t>(setup.limits.result_bytes)) {
    return too_complex(in_megabytes(setup.limits.result_bytes) + " compiled");
  }
  return bytes;
}

// Runs in the forked process; never returns.
[[noreturn]] void compile_and_exit(const GrammarBackend& backend,
                                   const CompileSetup& setup,
                                   const GrammarSpec& spec,
                                   int out) {
  const CompileLimits& limits = setup.limits;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fall_behind_with_time();
  close(kCompileSocket);
  set_limit(RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_s));
  set_limit(RLIMIT_AS, address_space() + static_cast<rlim_t>(limits.memory_bytes));
  Expected<std::string> result = too_complex(in_megabytes(limits.memory_bytes) + " of memory");
  try {
    result = compile_and_save(backend, setup, spec);
  } catch (const std::bad_alloc&) {
    // The result reports the failure.
  }
  const bool sent = write_frame(out, encode_reply(result), Clock::now() + kForever);
  _exit(sent ? 0 : 1);
}

// The error for a process that ended without a result, after so many ms of processor time;
// `is_starved`: its wall time was over first.
Expected<std::string> ending(int status,
                             bool is_starved,
                             int64_t cpu_ms,
                             const CompileLimits& limits) {
  if (is_starved) {
    return make_error(ErrorCode::kUnavailable, "the machine is too busy to compile the grammar");
  }
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  // The kernel looks at the limit once a tick.
  constexpr int64_t kTicksMs = 100;
  if ((signal == SIGKILL || signal == SIGXCPU) && cpu_ms + kTicksMs >= limits.cpu_s * 1000) {
    return too_complex(std::to_string(limits.cpu_s) + " s of processor time");
  }
  // A signal of a user, or of the kernel for want of memory: not the grammar's doing.
  if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
    return make_error(ErrorCode::kUnavailable, "the process that compiled the grammar was killed");
  }
  return too_complex("its compilation failed");
}

Expected<std::string> compile_forked(const GrammarBackend& backend,
                                     const CompileSetup& setup,
                                     const GrammarSpec& spec) {
  const CompileLimits& limits = setup.limits;
  std::array<int, 2> pipes = {-1, -1};
  if (pipe2(pipes.data(), O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kUnavailable, "no pipe for compiling a grammar");
  }
  const pid_t pid = fork();
  if (pid < 0) {
    close(pipes[0]);
    close(pipes[1]);
    return make_error(ErrorCode::kUnavailable, "no process for compiling a grammar");
  }
  if (pid == 0) {
    close(pipes[0]);
    compile_and_exit(backend, setup, spec, pipes[1]);
  }
  close(pipes[1]);
  const auto deadline = Clock::now() + std::chrono::seconds(limits.wall_s);
  const bool is_starved = !wait_readable(pipes[0], deadline);
  constexpr size_t kHead = 4096;
  std::optional<std::string> reply;
  if (!is_starved) {
    reply = read_frame(pipes[0],
                       static_cast<size_t>(limits.result_bytes) + kHead,
                       deadline);
  }
  close(pipes[0]);
  if (!reply) kill(pid, SIGKILL);
  int status = 0;
  rusage used{};
  while (wait4(pid, &status, 0, &used) < 0 && errno == EINTR) {
  }
  const auto ms = [](const timeval& time) { return time.tv_sec * 1000 + time.tv_usec / 1000; };
  const int64_t cpu_ms = ms(used.ru_utime) + ms(used.ru_stime);
  return reply ? decode_reply(*reply) : ending(status, is_starved, cpu_ms, limits);
}

}  // namespace

int run_compile_worker() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGCHLD, SIG_DFL);
  signal(SIGINT, SIG_IGN);  // a terminal's reaches the engine too, which ends this process
  signal(SIGTERM, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  close_range(kCompileSocket + 1, ~0U, 0);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_STACK, static_cast<rlim_t>(kCompileStackBytes));
  const FrameDeadline forever = Clock::now() + kForever;
  const auto first = read_frame(kCompileSocket, kMaxRequest, forever);
  if (!first) return 1;
  const Expected<CompileSetup> setup = decode_setup(*first);
  if (!setup) return 1;
  const auto backend = create_grammar_backend(setup->vocabulary, setup->grammar);
  while (const auto request = read_frame(kCompileSocket, kMaxRequest, forever)) {
    const Expected<GrammarSpec> spec = decode_spec(*request);
    if (!spec) return 1;
    follow_engine_limits();
    const Expected<std::string> result =
        backend ? compile_forked(**backend, *setup, *spec)
                : Expected<std::string>(tl::unexpected(backend.error()));
    if (!write_frame(kCompileSocket, encode_reply(result), forever)) return 0;
  }
  return 0;
}

}  // namespace sluice
