// SPDX-License-Identifier: Apache-2.0
// Engines that map packed weights from a file answer like those that pack them, bit for bit and
// with the same fingerprint, and never use another model's file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/models/model_spec.h"
#include "engine/weights/weight_store.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::Collected;

// Files changed within this time cannot be told from later changes.
constexpr auto kSettled = std::chrono::milliseconds(2100);

bool is_mapped(const Engine& engine) {
  return engine.model().memory_plan.find("mapped from the packed weights cache") !=
         std::string::npos;
}

class PackedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.model = golden_folder() + "/tiny/tiny-llama.gguf";
    config_.max_model_len = 512;
    config_.kv_cache_memory = int64_t{8} << 20;
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder_, error)) {
      if (entry.path().extension() == ".packed") found.push_back(entry.path());
    }
    return found;
  }

  // Waits until there are `count` files. The writer is a thread of the engine and needs a moment.
  void start_and_wait_for_the_file(size_t count = 1) {
    const std::unique_ptr<Engine> engine = testing::start_engine(config_);
    ASSERT_NE(engine, nullptr);
    EXPECT_FALSE(is_mapped(*engine));
    for (int i = 0; files().size() < count && i < 1000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(files().size(), count);
  }

  // Returns the log of an engine that is then stopped; its writer's line is the last.
  std::string log_of_a_start() const {
    ::testing::internal::CaptureStderr();
    testing::start_engine(config_).reset();
    return ::testing::internal::GetCapturedStderr();
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.at("packed");  // made by the first writer
  Config config_;
};

TEST_F(PackedWeights, AreTheSameBitsUnderTheSameFingerprint) {
  std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  const std::string fingerprint = engine->model().system_fingerprint;
  const std::vector<Collected> expected =
      testing::run_together(*engine, testing::seeded_requests(3));
  config_.packed_weights_cache = folder_ + "/new/folder";
  start_and_wait_for_the_file();
  for (const std::string& isa : testing::usable_isas()) {
    config_.isa = isa;
    engine = testing::start_engine(config_);
    ASSERT_NE(engine, nullptr);
    EXPECT_TRUE(is_mapped(*engine));
    EXPECT_EQ(engine->model().system_fingerprint, fingerprint);
    testing::expect_same(
        expected, testing::run_together(*engine, testing::seeded_requests(3)), isa);
  }
}

// Ranks read parts of the same tiles: they share one file, whoever wrote it.
TEST_F(PackedWeights, RanksShareTheFileOfOneRank) {
  std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  const std::string fingerprint = engine->model().system_fingerprint;
  const std::vector<Collected> expected =
      testing::run_together(*engine, testing::seeded_requests(3));
  for (const int32_t writer : {1, 2}) {
    config_.packed_weights_cache = folder_ + "/of " + std::to_string(writer);
    config_.tensor_parallel_size = writer;
    start_and_wait_for_the_file(static_cast<size_t>(writer));
    for (const int32_t reader : {1, 2}) {
      config_.tensor_parallel_size = reader;
      engine = testing::start_engine(config_);
      ASSERT_NE(engine, nullptr);
      EXPECT_TRUE(is_mapped(*engine)) << writer << ", " << reader;
      EXPECT_EQ(engine->model().system_fingerprint, fingerprint);
      testing::expect_same(expected,
                           testing::run_together(*engine, testing::seeded_requests(3)),
                           std::to_string(reader) + " ranks");
    }
  }
}

// The use keeps a model's file when a folder is trimmed.
TEST_F(PackedWeights, AStartNotesTheUse) {
  config_.packed_weights_cache = folder_;
  start_and_wait_for_the_file();
  const fs::path file = files().front();
  const auto long_ago = fs::last_write_time(file) - std::chrono::hours(24);
  fs::last_write_time(file, long_ago);
  ASSERT_NE(testing::start_engine(config_), nullptr);
  EXPECT_GT(fs::last_write_time(file), long_ago + std::chrono::hours(23));
}

// A start that finds its own file trims the folder too.
TEST_F(PackedWeights, AStartTrimsTheFolder) {
  config_.packed_weights_cache = folder_;
  start_and_wait_for_the_file();
  const fs::path own = files().front();
  const fs::path other = folder_ + "/other.packed";
  fs::copy_file(own, other);
  config_.packed_weights_cache_size = static_cast<int64_t>(2 * fs::file_size(own));
  ASSERT_NE(testing::start_engine(config_), nullptr);
  EXPECT_EQ(files().size(), 2U);
  --config_.packed_weights_cache_size;
  std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(is_mapped(*engine));
  EXPECT_EQ(files(), std::vector<fs::path>{own});
  config_.packed_weights_cache_size = 1000;  // mapped files stay
  engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(is_mapped(*engine));
}

TEST_F(PackedWeights, AFolderThatMayNotHoldTheModelStaysEmpty) {
  config_.packed_weights_cache = folder_;
  config_.packed_weights_cache_size = 1000;
  const std::string log = log_of_a_start();
  EXPECT_NE(log.find("a larger --packed-weights-cache-size than 1000"), std::string::npos) << log;
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedWeights, WhatMappedWeightsDoNotObeyIsNamed) {
  config_.packed_weights_cache = folder_;
  config_.numa = "distribute";
  const auto says_so = [this] {
    const std::unique_ptr<Engine> engine = testing::start_engine(config_);
    return engine != nullptr &&
           engine->model().memory_plan.find(
               "mapped weights as the page cache has them, without --numa distribute\n") !=
               std::string::npos;
  };
  start_and_wait_for_the_file();
  EXPECT_TRUE(says_so());
  // Nothing of a damaged file is mapped.
  std::fstream(files().front(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1000, std::ios::end)
      .put('x');
  EXPECT_FALSE(says_so());
}

TEST_F(PackedWeights, ADamagedFileIsReplaced) {
  config_.packed_weights_cache = folder_;
  start_and_wait_for_the_file();
  const fs::path file = files().front();
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(-1000, std::ios::end);
    out.put('x').put('y');
  }

  struct stat damaged {};

  ASSERT_EQ(::stat(file.c_str(), &damaged), 0);
  {
    const std::unique_ptr<Engine> engine = testing::start_engine(config_);
    ASSERT_NE(engine, nullptr);
    EXPECT_FALSE(is_mapped(*engine));
    struct stat now = damaged;
    for (int i = 0; now.st_ino == damaged.st_ino && i < 1000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ASSERT_EQ(::stat(file.c_str(), &now), 0);
    }
    EXPECT_NE(now.st_ino, damaged.st_ino);
  }
  const std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(is_mapped(*engine));
}

// One weight changes in place and the modification time is restored: only ctime tells.
TEST_F(PackedWeights, AChangedModelIsPackedAgain) {
  fs::create_directories(folder_);
  const std::string copy = folder_ + "/model.gguf";
  fs::copy_file(config_.model, copy);
  config_.model = copy;
  config_.packed_weights_cache = folder_;
  std::this_thread::sleep_for(kSettled);
  start_and_wait_for_the_file();
  std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(is_mapped(*engine));
  const std::string fingerprint = engine->model().system_fingerprint;
  engine.reset();

  struct stat before {};

  ASSERT_EQ(::stat(copy.c_str(), &before), 0);
  {
    std::fstream out(copy, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(-3, std::ios::end);
    const int byte = out.peek();
    out.seekp(-3, std::ios::end);
    out.put(static_cast<char>(byte ^ 1));
  }
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, copy.c_str(), times, 0), 0);
  engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(is_mapped(*engine));
  EXPECT_NE(engine->model().system_fingerprint, fingerprint);
}

TEST_F(PackedWeights, AModelThatJustChangedIsNotWritten) {
  fs::create_directories(folder_);
  const std::string copy = folder_ + "/model.gguf";
  config_.packed_weights_cache = folder_;
  fs::copy_file(config_.model, copy);
  config_.model = copy;
  const std::string log = log_of_a_start();
  EXPECT_NE(log.find("changed less than 2 s before the start"), std::string::npos) << log;
  EXPECT_TRUE(files().empty());
}

TEST_F(PackedWeights, WithoutAPlaceForThemTheEngineServes) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "no folder";
  config_.packed_weights_cache = folder_ + "/file/below";
  const std::unique_ptr<Engine> engine = testing::start_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(testing::run_together(*engine, testing::seeded_requests(3)).size(), 3U);
}

// Every architecture, layout and format of the goldens: the bytes and the content hash.
TEST_F(PackedWeights, OfEveryGoldenModelAreWhatPackingGives) {
  const std::string data = golden_folder();
  std::vector<testing::GoldenModel> models =
      testing::read_golden_models(data + "/models/", "models.json");
  for (auto& model : testing::read_golden_models(data + "/w8a8/", "w8a8.json")) {
    models.push_back(std::move(model));
  }
  ASSERT_GT(models.size(), 50U);
  const ModelOptions options{.activation_bits = 8, .max_model_len = 64};
  for (const testing::GoldenModel& model : models) {
    SCOPED_TRACE(model.path);
    const auto checkpoint = Checkpoint::open(model.path);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const auto spec = find_model_spec(**checkpoint);
    ASSERT_TRUE(spec.has_value());
    const auto config = read_model_config(**spec, **checkpoint);
    ASSERT_TRUE(config.has_value());
    WeightStore sizes(**checkpoint);
    ASSERT_TRUE((*spec)->build(*config, options, sizes).has_value());
    WeightStore packed(**checkpoint);
    ASSERT_TRUE(packed.allocate(sizes.packed_bytes()).has_value());
    ASSERT_TRUE((*spec)->build(*config, options, packed).has_value());

    const PackedKey key = packed_key(**checkpoint, sizes.layout());
    const std::string path = packed_cache_path(folder_, **checkpoint, sizes.layout());
    const auto arena = packed.arena().first(key.layout.bytes);
    const std::atomic<bool> stop = false;
    const auto written = write_packed_cache(
        path, {.key = key, .content_hashes = packed.matrix_hashes(), .arena = arena}, stop);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    auto cache = PackedCache::open(path, key);
    ASSERT_TRUE(cache.has_value()) << cache.error().message;
    EXPECT_TRUE(std::ranges::equal(cache->arena(), arena));
    WeightStore mapped(**checkpoint);
    mapped.use(std::move(*cache));
    ASSERT_TRUE((*spec)->build(*config, options, mapped).has_value());
    EXPECT_EQ(mapped.content_hash(), packed.content_hash());
    EXPECT_EQ(mapped.packed_bytes(), packed.packed_bytes());
    EXPECT_EQ(mapped.unused(), packed.unused());
  }
  EXPECT_EQ(files().size(), models.size());
}

}  // namespace
}  // namespace sluice
