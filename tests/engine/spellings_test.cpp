// SPDX-License-Identifier: Apache-2.0
// One model in the several ways in which files say it: equal weights give equal logits, whatever
// their tensors and keys are called and however their rows lie.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quant/format.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/respelled_model.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::ModelHarness;
using testing::relative_error;
using testing::RespelledDirectory;
using testing::RespelledGguf;
using testing::StoredTensor;

std::vector<float> logits_of(const std::string& path, int32_t num_tokens = 14) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < num_tokens; ++i) tokens.push_back((i * 37 + 5) % 71);
  auto harness = ModelHarness::create(path, 32, DType::kF32, num_tokens);
  EXPECT_TRUE(harness.has_value()) << harness.error().message;
  return harness ? (*harness)->forward(tokens) : std::vector<float>();
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Experts of Gemma 4 whose weights are whole numbers from -8 to 7, times 1/64, so that every format
// here has them exactly.
class GemmaExperts {
 public:
  enum class Format { kBF16, kE4M3, kInt4 };

  // `place`: what is before the experts' numbers in a layer; null: their matrices are stacked.
  static std::vector<float> logits(Format format, const char* place) {
    RespelledDirectory model("gemma4-moe");
    model.config["moe_intermediate_size"] = kWidth;
    std::erase_if(model.tensors, [](const StoredTensor& tensor) {
      return tensor.name.find(".experts.") != std::string::npos;
    });
    if (format != Format::kBF16) model.config["quantization_config"] = scheme(format, place);
    for (int layer = 0; layer < 3; ++layer) {
      const std::string prefix = "model.language_model.layers." + std::to_string(layer) + ".";
      if (place == nullptr) {
        add_stack(model, format, prefix + "experts.gate_up_proj", layer, {0, 1});
        add_stack(model, format, prefix + "experts.down_proj", layer, {2});
        continue;
      }
      for (int expert = 0; expert < kExperts; ++expert) {
        const std::string start = prefix + place + std::to_string(expert) + ".";
        add_matrix(model, format, start + "gate_proj", {layer, expert, 0});
        add_matrix(model, format, start + "up_proj", {layer, expert, 1});
        add_matrix(model, format, start + "down_proj", {layer, expert, 2});
      }
    }
    return logits_of(model.path());
  }

 private:
  static constexpr int kExperts = 6;
  static constexpr uint64_t kWidth = 32;  // of an expert and of the model
  static constexpr float kScale = 1.0F / 64;

  struct Which {
    int layer;
    int expert;
    int matrix;  // gate, up or down
  };

  static int number(const Which& which, uint64_t row, uint64_t column) {
    const int place = which.layer * 977 + which.expert * 131 + which.matrix * 71;
    const uint64_t mixed = (row * 31 + column) * 2654435761U + static_cast<uint64_t>(place);
    return static_cast<int>((mixed * 0x9E3779B97F4A7C15U) >> 60) - 8;
  }

  static Json scheme(Format format, const char* place) {
    if (place == nullptr) {
      return {{"quant_method", "fp8"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", nullptr}};
    }
    const bool is_int4 = format == Format::kInt4;
    Json weights = {{"num_bits", is_int4 ? 4 : 8}, {"type", is_int4 ? "int" : "float"}};
    weights["strategy"] = is_int4 ? "group" : "channel";
    if (is_int4) weights["group_size"] = kWidth;
    return {{"quant_method", "compressed-tensors"},
            {"quantization_status", "compressed"},
            {"format", is_int4 ? "pack-quantized" : "float-quantized"},
            {"ignore", {"lm_head"}},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}}}}}};
  }

  static std::string codes(Format format, const Which& which) {
    std::string bytes;
    for (uint64_t row = 0; row < kWidth; ++row) {
      uint32_t word = 0;
      for (uint64_t column = 0; column < kWidth; ++column) {
        const int value = number(which, row, column);
        const float weight = static_cast<float>(value) * kScale;
        if (format == Format::kBF16) append(bytes, float_to_bf16(weight));
        if (format == Format::kE4M3) append(bytes, e4m3(value));
        word |= static_cast<uint32_t>(value + 8) << (4 * (column % 8));
        if (format != Format::kInt4 || column % 8 != 7) continue;
        append(bytes, word);
        word = 0;
      }
    }
    return bytes;
  }

  // Sign, 4 bits of exponent with a bias of 7, 3 of mantissa.
  static uint8_t e4m3(int value) {
    if (value == 0) return 0;
    const auto size = static_cast<unsigned>(std::abs(value));
    unsigned exponent = 0;
    while (size >> (exponent + 1) != 0) ++exponent;
    const unsigned mantissa = (size << 3 >> exponent) & 7U;
    return static_cast<uint8_t>((value < 0 ? 0x80U : 0U) | (exponent + 7) << 3 | mantissa);
  }

  static void add_stack(RespelledDirectory& model,
                        Format format,
                        const std::string& name,
                        int layer,
                        const std::vector<int>& matrices) {
    StoredTensor stack{.name = name,
                       .dtype = format == Format::kBF16 ? "BF16" : "F8_E4M3",
                       .shape = {kExperts, matrices.size() * kWidth, kWidth}};
    StoredTensor scales{.name = name + "_scale_inv", .dtype = "F32", .shape = {kExperts, 1, 1}};
    for (int expert = 0; expert < kExperts; ++expert) {
      append(scales.bytes, kScale);
      for (const int matrix : matrices) stack.bytes += codes(format, {layer, expert, matrix});
    }
    model.tensors.push_back(std::move(stack));
    if (format != Format::kBF16) model.tensors.push_back(std::move(scales));
  }

  static void add_matrix(RespelledDirectory& model,
                         Format format,
                         const std::string& name,
                         const Which& which) {
    const bool is_int4 = format == Format::kInt4;
    model.tensors.push_back({.name = name + (is_int4 ? ".weight_packed" : ".weight"),
                             .dtype = is_int4                    ? "I32"
                                      : format == Format::kBF16 ? "BF16"
                                                                 : "F8_E4M3",
                             .shape = {kWidth, is_int4 ? kWidth / 8 : kWidth},
                             .bytes = codes(format, which)});
    if (format == Format::kBF16) return;
    StoredTensor scales{.name = name + ".weight_scale", .dtype = "BF16", .shape = {kWidth, 1}};
    for (uint64_t row = 0; row < kWidth; ++row) append(scales.bytes, float_to_bf16(kScale));
    model.tensors.push_back(std::move(scales));
    if (!is_int4) return;
    StoredTensor shape{.name = name + ".weight_shape", .dtype = "I64", .shape = {2}};
    append(shape.bytes, int64_t{kWidth});
    append(shape.bytes, int64_t{kWidth});
    model.tensors.push_back(std::move(shape));
  }
};

TEST(Spellings, ExpertsOfGemma4MayBeApart) {
  using enum GemmaExperts::Format;
  const std::vector<float> usual = GemmaExperts::logits(kBF16, nullptr);
  ASSERT_FALSE(usual.empty());
  const std::vector<float> stacked = GemmaExperts::logits(kE4M3, nullptr);
  EXPECT_LE(relative_error(usual, stacked), 1e-5);
  for (const char* place : {"experts.", "moe.experts."}) {
    EXPECT_EQ(GemmaExperts::logits(kBF16, place), usual) << place;
    EXPECT_EQ(GemmaExperts::logits(kE4M3, place), stacked) << place;
    EXPECT_LE(relative_error(usual, GemmaExperts::logits(kInt4, place)), 1e-5) << place;
  }
}

// Row numbers [first, first + count).
void append_rows(std::vector<uint64_t>& rows, uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) rows.push_back(first + i);
}

// Returns the rows of one tensor followed by those of another.
StoredTensor joined(const StoredTensor& a, const StoredTensor& b) {
  StoredTensor both = a;
  both.shape.front() += b.shape.front();
  both.bytes += b.bytes;
  return both;
}

// Qwen3-Next's first GGUF files have q, k, v and the gate of each key head together, as
// directories have.
TEST(Spellings, GatesOfQwen3NextMayBeBesideQueries) {
  constexpr uint64_t kKeyHeads = 2;
  constexpr uint64_t kKeys = 16;    // of a key head
  constexpr uint64_t kValues = 32;  // of a key head's value heads
  constexpr uint64_t kQkv = kKeyHeads * (2 * kKeys + kValues);
  RespelledGguf file("qwen3-next");
  const std::vector<float> usual = logits_of(file.path());
  std::vector<uint64_t> rows;
  for (uint64_t head = 0; head < kKeyHeads; ++head) {
    append_rows(rows, head * kKeys, kKeys);
    append_rows(rows, (kKeyHeads + head) * kKeys, kKeys);
    append_rows(rows, 2 * kKeyHeads * kKeys + head * kValues, kValues);
    append_rows(rows, kQkv + head * kValues, kValues);
  }
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const StoredTensor gate = file.tensor(prefix + "attn_gate.weight");
    StoredTensor& qkv = file.tensor(prefix + "attn_qkv.weight");
    ASSERT_EQ(qkv.shape.front(), kQkv);
    qkv = with_rows(joined(qkv, gate), rows);
    qkv.name = prefix + "ssm_in.weight";
    std::erase_if(file.tensors, [&](const StoredTensor& each) { return each.name == gate.name; });
  }
  EXPECT_EQ(logits_of(file.path()), usual);
}

}  // namespace
}  // namespace sluice
