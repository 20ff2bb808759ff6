// SPDX-License-Identifier: Apache-2.0
// Latent attention's matrices of each head, from one matrix whose blocks of scales straddle heads.
#include "engine/weights/latent_halves.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "quant/format.h"
#include "tests/engine/weights/hf_directory.h"

namespace sluice {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kNope = 72;
constexpr int32_t kValue = 128;
constexpr int32_t kRank = 160;
constexpr int32_t kRows = kHeads * (kNope + kValue);

const std::string kConfig =
    R"({"model_type":"deepseek_v3","num_attention_heads":2,"kv_lora_rank":160,)"
    R"("qk_nope_head_dim":72,"qk_rope_head_dim":64,"v_head_dim":128)";
const std::string kStored = "model.layers.0.self_attn.kv_b_proj.weight";

// A code of e4m3 and its value, by place.
uint8_t code_at(int64_t row, int64_t column) { return (row * 3 + column) % 5 == 0 ? 0x3C : 0xB8; }

float value_at(int64_t row, int64_t column) { return code_at(row, column) == 0x3C ? 1.5F : -1.0F; }

// Scales of blocks of 128 by 128: none is a power of two, so that bf16 rounds.
float scale_at(int64_t row, int64_t column) {
  return 0.3F + static_cast<float>(row / 128) + 0.01F * static_cast<float>(column / 128);
}

float rounded(float value) { return bf16_to_float(float_to_bf16(value)); }

std::vector<float> rows_of(const CheckpointTensor& tensor, int64_t first, int64_t count) {
  const std::vector<std::byte> bytes = tensor.latent->rows(first, count);
  std::vector<float> values;
  for (size_t at = 0; at < bytes.size(); at += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    values.push_back(bf16_to_float(bits));
  }
  return values;
}

class LatentHalves : public HfDirectory {
 protected:
  void write_blocks() const {
    std::string codes;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t d = 0; d < kRank; ++d) codes += static_cast<char>(code_at(row, d));
    }
    std::vector<float> scales;
    for (int64_t row = 0; row < kRows; row += 128) {
      for (int64_t d = 0; d < kRank; d += 128) scales.push_back(scale_at(row, d));
    }
    write("config.json",
          kConfig + R"(,"quantization_config":{"quant_method":"fp8","fmt":"e4m3",)"
                    R"("activation_scheme":"dynamic","weight_block_size":[128,128]}})");
    write("model.safetensors",
          SafetensorsBuilder()
              .add(kStored, "F8_E4M3", "[400,160]", codes)
              .add(kStored + "_scale_inv", "F32", "[4,2]", raw_bytes(scales))
              .file());
  }
};

TEST_F(LatentHalves, BlocksThatStraddleHeadsAreDecodedFirst) {
  write_blocks();
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_FALSE((*opened)->has("blk.0.attn_kv_b.weight"));
  const CheckpointTensor* keys = (*opened)->find("blk.0.attn_k_b.weight");
  const CheckpointTensor* values = (*opened)->find("blk.0.attn_v_b.weight");
  ASSERT_TRUE(keys != nullptr && values != nullptr);
  EXPECT_EQ(std::vector(keys->dims, keys->dims + 3), (std::vector<uint64_t>{kNope, kRank, kHeads}));
  EXPECT_EQ(std::vector(values->dims, values->dims + 3),
            (std::vector<uint64_t>{kRank, kValue, kHeads}));
  EXPECT_EQ(keys->format, WeightFormat::kBF16);
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t first = head * (kNope + kValue);
    const std::vector<float> k = rows_of(*keys, head * kRank, kRank);
    for (int64_t d = 0; d < kRank; ++d) {
      for (int64_t i = 0; i < kNope; ++i) {
        ASSERT_EQ(k[static_cast<size_t>(d * kNope + i)],
                  rounded(value_at(first + i, d) * scale_at(first + i, d)))
            << head << " " << d << " " << i;
      }
    }
    constexpr int64_t kSome = 40;  // a part of a head
    const std::vector<float> v = rows_of(*values, head * kValue + kSome, kValue - kSome);
    for (int64_t i = kSome; i < kValue; ++i) {
      const int64_t row = first + kNope + i;
      for (int64_t d = 0; d < kRank; ++d) {
        ASSERT_EQ(v[static_cast<size_t>((i - kSome) * kRank + d)],
                  rounded(value_at(row, d) * scale_at(row, d)));
      }
    }
  }
}

// Codes of 4 bits as GPTQ and AWQ store them, the same for eight rows; zero points are 8.
TEST_F(LatentHalves, QuantizedMatricesAreDecodedFirst) {
  constexpr int64_t kGroup = 32;
  const auto code = [](int64_t row, int64_t d) { return (row / 8 * 3 + d) % 16; };
  const auto scale = [](int64_t row, int64_t group) {
    return float_to_half(0.3F + 0.01F * static_cast<float>(row % 7 + group));
  };
  std::vector<uint32_t> by_columns;  // GPTQ: eight columns of a row in a word
  for (int64_t d = 0; d < kRank; d += 8) {
    for (int64_t row = 0; row < kRows; ++row) {
      uint32_t word = 0;
      for (int64_t i = 0; i < 8; ++i) word |= static_cast<uint32_t>(code(row, d + i)) << 4 * i;
      by_columns.push_back(word);
    }
  }
  std::vector<uint32_t> by_rows;  // AWQ: eight rows of a column
  for (int64_t d = 0; d < kRank; ++d) {
    for (int64_t row = 0; row < kRows; row += 8) {
      by_rows.push_back(0x11111111U * static_cast<uint32_t>(code(row, d)));
    }
  }
  std::vector<uint16_t> scales;
  for (int64_t group = 0; group < kRank / kGroup; ++group) {
    for (int64_t row = 0; row < kRows; ++row) scales.push_back(scale(row, group));
  }
  for (const bool is_awq : {false, true}) {
    // GPTQ's zero points are one less.
    const std::vector<uint32_t> zeros(kRank / kGroup * kRows / 8,
                                      is_awq ? 0x88888888U : 0x77777777U);
    const std::string stem = kStored.substr(0, kStored.rfind('.') + 1);
    write("config.json",
          kConfig + (is_awq ? R"(,"quantization_config":{"quant_method":"awq","bits":4,)"
                              R"("group_size":32,"zero_point":true,"version":"gemm"}})"
                            : R"(,"quantization_config":{"quant_method":"gptq","bits":4,)"
                              R"("group_size":32}})"));
    write("model.safetensors",
          SafetensorsBuilder()
              .add(stem + "qweight",
                   "I32",
                   is_awq ? "[160,50]" : "[20,400]",
                   raw_bytes(is_awq ? by_rows : by_columns))
              .add(stem + "qzeros", "I32", "[5,50]", raw_bytes(zeros))
              .add(stem + "scales", "F16", "[5,400]", raw_bytes(scales))
              .file());
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const auto value = [&](int64_t row, int64_t d) {
      return rounded(static_cast<float>(code(row, d) - 8) * half_to_float(scale(row, d / kGroup)));
    };
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t first = head * (kNope + kValue);
      const auto keys =
          rows_of(*(*opened)->find("blk.0.attn_k_b.weight"), head * kRank, kRank);
      for (int64_t at = 0; at < kRank * kNope; ++at) {
        ASSERT_EQ(keys[static_cast<size_t>(at)], value(first + at % kNope, at / kNope)) << is_awq;
      }
      const auto values =
          rows_of(*(*opened)->find("blk.0.attn_v_b.weight"), head * kValue, kValue);
      for (int64_t at = 0; at < kValue * kRank; ++at) {
        ASSERT_EQ(values[static_cast<size_t>(at)], value(first + kNope + at / kRank, at % kRank));
      }
    }
  }
}

TEST_F(LatentHalves, AnotherShapeIsRefused) {
  write("config.json", kConfig + "}");
  write("model.safetensors",
        SafetensorsBuilder().add(kStored, "F32", "[2,2]", std::string(16, '\0')).file());
  EXPECT_NE(error().find("found shape [2, 2], expected [400, 160]"), std::string::npos) << error();
}

}  // namespace
}  // namespace sluice
