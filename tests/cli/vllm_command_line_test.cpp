// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/cli/command.h"
#include "server/cli/vllm_model.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

struct Outcome {
  ParsedCommandLine parsed;
  std::string stderr_text;
};

// The words of a command line whose first is the program's name.
Outcome run(std::vector<const char*> words) {
  unsetenv("VLLM_API_KEY");
  ::testing::internal::CaptureStderr();
  ParsedCommandLine parsed = parse_command_line(static_cast<int>(words.size()), words.data());
  return {std::move(parsed), ::testing::internal::GetCapturedStderr()};
}

std::string refusal(const std::vector<const char*>& words) {
  const Outcome outcome = run(words);
  EXPECT_FALSE(outcome.parsed.invocation.has_value());
  EXPECT_EQ(outcome.parsed.exit_code, 2);
  return outcome.stderr_text;
}

TEST(VllmCommandLine, ProductionStacksVectorBecomesServe) {
  const auto [parsed, text] = run({"/usr/bin/vllm",
                                   "serve",
                                   "/data/model.gguf",
                                   "--host",
                                   "0.0.0.0",
                                   "--port",
                                   "8000",
                                   "--no-enable-chunked-prefill",
                                   "--no-enable-prefix-caching",
                                   "--max-model-len",
                                   "1024",
                                   "--dtype",
                                   "auto",
                                   "--tensor-parallel-size",
                                   "1",
                                   "--max-num-seqs",
                                   "32",
                                   "--gpu_memory_utilization",
                                   "0.95"});
  ASSERT_TRUE(parsed.invocation) << text;
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(parsed.invocation->command, Command::kServe);
  EXPECT_EQ(config.model, "/data/model.gguf");
  EXPECT_EQ(config.host, "0.0.0.0");
  EXPECT_EQ(config.port, 8000);
  EXPECT_EQ(config.max_model_len, 1024);
  EXPECT_EQ(config.max_num_seqs, 32);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(text,
            "vllm: --enable-chunked-prefill means nothing here and is left out\n"
            "vllm: --gpu-memory-utilization means nothing here and is left out\n");
}

TEST(VllmCommandLine, SizesOfParallelismAreOurs) {
  const auto [parsed, text] = run({"vllm", "serve", "m.gguf", "-tp", "2", "-pp", "3"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.tensor_parallel_size, 2);
  EXPECT_EQ(parsed.invocation->config.pipeline_parallel_size, 3);
}

TEST(VllmCommandLine, GrpcTakesThePlaceOfHttp) {
  const auto [parsed, text] = run({"vllm", "serve", "m.gguf", "--port", "50051", "--grpc"});
  ASSERT_TRUE(parsed.invocation) << text;
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(config.grpc_host, "0.0.0.0");
  EXPECT_EQ(config.grpc_port, 50051);
  EXPECT_EQ(config.host, "127.0.0.1");
  EXPECT_EQ(config.port, 0);
  EXPECT_EQ(text, "vllm: --grpc: HTTP listens as well, on a free port of 127.0.0.1\n");
  const auto [on_host, host_text] =
      run({"vllm", "serve", "m.gguf", "--grpc", "--host", "::1", "--max-log-len", "100"});
  ASSERT_TRUE(on_host.invocation) << host_text;
  EXPECT_EQ(on_host.invocation->config.grpc_host, "::1");
  EXPECT_EQ(on_host.invocation->config.grpc_port, 8000);
  EXPECT_EQ(on_host.invocation->config.max_log_len, 100);
  const auto [without, other_text] = run({"vllm", "serve", "m.gguf", "--no-grpc"});
  ASSERT_TRUE(without.invocation) << other_text;
  EXPECT_EQ(without.invocation->config.grpc_port, -1);
  EXPECT_EQ(without.invocation->config.host, "0.0.0.0");
}

TEST(VllmCommandLine, KservesVectorHasSeveralNamesAndAFolder) {
  const testing::TemporaryFolder made;
  const std::string& folder = made.path();
  std::ofstream(folder + "/weights.gguf") << "GGUF";
  std::ofstream(folder + "/README.md") << "about";
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   folder.c_str(),
                                   "--served-model-name",
                                   "llama",
                                   "publishers/ns/models/llama",
                                   "--port",
                                   "8001",
                                   "--disable-access-log-for-endpoints",
                                   "/health,/metrics,/ping",
                                   "--shutdown-timeout",
                                   "45"});
  const std::string second = folder + "/other.gguf";
  std::ofstream(second) << "GGUF";
  const std::string two = refusal({"vllm", "serve", folder.c_str()});
  ASSERT_TRUE(parsed.invocation) << text;
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(config.model, folder + "/weights.gguf");
  EXPECT_EQ(config.served_model_name,
            (std::vector<std::string>{"llama", "publishers/ns/models/llama"}));
  EXPECT_EQ(config.port, 8001);
  EXPECT_EQ(config.drain_timeout_s, 45);
  EXPECT_NE(two.find("exactly one .gguf file, it holds 2"), std::string::npos) << two;
}

TEST(VllmCommandLine, WordAndProgramNameMeanTheSame) {
  const auto [parsed, text] = run({"sluice", "vllm", "serve", "m.gguf"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.model, "m.gguf");
  EXPECT_EQ(parsed.invocation->config.host, "0.0.0.0");  // as vLLM, and unlike `sluice serve`
}

TEST(VllmCommandLine, VersionIsOneNumber) {
  const auto [parsed, text] = run({"vllm", "--version"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->command, Command::kVersion);
  EXPECT_TRUE(parsed.invocation->short_version);
}

TEST(VllmCommandLine, KeyOfTheEnvironmentIsNotLost) {
  setenv("VLLM_API_KEY", "secret", 1);
  const char* words[] = {"vllm", "serve", "m.gguf"};
  const ParsedCommandLine parsed = parse_command_line(3, words);
  unsetenv("VLLM_API_KEY");
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.api_key, std::vector<std::string>{"secret"});
}

TEST(VllmCommandLine, ValueWithADashOrAnEqualsSignStaysAValue) {
  const auto [parsed, text] =
      run({"vllm", "serve", "m.gguf", "--max-model-len", "-1", "--api-key=a=b"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.max_model_len, 0);
  EXPECT_EQ(parsed.invocation->config.api_key, std::vector<std::string>{"a=b"});
}

TEST(VllmCommandLine, KeysAreNeverSplit) {
  const auto [parsed, text] =
      run({"vllm", "serve", "m.gguf", "--api-key", "k,1", "k2", "--served-model-name", "a", "b"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.api_key, (std::vector<std::string>{"k,1", "k2"}));
  EXPECT_EQ(parsed.invocation->config.served_model_name, (std::vector<std::string>{"a", "b"}));
  setenv("VLLM_API_KEY", "k,1", 1);
  const char* words[] = {"vllm", "serve", "m.gguf"};
  const ParsedCommandLine from_environment = parse_command_line(3, words);
  unsetenv("VLLM_API_KEY");
  ASSERT_TRUE(from_environment.invocation);
  EXPECT_EQ(from_environment.invocation->config.api_key, std::vector<std::string>{"k,1"});
}

TEST(VllmCommandLine, TheLastOfARepeatedFlagCounts) {
  const auto [parsed, text] =
      run({"vllm",         "serve", "--model", "a",        "--model", "b",    "--port",       "1",
           "--port",       "2",     "--dtype", "float16",  "--dtype", "auto", "--swap-space", "1",
           "--swap-space", "2",     "--grpc",  "--no-grpc"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.model, "b");
  EXPECT_EQ(parsed.invocation->config.port, 2);
  EXPECT_EQ(parsed.invocation->config.grpc_port, -1);
  EXPECT_EQ(text, "vllm: --swap-space means nothing here and is left out\n");
  EXPECT_NE(
      refusal({"vllm", "serve", "m", "--dtype", "auto", "--dtype", "float32"}).find("--dtype"),
      std::string::npos);
}

TEST(VllmCommandLine, DottedKeyOfAJsonFlagIsThatFlag) {
  const auto [parsed, text] =
      run({"vllm", "serve", "m.gguf", "--speculative-config.method", "ngram"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.speculative_config, R"({"method":"ngram"})");
}

TEST(VllmCommandLine, ShortNamesOfSpeculationAreKeysOfItsObject) {
  const auto [parsed, text] =
      run({"vllm", "serve", "m.gguf", "--spec-method", "ngram", "--spec-tokens=3"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.speculative_config,
            R"({"method":"ngram","num_speculative_tokens":3})");
  EXPECT_TRUE(run({"vllm", "serve", "m", "-sc", R"({"method":"ngram"})"}).parsed.invocation);
}

TEST(VllmCommandLine, SizesOfRecordedStepsAreOurs) {
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   "m.gguf",
                                   "--long-prefill-token-threshold",
                                   "64",
                                   "--cudagraph-capture-sizes",
                                   "1",
                                   "8",
                                   "--tool-call-parser",
                                   "hermes"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(text, "");
  EXPECT_EQ(parsed.invocation->config.long_prefill_token_threshold, 64);
  EXPECT_EQ(parsed.invocation->config.cuda_graph_sizes, (std::vector<int32_t>{1, 8}));
  EXPECT_TRUE(run({"vllm", "serve", "m", "--max-cudagraph-capture-size", "64"}).parsed.invocation);
}

TEST(VllmCommandLine, DottedKeysAreOneJsonObject) {
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   "m.gguf",
                                   "--override-generation-config.temperature",
                                   "0.5",
                                   "--override-generation-config.top_p=0.9",
                                   "--override-generation-config.more.name",
                                   "a b"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.override_generation_config,
            R"({"temperature":0.5,"top_p":0.9,"more":{"name":"a b"}})");
  const auto [whole, whole_text] = run({"vllm",
                                        "serve",
                                        "m.gguf",
                                        "--override-generation-config.top_p",
                                        "1",
                                        "--override-generation-config",
                                        "{}"});
  ASSERT_TRUE(whole.invocation) << whole_text;
  EXPECT_EQ(whole.invocation->config.override_generation_config, "{}");
}

TEST(VllmCommandLine, FlagsThatChangeNoAnswerAreTaken) {
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   "m.gguf",
                                   "--disable-frontend-multiprocessing",
                                   "--max-parallel-loading-workers",
                                   "2",
                                   "--log-config-file",
                                   "log.json",
                                   "-O3",
                                   "-cc",
                                   R"({"mode":3})",
                                   "--uvicorn-log-level",
                                   "critical"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.log_level, "error");
  for (const char* name : {"disable-frontend-multiprocessing",
                           "max-parallel-loading-workers",
                           "log-config-file",
                           "optimization-level",
                           "compilation-config"}) {
    const std::string line =
        "vllm: --" + std::string(name) + " means nothing here and is left out\n";
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  EXPECT_TRUE(run({"vllm", "serve", "m", "-O", "2", "-cc.mode", "3"}).parsed.invocation);
  const auto [many, said_of_many] = run({"vllm",
                                         "serve",
                                         "m.gguf",
                                         "-ep",
                                         "-asc",
                                         "2",
                                         "--numa-bind-nodes",
                                         "0",
                                         "1",
                                         "--performance-mode",
                                         "throughput",
                                         "--no-use-tqdm-on-load",
                                         "--port",
                                         "7"});
  ASSERT_TRUE(many.invocation) << said_of_many;
  EXPECT_EQ(many.invocation->config.port, 7);
  EXPECT_EQ(std::ranges::count(said_of_many, '\n'), 5) << said_of_many;
  const std::vector<std::vector<const char*>> neutral = {
      {"--task", "generate"},
      {"--task=auto"},
      {"--runner", "generate"},
      {"--device", "cpu"},
      {"--tokenizer-revision", "main"},
      {"--hf-overrides", "{ }"},
      {"--logprobs-mode", "raw_logprobs"},
      {"--structured-outputs-config", R"({"backend": "auto"})"},
      {"--structured-outputs-config.backend", "auto"},
      {"--no-enable-lora"},
      {"--model-impl", "vllm"},
      {"--sse-keep-alive-interval", "0"},
      {"-n", "1"},
      {"--reasoning-parser", ""},
      {"--tokenizer", "m"}};
  for (const std::vector<const char*>& flag : neutral) {
    std::vector<const char*> words = {"vllm", "serve", "m"};
    words.insert(words.end(), flag.begin(), flag.end());
    const auto [taken, said] = run(words);
    EXPECT_TRUE(taken.invocation) << flag[0] << said;
    EXPECT_EQ(said, "") << flag[0];
  }
  EXPECT_NE(refusal({"vllm", "serve", "m", "--structured-outputs-config.backend", "outlines"})
                .find(R"(got "{"backend":"outlines"}")"),
            std::string::npos);
}

TEST(VllmCommandLine, ModelGoesByItsNameAsTyped) {
  const testing::TemporaryFolder made;
  const std::string& folder = made.path();
  const std::string file = folder + "/tiny,q4.gguf";
  std::ofstream(file) << "GGUF";
  const auto of_file = run({"vllm", "serve", file.c_str()});
  const auto of_folder = run({"vllm", "serve", folder.c_str()});
  const auto named = run({"vllm", "serve", file.c_str(), "--served-model-name", "x"});
  ASSERT_TRUE(of_file.parsed.invocation && of_folder.parsed.invocation && named.parsed.invocation);
  const auto names = [](const Outcome& outcome) {
    return outcome.parsed.invocation->config.served_model_name;
  };
  EXPECT_EQ(names(of_file), (std::vector<std::string>{file, "tiny,q4"}));
  EXPECT_EQ(names(of_folder), (std::vector<std::string>{folder, "tiny,q4"}));
  EXPECT_EQ(names(named), std::vector<std::string>{"x"});
  const auto of_hub = run({"vllm", "serve", "org/name:Q4_K_M"});
  ASSERT_TRUE(of_hub.parsed.invocation);
  EXPECT_EQ(names(of_hub), std::vector<std::string>{"org/name:Q4_K_M"});
}

TEST(VllmCommandLine, BenchTakesTheFlagsOfVllm) {
  const auto [parsed, text] = run({"sluice",
                                   "vllm",
                                   "bench",
                                   "serve",
                                   "--endpoint-type",
                                   "openai-chat",
                                   "--trust-remote-code",
                                   "--tokenizer-mode",
                                   "auto",
                                   "--request-id-prefix=b-",
                                   "--disable-shuffle",
                                   "--no-oversample",
                                   "--num-prompts",
                                   "3"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->command, Command::kBenchServe);
  EXPECT_EQ(parsed.invocation->bench_serve.backend, "openai-chat");
  EXPECT_EQ(parsed.invocation->bench_serve.data.dataset.num_prompts, 3U);
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  EXPECT_NE(text.find("--request-id-prefix means nothing here"), std::string::npos) << text;
}

TEST(VllmCommandLine, ModelsByNameAndTheirSamplingAreTheSameHere) {
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   "org/name:Q4_K_M",
                                   "--revision",
                                   "v1",
                                   "--download-dir",
                                   "/models",
                                   "--hf-token",
                                   "secret",
                                   "--generation-config",
                                   "vllm",
                                   "--override-generation-config",
                                   R"({"temperature":0.5})"});
  ASSERT_TRUE(parsed.invocation) << text;
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(text, "");
  EXPECT_EQ(config.model, "org/name:Q4_K_M");
  EXPECT_EQ(config.revision, "v1");
  EXPECT_EQ(config.download_dir, "/models");
  EXPECT_EQ(config.hf_token, "secret");
  EXPECT_EQ(config.generation_config, "vllm");
  EXPECT_EQ(config.override_generation_config, R"({"temperature":0.5})");
}

TEST(VllmCommandLine, FlagThatCouldChangeAnAnswerIsRefusedByName) {
  for (const char* flag : {"--logits-processors",
                           "--lora-modules",
                           "--enable-lora",
                           "--tokenizer",
                           "--structured-outputs-config",
                           "--task",
                           "--made-up"}) {
    const std::string line = refusal({"vllm", "serve", flag, "x"});
    EXPECT_NE(line.find(std::string("vllm: flag ") + flag), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), line.size() - 1);
  }
}

// Mistral's own formats describe the model that config.json does; its encoding of prompts is not
// here, DeepSeek V3.2's is, as a template.
TEST(VllmCommandLine, FormatsOfOneModelAreTakenAndOtherPromptsAreNot) {
  const auto [parsed, text] = run({"vllm",
                                   "serve",
                                   "m",
                                   "--config_format",
                                   "mistral",
                                   "--load_format=mistral",
                                   "--tokenizer_mode",
                                   "hf",
                                   "--mm-encoder-tp-mode",
                                   "data"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.chat_template, "");
  EXPECT_EQ(text, "vllm: --mm-encoder-tp-mode means nothing here and is left out\n");
  EXPECT_EQ(refusal({"vllm", "serve", "m", "--tokenizer-mode", "slow"}),
            "vllm: flag --tokenizer-mode must be auto, hf, mistral or deepseek_v32, got \"slow\"\n");
  const auto [mistral, mistral_text] = run({"vllm", "serve", "m", "--tokenizer-mode", "mistral"});
  ASSERT_TRUE(mistral.invocation) << mistral_text;
  EXPECT_EQ(mistral.invocation->config.chat_template, "");
  EXPECT_EQ(mistral_text,
            "vllm: --tokenizer-mode mistral is left out: chats follow the model's chat template, or "
            "without one its tekken.json's version\n");
  for (const bool is_last : {false, true}) {
    std::vector<const char*> words = {"vllm", "serve", "m", "--tokenizer-mode", "deepseek_v32"};
    words.insert(words.begin() + (is_last ? 5 : 3), {"--chat-template", "other.jinja"});
    const auto [both, both_text] = run(words);
    ASSERT_TRUE(both.invocation) << both_text;
    EXPECT_EQ(both.invocation->config.chat_template, "deepseek_v32");
  }
}

TEST(VllmCommandLine, NeutralFlagWithAnotherValueIsRefusedWithBoth) {
  const std::string line = refusal({"vllm", "serve", "m.gguf", "--dtype", "float32"});
  EXPECT_EQ(line,
            "vllm: flag --dtype must be auto, bfloat16, half or float16, got \"float32\"\n");
  EXPECT_NE(refusal({"vllm", "serve", "m.gguf", "--data-parallel-size", "2"})
                .find("--data-parallel-size"),
            std::string::npos);
}

TEST(VllmCommandLine, TypesThatManifestsNameAreTakenAndSaid) {
  for (const char* type : {"bfloat16", "half", "float16"}) {
    const auto [parsed, text] = run({"vllm", "serve", "m.gguf", "--dtype", type});
    ASSERT_TRUE(parsed.invocation) << text;
    EXPECT_NE(text.find(std::string("vllm: --dtype ") + type + ": weights stay"), std::string::npos)
        << text;
  }
}

TEST(VllmCommandLine, QuantizationIsTheCheckpointsOwn) {
  const testing::TemporaryFolder awq, plain, gguf;
  std::ofstream(awq.at("config.json")) << R"({"quantization_config": {"quant_method": "awq"}})";
  std::ofstream(plain.at("config.json")) << R"({"model_type": "llama"})";
  std::ofstream(gguf.at("m.gguf")) << "GGUF";
  const std::string file = gguf.at("m.gguf");
  const auto taken = [](const std::string& model, const char* scheme) {
    return run({"vllm", "serve", model.c_str(), "-q", scheme});
  };
  EXPECT_EQ(taken(awq.path(), "awq").stderr_text, "");
  EXPECT_TRUE(taken(awq.path(), "awq").parsed.invocation);
  EXPECT_TRUE(taken(awq.path(), "awq_marlin").parsed.invocation);
  EXPECT_TRUE(taken(file, "gguf").parsed.invocation);
  EXPECT_TRUE(taken(gguf.path(), "gguf").parsed.invocation);
  for (const auto& [model, scheme] : {std::pair{awq.path(), "gptq"},
                                      std::pair{plain.path(), "fp8"},
                                      std::pair{file, "awq"}}) {
    const std::string line = refusal({"vllm", "serve", model.c_str(), "--quantization", scheme});
    EXPECT_NE(line.find("--quantization must be the model's own"), std::string::npos) << line;
  }
  const auto [by_name, said] = run({"vllm", "serve", "org/name", "--quantization", "awq"});
  EXPECT_TRUE(by_name.invocation);
  EXPECT_NE(said.find("--quantization awq is left out"), std::string::npos) << said;
}

TEST(VllmCommandLine, TokenizerMayBeTheModelByAnotherName) {
  const testing::TemporaryFolder model, same, other;
  for (const auto* folder : {&model, &same, &other}) {
    std::ofstream(folder->at("config.json")) << "{}";
    std::ofstream(folder->at("tokenizer.json")) << (folder == &other ? "{\"a\":1}" : "{}");
  }
  std::ofstream(model.at("m.gguf")) << "GGUF";
  const auto is_taken = [](const std::string& of_model, const std::string& tokenizer) {
    return run({"vllm", "serve", of_model.c_str(), "--tokenizer", tokenizer.c_str()})
        .parsed.invocation.has_value();
  };
  EXPECT_TRUE(is_taken(model.path(), model.path() + "/"));
  EXPECT_TRUE(is_taken(model.path(), same.path()));
  EXPECT_FALSE(is_taken(model.path(), other.path()));
  EXPECT_TRUE(is_taken(model.at("m.gguf"), model.path()));
  EXPECT_FALSE(is_taken(model.at("m.gguf"), other.path()));
  EXPECT_TRUE(is_taken("org/name:Q4_K_M", "org/name"));
  EXPECT_FALSE(is_taken("org/name", "org/other"));
}

TEST(VllmCommandLine, AConfigFileSaysWhatTheLineDoesNot) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("vllm.yaml");
  std::ofstream(path) << "model: m.gguf\nport: 8001\nmax_num_seqs: 4\n"
                         "served-model-name: [a, b]\nenable-prefix-caching: false\n"
                         "api-key: \"true\"\n"
                         "speculative-config: {method: ngram, num_speculative_tokens: 3}\n";
  auto [parsed, text] =
      run({"vllm", "serve", "--config", path.c_str(), "--port", "9", "--served-model-name", "c"});
  ASSERT_TRUE(parsed.invocation) << text;
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(config.model, "m.gguf");
  EXPECT_EQ(config.port, 9);  // the line wins
  EXPECT_EQ(config.served_model_name, std::vector<std::string>{"c"});
  EXPECT_EQ(config.max_num_seqs, 4);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.api_key, std::vector<std::string>{"true"});
  EXPECT_EQ(config.speculative_config, R"({"method":"ngram","num_speculative_tokens":3})");
  std::ofstream(path) << "max-num-seq: 4\n";
  EXPECT_NE(refusal({"vllm", "serve", "m", "--config", path.c_str()})
                .find("--max-num-seq is unknown; did you mean --max-num-seqs?"),
            std::string::npos);
  EXPECT_NE(refusal({"vllm", "serve", "m", "--config", "/nowhere.yaml"}).find("/nowhere.yaml"),
            std::string::npos);
}

// Aliases that put a node into itself, or four into four into four; and bytes that are no text.
TEST(VllmCommandLine, AConfigFileOfEndlessValuesIsRefused) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("vllm.yaml");
  const auto words = [&](const std::string& text) {
    std::ofstream(path) << text;
    return vllm_config_words(path);
  };
  std::string fours = "a0: &a0 {x: 1}\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    fours += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {";
    for (const char* key : {"a", "b", "c", "d"}) fours += std::string(key) + ": " + before + ", ";
    fours += "}\n";
  }
  for (const std::string& text : {std::string("a: &x {b: *x}"), std::string("&x {a: *x}"), fours}) {
    const auto refused = words(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().message.find("a value that is too large"), std::string::npos)
        << refused.error().message;
  }
  const auto taken = words("a: {b: \"\xFF\"}");
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(*taken, std::vector<std::string>{"--a={\"b\":\"\xEF\xBF\xBD\"}"});
}

TEST(VllmCommandLine, ATypoNamesTheFlagThatWasMeant) {
  EXPECT_NE(refusal({"vllm", "serve", "m", "--tensor-paralel-size", "2"})
                .find("did you mean --tensor-parallel-size?"),
            std::string::npos);
  EXPECT_EQ(refusal({"vllm", "serve", "m", "--quux-xyzzy"}).find("did you mean"),
            std::string::npos);
}

TEST(VllmCommandLine, ASocketFileTakesThePlaceOfThePort) {
  const auto [parsed, text] = run({"vllm", "serve", "m", "--uds", "/tmp/s", "--port", "7"});
  ASSERT_TRUE(parsed.invocation) << text;
  EXPECT_EQ(parsed.invocation->config.uds, "/tmp/s");
}

TEST(VllmCommandLine, MissingValueAndUnknownCommandAreRefused) {
  EXPECT_NE(refusal({"vllm", "serve", "m.gguf", "--port"}).find("--port needs a value"),
            std::string::npos);
  EXPECT_NE(refusal({"vllm", "chat"}).find("got \"chat\""), std::string::npos);
  EXPECT_NE(refusal({"vllm"}).find("needs a command"), std::string::npos);
}

}  // namespace
}  // namespace sluice
