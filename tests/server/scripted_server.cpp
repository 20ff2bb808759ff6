// SPDX-License-Identifier: Apache-2.0
// A server whose model says what it is told, for tests with clients of others: reasoning and calls
// come out as written, which no model small enough for a test does.
// usage: scripted_server TEXT [KEY]; ends when its input does.
#include <cstdio>
#include <string>
#include <thread>

#include "engine/core/config.h"
#include "server/http_server.h"
#include "tests/server/tool_template.h"
#include "tests/support/fake_engine.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  sluice::FakeEngine engine;
  engine.editable_model().chat_template = sluice::kToolTemplate;
  engine.editable_model().max_model_len = 8192;
  engine.say(argv[1]);
  sluice::Config config;
  config.port = 0;
  if (argc > 2) config.api_key = {argv[2]};
  auto server = sluice::HttpServer::create(config, engine);
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    return 1;
  }
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  std::thread thread([&] { (*server)->run(); });
  while (std::getchar() != EOF) {
  }
  (*server)->stop();
  thread.join();
  return 0;
}
