// SPDX-License-Identifier: Apache-2.0
// Hand-made quantized layers: each scheme right, then with one thing wrong at a time.
// scheme_goldens_test.cpp checks the values of whole models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/pack.h"
#include "engine/weights/quantization.h"
#include "engine/weights/weight_store.h"
#include "quant/plain_rows.h"
#include "tests/engine/weights/quantized_layer_rig.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

TEST_F(QuantizedFolder, EverySchemeBecomesItsPackedFormat) {
  for (const Scheme& scheme : schemes()) {
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << scheme.name << ": " << opened.error().message;
    ASSERT_EQ((*opened)->tensors().size(), 1U) << scheme.name;
    const CheckpointTensor* tensor = (*opened)->find(kName);
    ASSERT_NE(tensor, nullptr) << scheme.name;
    EXPECT_EQ(tensor->format, scheme.format) << scheme.name;
    EXPECT_EQ(tensor->dims[0], 64U) << scheme.name;
    EXPECT_EQ(tensor->dims[1], 32U) << scheme.name;
    EXPECT_EQ(load_error(), "") << scheme.name;
    WeightStore store(**opened);
    ASSERT_TRUE(store.matrix(kName, 32, 64).has_value());
    EXPECT_EQ(store.types_text(), format_info(scheme.format).name);
  }
}

// Each needed part is omitted; each part gets another shape, and another type.
TEST_F(QuantizedFolder, MissingAndMisshapenPartsAreNamed) {
  for (const Scheme& right : schemes()) {
    for (size_t i = 0; i < right.parts.size(); ++i) {
      const std::string& suffix = right.parts[i].suffix;
      const bool optional = suffix == "weight_shape" || suffix == "g_idx" ||
                            (suffix == "input_scale" && right.name.starts_with("modelopt"));
      Scheme wrong = right;
      wrong.parts.erase(wrong.parts.begin() + static_cast<ptrdiff_t>(i));
      write_scheme(wrong);
      const std::string missing = load_error();
      if (optional) {
        EXPECT_EQ(missing, "") << right.name << " without " << suffix;
      } else {
        EXPECT_NE(missing.find(kLayer + "." + suffix), std::string::npos)
            << right.name << " without " << suffix << ": " << missing;
      }
      wrong = right;
      Part& part = wrong.parts[i];
      if (part.bytes.empty()) part.bytes = in_order(64, 32);
      part.bytes += part.bytes + part.bytes;
      part.shape = part.shape == "[]" ? "[3]" : "[3," + part.shape.substr(1);
      write_scheme(wrong);
      if (suffix == "input_scale" && optional) continue;  // unused
      // Codes of several matrices are stacked, and the model does not ask for stacks.
      const std::string message = load_error();
      EXPECT_TRUE(message.find(kLayer + ".") != std::string::npos ||
                  message.find(kName + ": found shape [96, 64]") != std::string::npos)
          << right.name << " " << suffix << ": " << message;
    }
  }
}

// Codes with many dimensions, with none and without a weight, in every scheme; CodedMatrix refuses
// them as well.
TEST_F(QuantizedFolder, ShapesThatNoMatrixHasAreRefused) {
  for (const Scheme& right : schemes()) {
    Scheme wrong = right;
    Part& codes = wrong.parts.front();
    const std::string sizes = codes.shape.substr(1);
    const std::string bytes = codes.bytes;
    std::string ones = "[";
    for (int dims = 3; dims <= 64; ++dims) {
      ones += "1,";
      codes.shape = ones + sizes;
      write_scheme(wrong);
      const std::string message = load_error();
      if (dims <= 4) continue;
      EXPECT_NE(message.find(kLayer), std::string::npos) << right.name << " " << dims;
    }
    const std::string first = sizes.substr(0, sizes.find(','));
    for (const std::string& shape :
         {"[" + first + ",0]", "[0," + first + "]", std::string("[0,0]")}) {
      codes.shape = shape;
      codes.bytes.clear();
      write_scheme(wrong);
      EXPECT_NE(load_error().find(kLayer), std::string::npos) << right.name << " " << shape;
    }
    codes.bytes = bytes;
  }
  const WeightScheme int8 = layer_scheme(SchemeKind::kInt8).weights;
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{1, 1, 1, 4, 8}, {4, 0}, {0, 8}, {1, 0, 4, 8}}) {
    const auto matrix = CodedMatrix::create(
        int8, {.name = "a", .type = ElementType::kI8, .shape = shape, .bytes = {}}, {});
    ASSERT_FALSE(matrix.has_value());
    EXPECT_EQ(matrix.error().message.find("tensor \"a\": found shape ["), 0U)
        << matrix.error().message;
  }
}

struct Bad {
  const char* scheme;
  const char* part;
  size_t at;
  const char* bytes;
  size_t count;
  const char* message;
};

TEST_F(QuantizedFolder, ValuesThatNoTrainedMatrixHasAreNamed) {
  const Bad bads[] = {
      {"int8", "weight_scale", 6, "\x80\x7F", 2, "row 3 column 0: found a scale that is no number"},
      {"fp8 static",
       "weight",
       64 * 5 + 7,
       "\x7F",
       1,
       "row 5 column 7: found a code that is no number"},
      {"fp8 static", "weight", 64 * 31 + 63, "\xFF", 1, "row 31 column 63: found a code"},
      {"fp8 static", "weight_scale", 0, "\0\0\xC0\x7F", 4, "found a scale that is no number"},
      {"fp8 static", "input_scale", 0, "\0\0\x80\x7F", 4, "input_scale\": found inf"},
      {"fp8 static", "input_scale", 0, "\0\0\0\0", 4, "input_scale\": found 0"},
      {"fp8 blocks", "weight_scale_inv", 0, "\0\0\xC0\x7F", 4, "row 0 column 0: found a scale"},
      {"nvfp4", "weight_scale", 4 * 9 + 2, "\x7F", 1, "row 9 column 32: found a scale"},
      {"nvfp4", "weight_scale", 127, "\xFF", 1, "row 31 column 48: found a scale"},
      {"nvfp4", "weight_global_scale", 0, "\0\0\0\0", 4, "weight_global_scale\": found 0"},
      {"mxfp4", "weight_scale", 5, "\xFF", 1, "row 2 column 32: found a scale"},
      {"gptq", "scales", 2, "\x00\x7C", 2, "row 1 column 0: found a scale"},
      {"awq", "scales", 64, "\x00\xFE", 2, "row 0 column 32: found a scale"},
      // Invalid groups and sizes.
      {"gptq", "g_idx", 0, "\x02\0\0\0", 4, "found group 2 of column 0, expected 0 to 1"},
      {"packed int4", "weight_shape", 8, "\x38", 1, "found 32 and 56, expected the size"},
  };
  for (const Bad& bad : bads) {
    Scheme scheme = scheme_named(bad.scheme);
    Part& part = part_of(scheme, bad.part);
    if (part.bytes.empty()) part.bytes = in_order(64, 32);
    part.bytes.replace(bad.at, bad.count, bad.bytes, bad.count);
    write_scheme(scheme);
    const std::string message = load_error();
    EXPECT_NE(message.find(bad.message), std::string::npos)
        << bad.scheme << " " << bad.part << ": " << message;
    EXPECT_NE(message.find("tensor "), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

// Columns of one group lie apart: the matrix is decoded to floats.
TEST_F(QuantizedFolder, ActOrderIsDecodedExactly) {
  Scheme scheme = scheme_named("gptq");
  std::vector<int32_t> index;
  for (int32_t i = 0; i < 64; ++i) index.push_back(i * 7 % 2);
  part_of(scheme, "g_idx").bytes = raw_bytes(index);
  std::vector<uint16_t> scales(64, kF16Hundredth);
  for (size_t i = 32; i < 64; ++i) scales[i] = 0x2418;  // 0.016 in group 1
  part_of(scheme, "scales").bytes = raw_bytes(scales);
  write_scheme(scheme);
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const CheckpointTensor* tensor = (*opened)->find(kName);
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->format, WeightFormat::kF32);
  WeightStore store(**opened);
  ASSERT_TRUE(store.allocate(1 << 20).has_value());
  const auto matrix = store.matrix(kName, 32, 64);
  ASSERT_TRUE(matrix.has_value()) << matrix.error().message;
  const auto* const packed = reinterpret_cast<const float*>(matrix->data);  // [32 k][16 rows]
  for (int64_t k = 0; k < 64; ++k) {
    const int code = k % 2 == 0 ? 0xA : 0x9;
    const float scale = half_to_float(index[static_cast<size_t>(k)] == 0 ? kF16Hundredth : 0x2418);
    EXPECT_EQ(packed[k * 16 + 3], static_cast<float>(code - 8) * scale) << k;
  }
}

// Columns that lie apart need the index with their groups.
TEST_F(QuantizedFolder, ColumnsThatLieApartNeedTheirIndex) {
  const auto changed = [](const std::string& name, const std::string& from, const std::string& to) {
    Scheme scheme = scheme_named(name);
    scheme.config.replace(scheme.config.find(from), from.size(), to);
    std::erase_if(scheme.parts, [](const Part& part) { return part.suffix.ends_with("g_idx"); });
    return scheme;
  };
  const std::string strategy = R"("strategy":"group",)";
  for (const char* order : {R"("group")", R"("Dynamic")", "true"}) {
    Scheme scheme = changed("packed int4", strategy, strategy + R"("actorder":)" + order + ",");
    write_scheme(scheme);
    EXPECT_NE(load_error().find(kLayer + ".weight_g_idx"), std::string::npos) << load_error();
    scheme.parts.push_back({"weight_g_idx", "I32", "[64]", in_order(64, 32)});
    write_scheme(scheme);
    EXPECT_EQ(load_error(), "") << order;
  }
  for (const char* order : {R"("weight")", R"("static")", "false", "null"}) {
    write_scheme(changed("packed int4", strategy, strategy + R"("actorder":)" + order + ","));
    EXPECT_EQ(load_error(), "") << order;
  }
  write_scheme(changed("packed int4", strategy, strategy + R"("actorder":"columns",)"));
  EXPECT_NE(load_error().find("actorder: found \"columns\""), std::string::npos) << load_error();
  write_scheme(changed("gptq", R"("desc_act":false)", R"("desc_act":true)"));
  EXPECT_NE(load_error().find(kLayer + ".g_idx"), std::string::npos) << load_error();
}

TEST_F(QuantizedFolder, NumbersBeyondOursAreNoOthers) {
  for (const char* number : {"18446744073709551615", "18446744073709551584", "1e400"}) {
    Scheme scheme = scheme_named("gptq");
    const std::string from = R"("group_size":32)";
    scheme.config.replace(
        scheme.config.find(from), from.size(), std::string(R"("group_size":)") + number);
    write_scheme(scheme);
    EXPECT_NE(load_error(), "") << number;
    EXPECT_EQ(load_error().find(kLayer), std::string::npos) << load_error();
  }
}

TEST_F(QuantizedFolder, OneNameInTwoFilesIsRefused) {
  for (const Scheme& scheme : schemes()) {
    write_scheme(scheme);
    std::filesystem::rename(folder_ + "/model.safetensors",
                            folder_ + "/model-00001-of-00002.safetensors");
    SafetensorsBuilder builder;
    const Part& part = scheme.parts.back();
    builder.add(kLayer + "." + part.suffix,
                part.dtype,
                part.shape,
                part.suffix == "g_idx" ? in_order(64, 32) : part.bytes);
    write("model-00002-of-00002.safetensors", builder.file());
    EXPECT_NE(error().find(part.suffix + "\": found one in "), std::string::npos)
        << scheme.name << ": " << error();
    remove("model-00001-of-00002.safetensors");
    remove("model-00002-of-00002.safetensors");
  }
}

// A matrix may have a single zero point, like its scale.
TEST_F(QuantizedFolder, AMatrixMayHaveOneZeroPoint) {
  for (const char zero : {'\0', '\3'}) {
    Scheme scheme = scheme_named("int8");
    scheme.config = group_of("int-quantized",
                             R"("num_bits":8,"type":"int","strategy":"tensor","symmetric":)" +
                                 std::string(zero == 0 ? "true" : "false"),
                             "null");
    scheme.parts = {{"weight", "I8", "[32,64]", repeated(32 * 64, 0x31)},
                    {"weight_scale", "F32", "[1]", floats(1, 0.01F)},
                    {"weight_zero_point", "I8", "[1]", std::string(1, zero)}};
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    PlainReader reader(*(*opened)->find(kName)->coded);
    const PlainRows& rows = reader.read(16, 16);
    EXPECT_FLOAT_EQ(static_cast<float>(plain_value(rows, 7, 63)), (0x31 - zero) * 0.01F);
  }
}

TEST_F(QuantizedFolder, TwoConfigurationsThatDifferAreRefused) {
  const Scheme scheme = scheme_named("int8");
  write_scheme(scheme);
  const std::string other = scheme_named("gptq").config;
  for (const bool same : {true, false}) {
    write("config.json",
          R"({"model_type":"llama","quantization_config":)" + scheme.config +
              R"(,"compression_config":)" + (same ? scheme.config : other) + "}");
    EXPECT_EQ(load_error().find("compression_config: found another one") != std::string::npos,
              !same)
        << load_error();
  }
}

// A single piece may have any magnitude; only the whole matrix is checked.
TEST_F(QuantizedFolder, TheMagnitudeIsThatOfAllPieces) {
  Scheme scheme = scheme_named("int8");
  std::string& scales = part_of(scheme, "weight_scale").bytes;
  scales.replace(0, 32, halves(16, 0x2B80));  // 9e-13 in the first 16 rows
  write_scheme(scheme);
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const CodedMatrix& matrix = *(*opened)->find(kName)->coded;
  Magnitude magnitude;
  for (const int64_t first : {0, 16}) {
    const MatrixPart part = {
        .layout = MatrixLayout::kNone, .first_row = first, .magnitude = &magnitude};
    EXPECT_TRUE(pack_checked("a", matrix, first, 16, nullptr, part).has_value());
    EXPECT_EQ(warn_of_magnitude("a", magnitude), first == 0);
  }
}

// The older place of ModelOpt's configuration defines codes like config.json.
TEST_F(QuantizedFolder, EveryConfigurationIsOneOfTheCheckpointsFiles) {
  Scheme scheme = scheme_named("modelopt nvfp4");
  write_scheme(scheme);
  write("config.json", R"({"model_type":"llama"})");
  const std::string config =
      R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","group_size":16}})";
  write("hf_quant_config.json", config);
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const std::vector<CheckpointFile> files = (*opened)->files();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[1].bytes.size(), config.size());
  EXPECT_EQ(files[1].header.size(), config.size());
  EXPECT_NE((*opened)->describe(true).find("1 weight file(s)"), std::string::npos);
}

// A layer that the model cuts, such as q, k and v in one tensor, at rows inside blocks of scales or
// words.
TEST_F(QuantizedFolder, SlicesAreRowsOfTheWhole) {
  for (const Scheme& scheme : schemes()) {
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    WeightStore whole(**opened);
    ASSERT_TRUE(whole.allocate(1 << 20).has_value());
    const auto all = whole.matrix(kName, 32, 64);
    ASSERT_TRUE(all.has_value());
    WeightStore cut(**opened);
    ASSERT_TRUE(cut.allocate(1 << 20).has_value());
    const auto part = cut.matrix(kName, 16, 64, RowSlice{.first = 16, .total = 32});
    ASSERT_TRUE(part.has_value()) << part.error().message;
    const int64_t bytes = packed_tile_bytes(all->format, 64);
    EXPECT_EQ(std::memcmp(all->data + bytes, part->data, static_cast<size_t>(bytes)), 0)
        << scheme.name;
  }
}

// The hash is independent of threads, and changes with a scale.
TEST_F(QuantizedFolder, TheContentHashCoversCompanions) {
  for (const Scheme& right : schemes()) {
    const auto hash_of = [&](const Scheme& scheme) {
      write_scheme(scheme);
      const auto opened = Checkpoint::open(folder_);
      EXPECT_TRUE(opened.has_value());
      WeightStore store(**opened);
      EXPECT_TRUE(store.allocate(1 << 20).has_value());
      EXPECT_TRUE(store.matrix(kName, 32, 64).has_value());
      return store.content_hash();
    };
    const uint64_t hash = hash_of(right);
    EXPECT_EQ(hash, hash_of(right));
    for (const Part& part : right.parts) {
      const bool is_unread = part.suffix == "input_scale" && right.name.starts_with("modelopt");
      const bool counts = part.suffix.find("scale") != std::string::npos && !is_unread;
      if (!counts) continue;
      Scheme other = right;
      std::string& bytes = part_of(other, part.suffix).bytes;
      bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
      EXPECT_NE(hash, hash_of(other)) << right.name << " " << part.suffix;
    }
  }
}

TEST_F(QuantizedFolder, ALayerOfFloatsIsOneWhateverTheConfigurationSays) {
  Scheme scheme = scheme_named("int8");
  scheme.parts = {{"weight", "BF16", "[32,64]", halves(32 * 64, kBf16Hundredth)}};
  write_scheme(scheme);
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->find(kName)->format, WeightFormat::kBF16);
}

TEST_F(QuantizedFolder, ABiasOfZerosThatNothingAsksForIsSaidAndLeftOut) {
  for (const uint16_t value : {uint16_t{0}, kF16Hundredth}) {
    Scheme scheme = scheme_named("gptq");
    scheme.parts.push_back({"bias", "F16", "[32]", halves(32, value)});
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    WeightStore store(**opened);
    ASSERT_TRUE(store.matrix(kName, 32, 64).has_value());
    std::vector<std::string> unused;
    const std::string log = logged_by([&] { unused = store.unused(); });
    EXPECT_EQ(unused.size(), value == 0 ? 0U : 1U);
    EXPECT_EQ(log.find("key=blk.0.attn_q.bias found=\"a bias of zeros") != std::string::npos,
              value == 0)
        << log;
  }
}

TEST_F(QuantizedFolder, ScalesOfACacheAreSaidAndLeftOut) {
  Scheme scheme = scheme_named("int8");
  scheme.parts.push_back({"k_scale", "F32", "[]", floats(1, 1.0F)});
  write_scheme(scheme);
  const std::string log = logged_by([&] { EXPECT_EQ(load_error(), ""); });
  EXPECT_NE(log.find("found=\"a scale for all of a cache\""), std::string::npos) << log;
}

}  // namespace
}  // namespace sluice
