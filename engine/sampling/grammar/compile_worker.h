// SPDX-License-Identifier: Apache-2.0
// Compiles grammars in another process, which may be killed: a compile has no end that one could
// count on, cannot be cancelled, and may overflow its stack. The process is this program again,
// with kCompileWorkerArgument alone; it holds the vocabulary, and forks for each grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "engine/sampling/grammar/compile_protocol.h"

namespace sluice {

inline constexpr const char* kCompileWorkerArgument = "compile-grammars";

class CompileWorker {
 public:
  // `program`: the file to run; it calls run_compile_worker() when it is given the argument.
  // `setup` outlives the worker, whose process starts with the first grammar.
  CompileWorker(std::string program, const CompileSetup& setup);
  ~CompileWorker();  // ends the process
  CompileWorker(const CompileWorker&) = delete;
  CompileWorker& operator=(const CompileWorker&) = delete;

  // Called by one thread, which lives as long as the worker: the process ends with it. Returns the
  // bytes of GrammarBackend::save() within the limits, or "" for a grammar that is small by them.
  // kInvalidArgument, kUnsupported: the grammar is refused, or took too much; kUnavailable: the
  // process cannot be started, has died, or sent what is no reply, which ends it.
  [[nodiscard]] Expected<std::string> compile(const GrammarSpec& spec);

  // Ends the compile in progress, and all later ones, at once with kUnavailable. Any thread.
  void cancel();

 private:
  Expected<void> start();
  void stop();

  const std::string program_;
  const CompileSetup& setup_;
  std::mutex mutex_;           // of the socket's opening, closing and cancelling
  int socket_ = -1;            // written under it
  bool is_cancelled_ = false;  // guarded by it
  int pid_ = -1;
};

// Whether the program was started as a compile worker.
[[nodiscard]] bool is_compile_worker(int argc, const char* const* argv);
// The worker's side: serves while the other end is there and returns the exit code. The process has
// one thread.
int run_compile_worker();

}  // namespace sluice
