// SPDX-License-Identifier: Apache-2.0
// Checkpoints of any bytes into other formats: what cannot be read ends with one line and leaves
// nothing behind, and what is written is read back as it was meant.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/core/log.h"
#include "engine/quantize.h"

using namespace sluice;
namespace fs = std::filesystem;

namespace {

constexpr const char* kSchemes[] = {"int8", "fp8",  "fp8-tensor", "fp8-block", "nvfp4",  "nvfp4-ct",
                                    "mxfp4", "int4", "bf16",      "Q4_0",      "Q4_K_M", "Q6_K",
                                    "IQ4_XS", "Q2_K"};

constexpr std::string_view kConfig =
    R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":64,"intermediate_size":64,)"
    R"("num_attention_heads":4,"vocab_size":64,"rms_norm_eps":1e-5})";

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

size_t count_files(const fs::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

// The first byte: the scheme, and whether every weight is asked for; the rest: a GGUF
// file or a recipe where it begins as one, else safetensors beside a configuration.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path folder = [] {
    init_log(LogLevel::kError, LogFormat::kText);
    return fs::temp_directory_path() / ("quantize_fuzz-" + std::to_string(getpid()));
  }();
  if (size < 2) return 0;
  fs::remove_all(folder);
  fs::create_directories(folder / "in");
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  QuantizeOptions options;
  options.to = kSchemes[(data[0] & 0x7F) % std::size(kSchemes)];
  options.output = folder / "out";
  options.threads = 1;
  options.verify = true;
  if ((data[0] & 0x80) != 0) options.include = {"weight"};
  if (rest.starts_with("GGUF")) {
    options.input = folder / "in/model.gguf";
    write(options.input, rest);
  } else if (rest.starts_with("{")) {
    options.input = folder / "in";
    options.recipe = rest;
    write(folder / "in/config.json", kConfig);
    write(folder / "in/model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  } else {
    options.input = folder / "in";
    write(folder / "in/config.json", kConfig);
    write(folder / "in/model.safetensors", rest);
  }
  const auto result = quantize_model(options);
  if (result) {
    CHECK(fs::exists(options.output));
    CHECK(!result->table.empty());
  } else {
    CHECK(result.error().code != ErrorCode::kInternal);
    CHECK(result.error().message.find('\n') == std::string::npos);
    CHECK_EQ(count_files(folder), size_t{1});
  }
  return 0;
}
