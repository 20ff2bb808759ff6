// SPDX-License-Identifier: Apache-2.0
#include "engine/core/config.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) { std::ofstream(path_) << text; }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.at("config.yaml");
};

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }

  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

Expected<void> set(Config& config, const char* name, const std::string& text) {
  const Knob* knob = find_knob(name);
  EXPECT_NE(knob, nullptr) << name;
  return knob->set(config, *knob, text);
}

std::string set_error(const char* name, const std::string& text) {
  Config config;
  const auto result = set(config, name, text);
  return result ? "accepted" : result.error().message;
}

TEST(Config, EveryKnobHasHelpAGroupAndALegalDefault) {
  const std::set<std::string> groups = {
      "model", "cache", "scheduler", "handoff", "compute", "server", "router", "log"};
  std::set<std::string> names;
  for (const Knob& knob : config_knobs()) {
    EXPECT_TRUE(names.insert(knob.name).second) << knob.name << " appears twice";
    EXPECT_TRUE(groups.contains(knob.group)) << knob.name << " group " << knob.group;
    EXPECT_GT(std::string(knob.help).size(), 10U) << knob.name;
    EXPECT_EQ(std::string(knob.help).find('|'), std::string::npos) << knob.name;
    for (const char* c = knob.name; *c != '\0'; ++c) {
      EXPECT_TRUE(std::islower(*c) != 0 || *c == '-') << knob.name;
    }
    Config config;
    const std::string before = knob.get(config);
    const auto again = knob.set(config, knob, before);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(knob.get(config), before) << knob.name;
  }
}

TEST(Config, NamesOfVllmAreThere) {
  for (const char* name : {"host",
                           "port",
                           "served-model-name",
                           "max-model-len",
                           "max-num-seqs",
                           "max-num-batched-tokens",
                           "block-size",
                           "enable-prefix-caching",
                           "kv-cache-dtype",
                           "api-key",
                           "seed",
                           "chat-template",
                           "max_num_seqs"}) {
    EXPECT_NE(find_knob(name), nullptr) << name;
  }
  EXPECT_EQ(find_knob("maxnumseqs"), nullptr);
}

TEST(Config, IntegersTakeDecimalAndBinarySuffixes) {
  Config config;
  const auto length = [&config](const std::string& text) {
    const auto result = set(config, "max-model-len", text);
    return result ? config.max_model_len : -1;
  };
  EXPECT_EQ(length("4096"), 4096);
  EXPECT_EQ(length("1k"), 1000);
  EXPECT_EQ(length("1K"), 1024);
  EXPECT_EQ(length("2Ki"), 2048);
  EXPECT_EQ(length("25.6k"), 25600);
  EXPECT_EQ(length("1.5K"), 1536);
  EXPECT_EQ(length("1m"), 1000000);
  EXPECT_EQ(length("1M"), 1 << 20);
  EXPECT_EQ(length("auto"), 0);
  // As Helm and YAML write large integers.
  EXPECT_EQ(length("1e3"), 1000);
  EXPECT_EQ(length("1.048576E+06"), 1048576);
  EXPECT_EQ(length("4096e0"), 4096);
  for (const char* bad : {"",
                          "k",
                          "1kk",
                          "1ki",
                          "1Kb",
                          "0x10",
                          "1e",
                          "1e+",
                          "1e-3",
                          "e3",
                          "1.0005e3",
                          "1e99",
                          "1e99999999999999999999",
                          "1.0005k",
                          "1..5k",
                          "-",
                          "1 k",
                          "99999999999999999999",
                          "9999999999G",
                          "18446744073709551617"}) {
    EXPECT_EQ(length(bad), -1) << bad;
  }
  ASSERT_TRUE(set(config, "kv-cache-memory", "2GiB"));
  EXPECT_EQ(config.kv_cache_memory, int64_t{2} << 30);
  ASSERT_TRUE(set(config, "kv-cache-memory", "-1"));
  EXPECT_EQ(config.kv_cache_memory, 0);
}

TEST(Config, OutOfRangeValuesNameKnobRuleAndValue) {
  EXPECT_EQ(set_error("port", "70000"), "port must be an integer in [0, 65535], got \"70000\"");
  EXPECT_EQ(set_error("port", "http"), "port must be an integer in [0, 65535], got \"http\"");
  EXPECT_EQ(set_error("max-num-seqs", "0"),
            "max-num-seqs must be an integer in [1, 4096], got \"0\"");
  EXPECT_EQ(set_error("threads", "-2"),
            "threads must be auto or an integer in [1, 1024], got \"-2\"");
  EXPECT_EQ(set_error("isa", "sse"), "isa must be one of auto|scalar|avx2|avx512|amx, got \"sse\"");
  EXPECT_EQ(set_error("activation-bits", "12"),
            "activation-bits must be one of 8|16|32, got \"12\"");
  EXPECT_EQ(set_error("block-size", "24"),
            "block-size must be one of 1|2|4|8|16|32|64, got \"24\"");
  EXPECT_EQ(set_error("enable-prefix-caching", "maybe"),
            "enable-prefix-caching must be true or false, got \"maybe\"");
  EXPECT_NE(set_error("allowed-methods", "a,,b"), "accepted");
  EXPECT_EQ(set_error("served-model-name", " \t"), "served-model-name has an empty line");
  EXPECT_EQ(set_error("allowed-origins", "[\"https://a\", \"https://b\"]"), "accepted");
}

TEST(Config, LinesLoseTheBlanksAroundThemAndKeepTheirCommas) {
  Config config;
  ASSERT_TRUE(set(config, "api-key", " a b \r\n\tk,1\r\n"));
  EXPECT_EQ(config.api_key, (std::vector<std::string>{"a b", "k,1"}));
  ASSERT_TRUE(set(config, "served-model-name", "org/a,b\nc"));
  EXPECT_EQ(config.served_model_name, (std::vector<std::string>{"org/a,b", "c"}));
  EXPECT_EQ(set_error("api-key", "a\n \r\nb"), "api-key has an empty line");
}

TEST(Config, BooleansAndChoicesMayHaveCapitals) {
  Config config;
  ASSERT_TRUE(set(config, "enable-prefix-caching", "False"));
  EXPECT_FALSE(config.enable_prefix_caching);
  ASSERT_TRUE(set(config, "enable-prefix-caching", "TRUE"));
  EXPECT_TRUE(config.enable_prefix_caching);
  ASSERT_TRUE(set(config, "log-level", "DEBUG"));
  EXPECT_EQ(config.log_level, "debug");
  for (const Knob& knob : config_knobs()) {
    for (const char* c = knob.choices; *c != '\0'; ++c) EXPECT_FALSE(*c >= 'A' && *c <= 'Z');
  }
}

TEST(Config, YamlFillsEveryKindOfKnob) {
  const TemporaryFile file(
      "port: 9000\nmax_num_seqs: 8\nenable-prefix-caching: no\nserved-model-name: [a, b]\n"
      "api-key: one\nkv-cache-memory: 1Gi\nisa: avx2\nmax-model-len: auto\nmodel: m.gguf\n");
  Config config;
  const auto applied = apply_yaml(config, file.path());
  ASSERT_TRUE(applied) << applied.error().message;
  EXPECT_EQ(config.port, 9000);
  EXPECT_EQ(config.max_num_seqs, 8);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.served_model_name, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.api_key, std::vector<std::string>{"one"});
  EXPECT_EQ(config.kv_cache_memory, int64_t{1} << 30);
  EXPECT_EQ(config.isa, "avx2");
  EXPECT_EQ(config.model, "m.gguf");
}

TEST(Config, YamlMistakesNameFileLineAndKey) {
  const struct {
    const char* text;
    const char* part;
  } cases[] = {
      {"host: a\nprot: 1\n", ":2: unknown key \"prot\"; did you mean \"port\"?"},
      {"port: 99999\n", ":1: port must be an integer in [0, 65535], got \"99999\""},
      {"port: 1\nport: 2\n", ":2: key \"port\" appears twice"},
      {"port: [1, 2]\n", ":1: port must be a single value"},
      {"port: {a: 1}\n", ":1: port must be a single value"},
      {"- port\n", "must be a map"},
      {"port: [1\n", ":"},
      {"served-model-name: [[a]]\n", ":"},
  };

  for (const auto& c : cases) {
    const TemporaryFile file(c.text);
    Config config;
    const auto applied = apply_yaml(config, file.path());
    ASSERT_FALSE(applied) << c.text;
    EXPECT_EQ(applied.error().message.find(file.path()), 0U) << applied.error().message;
    EXPECT_NE(applied.error().message.find(c.part), std::string::npos) << applied.error().message;
  }
  Config config;
  const auto missing = apply_yaml(config, "/nowhere/sluice.yaml");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

TEST(Config, EmptyYamlChangesNothing) {
  const TemporaryFile file("# nothing\n");
  Config config;
  ASSERT_TRUE(apply_yaml(config, file.path()));
  EXPECT_EQ(print_config(config), print_config(Config{}));
}

TEST(Config, EnvironmentOverridesAndNamesItsVariable) {
  const Environment seqs("SLUICE_MAX_NUM_SEQS", "7");
  Config config;
  ASSERT_TRUE(apply_environment(config));
  EXPECT_EQ(config.max_num_seqs, 7);
  const Environment port("SLUICE_PORT", "-5");
  const auto applied = apply_environment(config);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().message,
            "SLUICE_PORT: port must be an integer in [0, 65535], got \"-5\"");
}

TEST(Config, KubernetesServiceLinkIsNotAPort) {
  const Environment port("SLUICE_PORT", "tcp://10.0.0.1:8000");
  Config config;
  ASSERT_TRUE(apply_environment(config));
  EXPECT_EQ(config.port, 8000);
}

TEST(Config, BytesAreReadAsManifestsWriteThem) {
  const auto bytes = [](const char* text) {
    const Environment memory("SLUICE_KV_CACHE_MEMORY", text);
    Config config;
    return apply_environment(config) ? config.kv_cache_memory : -1;
  };
  for (const char* text : {"8589934592", "8.589934592e+09", "8Gi", "8GiB", "8G", "8192Mi"}) {
    EXPECT_EQ(bytes(text), int64_t{8} << 30) << text;
  }
  for (const char* text : {"1e9", "1E+09", "1g", "1000m"}) EXPECT_EQ(bytes(text), 1000000000) << text;
  for (const char* text : {"8gi", "8GiBs", "8.5e0Gi5", "1e30"}) EXPECT_EQ(bytes(text), -1) << text;
}

TEST(Config, VariablesThatNobodyReadsAreNamed) {
  EXPECT_TRUE(unknown_environment().empty());
  const Environment link("SLUICE_ROUTER_PORT_80_TCP_ADDR", "10.0.0.1");
  const Environment host("SLUICE_SERVICE_HOST", "10.0.0.1");
  const Environment service("SLUICE_ROUTER_PORT", "tcp://10.0.0.1:80");
  const Environment knob("SLUICE_MAX_NUM_SEQS", "7");
  const Environment other("SLUICED", "7");
  EXPECT_TRUE(unknown_environment().empty());
  const Environment near("SLUICE_MAX_NUM_SEQ", "7");
  const Environment port("SLUICE_PROT", "80");
  const Environment far("SLUICE_XYZZY_QUUX", "7");
  EXPECT_EQ(unknown_environment(),
            (std::vector<std::string>{
                "unknown variable SLUICE_MAX_NUM_SEQ; did you mean SLUICE_MAX_NUM_SEQS?",
                "unknown variable SLUICE_PROT; did you mean SLUICE_PORT?",
                "unknown variable SLUICE_XYZZY_QUUX"}));
}

TEST(Config, PrintedConfigReadsBackTheSame) {
  Config config;
  ASSERT_TRUE(set(config, "model", "a \"quoted\": path\\with # signs.gguf"));
  ASSERT_TRUE(set(config, "served-model-name", "x,y: z\ntrue"));
  ASSERT_TRUE(set(config, "max-model-len", "2K"));
  ASSERT_TRUE(set(config, "enable-prefix-caching", "false"));
  ASSERT_TRUE(set(config, "activation-bits", "32"));
  const TemporaryFile file(print_config(config));
  Config again;
  const auto applied = apply_yaml(again, file.path());
  ASSERT_TRUE(applied) << applied.error().message << "\n" << print_config(config);
  EXPECT_EQ(print_config(again), print_config(config));
  EXPECT_EQ(again.model, config.model);
  EXPECT_EQ(again.served_model_name, config.served_model_name);
  EXPECT_EQ(again.max_model_len, 2048);
}

TEST(Config, PrintedConfigShowsNoSecret) {
  Config config;
  ASSERT_TRUE(set(config, "api-key", "topsecret"));
  const std::string text = print_config(config);
  EXPECT_EQ(text.find("topsecret"), std::string::npos);
  EXPECT_NE(text.find("# api-key: set, not shown"), std::string::npos);
}

TEST(Config, ThePageHoldsTheTablesTheKnobsMake) {
  std::ifstream in(SLUICE_KNOBS_PAGE);
  ASSERT_TRUE(in) << SLUICE_KNOBS_PAGE;
  std::stringstream page;
  page << in.rdbuf();
  EXPECT_NE(page.str().find(config_markdown()), std::string::npos)
      << "Put the output of `sluice config --markdown` into engine/core/knobs.md.";
}

TEST(Config, KnobsThatPeopleSetAreFew) {
  const std::string tables = config_markdown();
  const size_t rest = tables.find("## Limits");
  ASSERT_NE(rest, std::string::npos);
  int num_usual = 0;
  for (size_t at = 0; (at = tables.find("\n| `--", at)) < rest; ++at) ++num_usual;
  EXPECT_LE(num_usual, 36);
  EXPECT_NE(tables.substr(0, rest).find("`--kv-cache-memory`"), std::string::npos);
  EXPECT_NE(tables.substr(rest).find("`--max-json-depth`"), std::string::npos);
}

}  // namespace
}  // namespace sluice
