// SPDX-License-Identifier: Apache-2.0
// A server whose model says what it is told, for tests with clients of others: reasoning and calls
// come out as written, which no model small enough for a test does.
// usage: scripted_server TEXT [KEY]; ends when its input does. A line of its input changes what
// later requests get: "say FILE", the file's text; "pace N", N microseconds between tokens.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
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
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("say ")) {
      std::ostringstream text;
      text << std::ifstream(line.substr(4)).rdbuf();
      engine.say(text.str());
    } else if (line.starts_with("pace ")) {
      engine.set_step_delay(std::chrono::microseconds(std::stoi(line.substr(5))));
    } else if (!line.empty()) {
      std::fprintf(stderr, "unknown: %s\n", line.c_str());
      return 2;
    }
    // The answer to a line: it has happened.
    std::printf("done\n");
    std::fflush(stdout);
  }
  (*server)->stop();
  thread.join();
  return 0;
}
