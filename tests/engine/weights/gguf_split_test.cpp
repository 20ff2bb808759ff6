// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf_split.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

// A valid file as three parts: metadata only, then its tensors.
std::vector<GgufImage> three_parts() {
  const GgufImage whole = small_gguf();
  std::vector<GgufImage> parts(3);
  parts[0].metadata = whole.metadata;
  parts[1].tensors = {whole.tensors[0], whole.tensors[1]};
  parts[1].data_bytes = 136;
  parts[2].tensors = {whole.tensors[2], whole.tensors[3]};
  parts[2].tensors[0].offset = 0;
  parts[2].tensors[1].offset = 32;
  parts[2].data_bytes = 40;
  for (uint16_t i = 0; i < 3; ++i) {
    parts[i].set("split.no", GgufType::kUint16, raw(i));
    parts[i].set("split.count", GgufType::kUint16, raw<uint16_t>(3));
    parts[i].set("split.tensors.count", GgufType::kInt32, raw<int32_t>(4));
  }
  return parts;
}

class GgufSplitTest : public ::testing::Test {
 protected:
  void write(const std::vector<GgufImage>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::ofstream(path_of(i), std::ios::binary) << parts[i].bytes();
    }
  }

  [[nodiscard]] std::string path_of(size_t i) const {
    return folder_ + "/model-0000" + std::to_string(i + 1) + "-of-00003.gguf";
  }

  [[nodiscard]] std::string error_of(size_t named) const {
    const auto opened = open_gguf_parts(path_of(named));
    return opened ? "" : opened.error().message;
  }

  const testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(GgufSplitTest, AnyPartOpensTheWholeModel) {
  write(three_parts());
  const std::string whole_path = folder_ + "/whole.gguf";
  std::ofstream(whole_path, std::ios::binary) << small_gguf().bytes();
  const auto whole = Checkpoint::open(whole_path);
  ASSERT_TRUE(whole.has_value());
  for (size_t named = 0; named < 3; ++named) {
    const auto split = Checkpoint::open(path_of(named));
    ASSERT_TRUE(split.has_value()) << split.error().message;
    EXPECT_EQ((*split)->path(), path_of(named));
    EXPECT_EQ((*split)->architecture(), (*whole)->architecture());
    ASSERT_EQ((*split)->tensors().size(), (*whole)->tensors().size());
    for (const CheckpointTensor& tensor : (*whole)->tensors()) {
      const CheckpointTensor* found = (*split)->find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->data.size(), tensor.data.size());
      EXPECT_EQ(found->format, tensor.format);
    }
    EXPECT_EQ((*split)->files().size(), 3U);
    EXPECT_TRUE((*split)->metadata().has("block_count"));
    EXPECT_NE((*split)->describe(false).find("model-00003-of-00003.gguf"), std::string::npos);
  }
}

TEST_F(GgufSplitTest, TheHashCoversEveryPart) {
  write(three_parts());
  const auto split = Checkpoint::open(path_of(1));
  ASSERT_TRUE(split.has_value());
  for (size_t i = 0; i < 3; ++i) {
    const CheckpointFile file = (*split)->files()[i];
    EXPECT_EQ(file.bytes.size(), std::filesystem::file_size(path_of(i)));
    EXPECT_EQ(file.header.size() % 32, 0U);
    EXPECT_EQ(file.bytes.size() - file.header.size(), i == 0 ? 0U : i == 1 ? 136U : 40U);
  }
}

TEST_F(GgufSplitTest, AMissingPartIsNamed) {
  for (size_t missing = 0; missing < 3; ++missing) {
    write(three_parts());
    std::filesystem::remove(path_of(missing));
    const std::string error = error_of(missing == 0 ? 1 : 0);
    EXPECT_TRUE(error.starts_with(path_of(missing) + ": open: found ")) << error;
  }
}

TEST_F(GgufSplitTest, APartThatIsNoGgufIsNamed) {
  write(three_parts());
  std::ofstream(path_of(2), std::ios::binary) << "GGUX....";
  EXPECT_TRUE(error_of(0).starts_with(path_of(2) + ": header magic: found")) << error_of(0);
}

TEST_F(GgufSplitTest, ARenamedPartIsRefused) {
  write(three_parts());
  const std::string other = folder_ + "/other.gguf";
  std::filesystem::copy_file(path_of(0), other);
  EXPECT_EQ(open_gguf_parts(other).error().message,
            other +
                ": metadata \"split.count\": found 3 in a file named \"other.gguf\", expected a "
                "name that ends with -00001-of-00003.gguf");
  std::filesystem::copy_file(
      path_of(2), path_of(1), std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(error_of(0), path_of(1) + ": metadata \"split.no\": found 2, expected 1");
}

TEST_F(GgufSplitTest, PartsThatDisagreeAreRefused) {
  struct Disagreement {
    size_t part;
    void (*change)(GgufImage&);
    std::string message;
  };

  const std::vector<Disagreement> cases = {
      {1,
       [](GgufImage& p) { p.set("split.count", GgufType::kUint16, raw<uint16_t>(4)); },
       "metadata \"split.count\": found 4, expected 3"},
      {1,
       [](GgufImage& p) { p.erase("split.count"); },
       "metadata \"split.count\": found no such key, expected an integer"},
      {2,
       [](GgufImage& p) { p.erase("split.no"); },
       "metadata \"split.no\": found no such key, expected an integer"},
      {2,
       [](GgufImage& p) { p.set_string("split.no", "2"); },
       "metadata \"split.no\": found string, expected an integer"},
      {1,
       [](GgufImage& p) { p.set("split.no", GgufType::kInt16, raw<int16_t>(-1)); },
       "metadata \"split.no\": found -1, expected an integer of at least 0"},
      {1,
       [](GgufImage& p) { p.erase("split.tensors.count"); },
       "metadata \"split.tensors.count\": found no such key, expected an integer"},
      {0,
       [](GgufImage& p) { p.set("split.tensors.count", GgufType::kInt32, raw<int32_t>(5)); },
       "metadata \"split.tensors.count\": found 5, expected the 4 that the parts hold"},
      {2,
       [](GgufImage& p) { p.tensors[0].name = "token_embd.weight"; },
       "tensor \"token_embd.weight\" name: found a duplicate of another part's, expected a name "
       "used once"},
  };
  for (const Disagreement& one : cases) {
    std::vector<GgufImage> parts = three_parts();
    one.change(parts[one.part]);
    write(parts);
    CorruptFile corrupt("split " + one.message, parts[0].bytes().size());
    const auto opened = open_gguf_parts(path_of(0));
    ASSERT_FALSE(opened.has_value());
    corrupt.refused(opened.error(), path_of(one.part), one.message);
  }
}

TEST_F(GgufSplitTest, ACountNobodyWritesIsRefused) {
  std::vector<GgufImage> parts = three_parts();
  parts[0].set("split.count", GgufType::kUint32, raw<uint32_t>(100000));
  write(parts);
  EXPECT_NE(error_of(0).find("\"split.count\": found 100000"), std::string::npos);
  EXPECT_NE(error_of(0).find("expected at most 1024"), std::string::npos);
}

TEST(GgufPartName, IsReadAndWritten) {
  const auto name = parse_gguf_part_name("a/b-00002-of-00012.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "a/b");
  EXPECT_EQ(name->part, 2U);
  EXPECT_EQ(name->count, 12U);
  EXPECT_EQ(name->path_of(12), "a/b-00012-of-00012.gguf");
  for (const char* other : {"",
                            "a.gguf",
                            "a-1-of-2.gguf",
                            "a-00000-of-00002.gguf",
                            "a-00003-of-00002.gguf",
                            "a-00001-of-0000x.gguf",
                            "a00001-of-00002.gguf",
                            "a-00001_of-00002.gguf",
                            "a-00001-of-00002.bin",
                            "a-+0001-of-00002.gguf"}) {
    EXPECT_FALSE(parse_gguf_part_name(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace sluice
