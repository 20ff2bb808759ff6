// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <thread>

#include "server/cli/command.h"
#include "server/mock/mock_server.h"

namespace sluice {

Expected<void> run_bench_mock(const Invocation& invocation) {
  const BenchMockOptions& options = invocation.bench_mock;
  mock::MockScript script = options.script;
  script.ttft_s = options.ttft_ms / 1e3;
  script.itl_s = options.itl_ms / 1e3;
  SLUICE_TRY(script.fault, mock::parse_mock_fault(options.fault));
  // Both signals wait for sigwait() on this thread; the server's thread inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  SLUICE_TRY(const auto server,
             mock::MockServer::create(options.host, static_cast<uint16_t>(options.port), script));
  std::printf("Mock server on http://%s:%d\n", options.host.c_str(), server->port());
  std::fflush(stdout);
  std::thread thread([&server] { server->run(); });
  int signal = 0;
  sigwait(&signals, &signal);
  server->stop();
  thread.join();
  return {};
}

}  // namespace sluice
