// SPDX-License-Identifier: Apache-2.0
// The files by which sentence-transformers says how a model pools: a refusal is one line that names
// a file, and what is taken has vectors of a width, tokens of the vocabulary, and layers that fit
// each other.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/pooling_files.h"
#include "tests/fuzz/target.h"
#include "tests/support/byte_tokenizer.h"

namespace {

namespace fs = std::filesystem;

class EmptyCheckpoint final : public sluice::Checkpoint {
 public:
  explicit EmptyCheckpoint(const std::string& folder)
      : Checkpoint(folder, sluice::CheckpointKind::kHuggingFace, "fuzz") {
    static constexpr sluice::FileSpec kFamily = {.names_pooling = true};
    file_spec_ = &kFamily;
  }

  [[nodiscard]] std::vector<sluice::CheckpointFile> files() const override { return {}; }

  [[nodiscard]] sluice::Expected<sluice::CheckpointText> text() const override {
    return sluice::CheckpointText();
  }

  [[nodiscard]] std::string describe(bool) const override { return {}; }
};

constexpr std::string_view kBetween = "\n---\n";
constexpr const char* kFiles[] = {"modules.json",
                                  "config.json",
                                  "1_Pooling/config.json",
                                  "2_Dense/config.json",
                                  "2_Dense/model.safetensors",
                                  "sentence_bert_config.json",
                                  "config_sentence_transformers.json",
                                  "tokenizer_config.json",
                                  "artifact.metadata",
                                  "3_Mask/config.json",
                                  "3_Norm/model.safetensors"};

void write_files(const fs::path& folder, std::string_view text) {
  for (const char* name : kFiles) {
    const size_t end = text.find(kBetween);
    const std::string_view part = text.substr(0, end);
    fs::remove(folder / name);
    if (!part.empty()) std::ofstream(folder / name, std::ios::binary) << part;
    text.remove_prefix(end == text.npos ? text.size() : end + kBetween.size());
  }
}

}  // namespace

// The first byte: what the model is, and what is asked of it; the rest: the files.
static int pooling_files_input(const uint8_t* data, size_t size) {
  static const fs::path folder = [] {
    fs::path path = fs::temp_directory_path() / ("pooling_files_fuzz-" + std::to_string(getpid()));
    for (const char* name : kFiles) fs::create_directories((path / name).parent_path());
    return path;
  }();
  if (size == 0) return 0;
  write_files(folder, {reinterpret_cast<const char*>(data + 1), size - 1});
  constexpr const char* kConverts[] = {"auto", "embed", "classify", "auto"};
  sluice::Config config;
  config.convert = kConverts[data[0] & 3];
  const sluice::PooledModel model = {.hidden = 4,
                                     .num_labels = (data[0] >> 2) & 3,
                                     .max_model_len = 64,
                                     .is_encoder = (data[0] & 16) != 0,
                                     .lacks_output = (data[0] & 32) != 0,
                                     .has_segments = false,
                                     .unseen = (data[0] & 64) != 0 ? 1000 : 0,
                                     .window = (data[0] & 128) != 0 ? 8 : 0};
  const sluice::ByteTokenizer tokenizer;
  const EmptyCheckpoint checkpoint(folder.string());
  const auto read = sluice::read_pooling(config, checkpoint, tokenizer, model);
  if (!read) {
    CHECK(!read.error().message.empty());
    CHECK_EQ(read.error().message.find('\n'), std::string::npos);
    return 0;
  }
  if (!*read) return 0;
  const sluice::PoolingInfo& info = (*read)->info;
  CHECK_GT(info.width, 0);
  CHECK(info.max_tokens >= 1 && info.max_tokens <= 64);
  if (info.is_classifier) CHECK_EQ(info.labels.size(), static_cast<size_t>(info.width));
  for (const sluice::TokenId id : info.label_tokens) CHECK(id >= 0 && id < tokenizer.vocab_size());
  for (const int32_t width : info.matryoshka_dimensions) CHECK(width >= 1 && width <= info.width);
  const sluice::TokenComparison& comparison = info.comparison;
  CHECK(comparison.expanded_tokens >= 0 && comparison.expanded_tokens <= info.max_tokens);
  CHECK(comparison.expanded_tokens == 0 || comparison.expansion >= 0);
  CHECK_LT(comparison.expansion, 1000 + tokenizer.vocab_size());
  for (const sluice::ComparedSide* side : {&comparison.query, &comparison.document}) {
    CHECK(side->max_tokens >= 0 && side->marker < tokenizer.vocab_size());
  }
  int32_t width = model.hidden;
  for (const sluice::PooledLayer& layer : (*read)->layers) {
    CHECK_EQ(layer.in, width);
    width = layer.out;
    CHECK_EQ(layer.weight.size(), static_cast<size_t>(layer.in) * static_cast<size_t>(width));
  }
  return 0;
}

const sluice::fuzz::Target pooling_files_target("pooling_files_fuzz", pooling_files_input);
