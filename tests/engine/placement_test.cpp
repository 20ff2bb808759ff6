// SPDX-License-Identifier: Apache-2.0
// Placement of threads and memory changes no answer, and the plan describes it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;

struct Setting {
  bool cpu_strict = false;
  const char* numa = "off";
  const char* huge_pages = "transparent";
  int32_t threads = 0;
  bool overlap = false;
  const char* placed;  // expected text in the plan
};

TEST(PlacementOfAnEngine, ChangesNoBitAndIsInThePlan) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{8} << 20;
  std::unique_ptr<Engine> engine = testing::start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_NE(engine->model().memory_plan.find("huge pages transparent"), std::string::npos);
  const std::string fingerprint = engine->model().system_fingerprint;
  const std::vector<Collected> expected =
      testing::run_together(*engine, testing::seeded_requests(4));
  const Setting settings[] = {
      {.cpu_strict = true, .placed = ", threads pinned; huge pages transparent"},
      {.cpu_strict = true, .threads = 5, .placed = ", threads pinned"},
      {.cpu_strict = true, .overlap = true, .placed = ", threads pinned"},
      {.numa = "distribute", .placed = "distributed over "},
      {.cpu_strict = true, .numa = "distribute", .placed = "distributed over "},
      {.numa = "isolate", .placed = "on NUMA node "},
      {.huge_pages = "off", .placed = "; huge pages off"},
  };
  for (const Setting& setting : settings) {
    config.cpu_strict = setting.cpu_strict;
    config.numa = setting.numa;
    config.huge_pages = setting.huge_pages;
    config.threads = setting.threads;
    config.overlap = setting.overlap;
    engine = testing::start_engine(config);
    ASSERT_NE(engine, nullptr);
    EXPECT_NE(engine->model().memory_plan.find(setting.placed), std::string::npos)
        << engine->model().memory_plan;
    EXPECT_EQ(engine->model().system_fingerprint, fingerprint);
    testing::expect_same(
        expected, testing::run_together(*engine, testing::seeded_requests(4)), setting.placed);
  }
}

TEST(PlacementOfAnEngine, ReservedPagesThatThereAreNotAreAnErrorThatSaysWhatToRaise) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{8} << 20;
  config.huge_pages = "explicit";
  const Expected<std::unique_ptr<Engine>> engine = create_engine(config);
  if (engine) {
    const std::string& plan = (*engine)->model().memory_plan;
    EXPECT_NE(plan.find("huge pages explicit, "), std::string::npos) << plan;
    EXPECT_EQ(testing::run_together(**engine, testing::seeded_requests(4)).size(), 4U);
  } else {
    EXPECT_EQ(engine.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(engine.error().message.find("vm.nr_hugepages"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
