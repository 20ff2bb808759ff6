// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

namespace sluice::testing {
namespace {

constexpr uint32_t kHidden = 256;
constexpr uint32_t kKvWidth = 128;  // 2 heads of 64
constexpr float kWeightRms = 0.06F;

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::string raw_string(const std::string& text) { return raw<uint64_t>(text.size()) + text; }

// Returns random bytes whose scales give weights of kWeightRms; minima cancel the mean.
std::string random_tensor(WeightFormat format, int64_t n, int64_t k, std::mt19937& rng) {
  const FormatInfo& info = format_info(format);
  std::vector<std::byte> data(static_cast<size_t>(n * row_bytes(format, k)));
  std::normal_distribution<float> normal(0, kWeightRms);
  const PackedLayout& layout = layout_of(format);
  if (!layout.is_integer()) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < n; ++r) {
      for (float& w : row) w = normal(rng);
      quantize_row(format, row.data(), k, data.data() + r * row_bytes(format, k));
    }
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  for (std::byte& byte : data) byte = static_cast<std::byte>(rng() & 0xFF);
  const auto set_scale = [&](std::byte* block, int32_t i, float value) {
    const uint16_t half = float_to_half(value);
    std::memcpy(block + info.scale_offset + 2 * i, &half, sizeof(half));
  };
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  std::vector<float> weights(static_cast<size_t>(info.block_elements));
  for (size_t at = 0; at < data.size(); at += block_bytes) {
    std::byte* const block = data.data() + at;
    if (format == WeightFormat::kMXFP4) {
      block[0] = static_cast<std::byte>(121 + rng() % 2);
      continue;
    }
    // Scale 1 shows the mean, which is then 1 / ratio of the minimum's share, and the spread.
    set_scale(block, 0, 1);
    if (layout.has_min()) set_scale(block, 1, 0);
    const auto mean_of = [&] {
      dequantize_row(format, block, info.block_elements, weights.data());
      float sum = 0;
      for (const float w : weights) sum += w;
      return sum / static_cast<float>(weights.size());
    };
    float ratio = 0;
    if (layout.has_min()) {
      const float mean = mean_of();
      set_scale(block, 1, 1);
      ratio = mean / (mean - mean_of());
      set_scale(block, 1, ratio);
    }
    mean_of();
    float squares = 0;
    for (const float w : weights) squares += w * w;
    const float rms = std::sqrt(squares / static_cast<float>(weights.size()));
    set_scale(block, 0, kWeightRms / rms);
    if (layout.has_min()) set_scale(block, 1, ratio * kWeightRms / rms);
  }
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

class Writer {
 public:
  void add(const std::string& name, WeightFormat format, int64_t n, int64_t k) {
    infos_ += raw_string(name) + raw<uint32_t>(2) + raw<uint64_t>(static_cast<uint64_t>(k)) +
              raw<uint64_t>(static_cast<uint64_t>(n));
    finish(format, random_tensor(format, n, k, rng_));
  }

  void add_norm(const std::string& name) {
    std::uniform_real_distribution<float> around_one(0.7F, 1.3F);
    std::string data;
    for (uint32_t i = 0; i < kHidden; ++i) data += raw(around_one(rng_));
    infos_ += raw_string(name) + raw<uint32_t>(1) + raw<uint64_t>(kHidden);
    finish(WeightFormat::kF32, data);
  }

  [[nodiscard]] std::string file(const std::string& metadata, uint64_t num_metadata) const {
    std::string out = "GGUF" + raw<uint32_t>(3) + raw(num_tensors_) + raw(num_metadata);
    out += metadata + infos_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  void finish(WeightFormat format, const std::string& data) {
    infos_ += raw(format_info(format).ggml_type) + raw<uint64_t>(data_.size());
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
  }

  std::mt19937 rng_{20261121};
  std::string infos_, data_;
  uint64_t num_tensors_ = 0;
};

// Returns the metadata section of a file whose first tensor is the embedding.
std::string metadata_of(const std::string& file) {
  const size_t end = file.find(raw_string("token_embd.weight"));
  return end == std::string::npos ? "" : file.substr(24, end - 24);
}

bool patch_uint32(std::string& metadata, const std::string& key, uint32_t value) {
  const size_t at = metadata.find(raw_string(key));
  if (at == std::string::npos) return false;
  metadata.replace(at + 8 + key.size() + 4, 4, raw(value));
  return true;
}

}  // namespace

bool write_random_model(const std::string& tiny_path,
                        const std::string& path,
                        std::span<const WeightFormat> formats,
                        WeightFormat head,
                        int64_t num_tokens) {
  std::ifstream in(tiny_path, std::ios::binary);
  const std::string tiny{std::istreambuf_iterator<char>(in), {}};
  std::string metadata = metadata_of(tiny);
  constexpr size_t kMatrices = 7;
  const size_t num_layers = (formats.size() + kMatrices - 1) / kMatrices;
  const bool patched =
      patch_uint32(metadata, "llama.embedding_length", kHidden) &&
      patch_uint32(metadata, "llama.feed_forward_length", kHidden) &&
      patch_uint32(metadata, "llama.rope.dimension_count", 64) &&
      patch_uint32(metadata, "llama.block_count", static_cast<uint32_t>(num_layers));
  if (!patched) return false;
  Writer writer;
  writer.add("token_embd.weight", head, num_tokens, kHidden);
  size_t next = 0;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const auto add = [&](const char* stem, int64_t n) {
      writer.add(prefix + stem + ".weight", formats[next++ % formats.size()], n, kHidden);
    };
    writer.add_norm(prefix + "attn_norm.weight");
    add("attn_q", kHidden);
    add("attn_k", kKvWidth);
    add("attn_v", kKvWidth);
    add("attn_output", kHidden);
    writer.add_norm(prefix + "ffn_norm.weight");
    add("ffn_gate", kHidden);
    add("ffn_up", kHidden);
    add("ffn_down", kHidden);
  }
  writer.add_norm("output_norm.weight");
  uint64_t num_metadata = 0;
  std::memcpy(&num_metadata, tiny.data() + 16, sizeof(num_metadata));
  std::ofstream out(path, std::ios::binary);
  out << writer.file(metadata, num_metadata);
  return out.good();
}

}  // namespace sluice::testing
