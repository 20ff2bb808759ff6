// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as the file that --config names: what is taken is printed as a file that says the
// same, and a refusal names the file. Also as a file of vLLM's flags.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "server/cli/vllm_model.h"
#include "tests/fuzz/target.h"

namespace {

namespace fs = std::filesystem;

std::string write_file(std::string_view text) {
  static const std::string path =
      (fs::temp_directory_path() / ("yaml_config_fuzz-" + std::to_string(getpid()))).string();
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

void take_words(const std::string& path) {
  const auto words = sluice::vllm_config_words(path);
  if (!words) {
    CHECK(words.error().message.starts_with(path));
    return;
  }
  for (const std::string& word : *words) CHECK_LE(word.size(), size_t{64} << 20);
}

}  // namespace

static int yaml_config_input(const uint8_t* data, size_t size) {
  const std::string path = write_file({reinterpret_cast<const char*>(data), size});
  take_words(path);
  sluice::Config config;
  const auto applied = sluice::apply_yaml(config, path);
  if (!applied) {
    CHECK(applied.error().message.starts_with(path));
    return 0;
  }
  if (size % 16 != 0) return 0;  // all knobs are printed and read: a hundred times the rest
  // Secrets are not printed.
  config.api_key.clear();
  config.hf_token.clear();
  config.worker_secret.clear();
  const std::string printed = sluice::print_config(config);
  sluice::Config again;
  CHECK(sluice::apply_yaml(again, write_file(printed)).has_value());
  CHECK(sluice::print_config(again) == printed);
  return 0;
}

const sluice::fuzz::Target yaml_config_target("yaml_config_fuzz", yaml_config_input);
