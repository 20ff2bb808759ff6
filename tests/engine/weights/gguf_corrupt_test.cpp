// SPDX-License-Identifier: Apache-2.0
// One field wrong at a time: the Error names the field, what was found and what was expected.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "engine/weights/gguf.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/gguf_builder.h"

namespace sluice {
namespace {

struct CorruptCase {
  const char* name;
  std::function<void(GgufImage&)> corrupt;
  ErrorCode code;
  const char* message;  // a part of it
};

constexpr auto kLoss = ErrorCode::kDataLoss;
constexpr auto kUnsupported = ErrorCode::kUnsupported;
constexpr uint64_t kMax = ~uint64_t{0};

const std::vector<CorruptCase>& corrupt_files() {
  using I = GgufImage;
  static const std::vector<CorruptCase> cases = {
      // Header.
      {"MagicOfAnotherFormat",
       [](I& f) { f.magic = "GGML"; },
       kLoss,
       "header magic: found \"GGML\", expected \"GGUF\""},
      {"MagicReversed", [](I& f) { f.magic = "FUGG"; }, kLoss, "found \"FUGG\""},
      {"MagicWithControlBytes", [](I& f) { f.magic = "\x1b[2J"; }, kLoss, "\"\\x1b[2J\""},
      {"VersionOne", [](I& f) { f.version = 1; }, kUnsupported, "version: found 1, expected"},
      {"VersionFour", [](I& f) { f.version = 4; }, kUnsupported, "version: found 4, expected"},
      {"VersionZero", [](I& f) { f.version = 0; }, kLoss, "version: found 0"},
      {"BigEndian", [](I& f) { f.version = 0x03000000; }, kUnsupported, "big-endian version 3"},
      {"VersionGarbage", [](I& f) { f.version = 0xdeadbeef; }, kLoss, "version: found 3735928559"},
      {"TensorCountHuge",
       [](I& f) { f.tensor_count = kMax; },
       kLoss,
       "tensor_count: found 18446744073709551615, expected at most"},
      {"TensorCountOverflowsTimesSize",
       [](I& f) { f.tensor_count = kMax / 33 + 2; },
       kLoss,
       "tensor_count"},
      {"TensorCountAboveRemaining", [](I& f) { f.tensor_count = 40; }, kLoss, "tensor_count"},
      {"TensorCountTooHigh", [](I& f) { f.tensor_count = 5; }, kLoss, "tensor 4 "},
      {"MetadataCountHuge",
       [](I& f) { f.metadata_count = kMax; },
       kLoss,
       "metadata_kv_count: found 18446744073709551615"},
      {"MetadataCountTwoTo63",
       [](I& f) { f.metadata_count = 1ULL << 63; },
       kLoss,
       "metadata_kv_count"},
      {"MetadataCountTooHigh",
       [](I& f) { f.metadata_count = f.metadata.size() + 1; },
       kLoss,
       "tensor 0 "},
      {"MetadataCountTooLow",
       [](I& f) { f.metadata_count = f.metadata.size() - 1; },
       kLoss,
       "tensor 0 "},
      // Metadata.
      {"KeyEmpty",
       [](I& f) { f.metadata[1].key = ""; },
       kLoss,
       "metadata 1 key: found a length of 0"},
      {"KeyTooLong",
       [](I& f) { f.metadata[1].key = std::string(65536, 'k'); },
       kLoss,
       "found a length of 65536 bytes, expected 1 to 65535"},
      {"KeyDuplicate",
       [](I& f) { f.metadata[3].key = "llama.block_count"; },
       kLoss,
       "metadata 3 \"llama.block_count\" name: found a duplicate"},
      {"ValueTypeUnknown",
       [](I& f) { f.metadata[1].type = static_cast<GgufType>(13); },
       kLoss,
       "\"llama.block_count\" value type: found type id 13"},
      {"ValueTypeHuge",
       [](I& f) { f.metadata[1].type = static_cast<GgufType>(0xffffffff); },
       kLoss,
       "type id 4294967295"},
      {"BoolTwo",
       [](I& f) { f.set("test.bool", GgufType::kBool, "\2"); },
       kLoss,
       "\"test.bool\" bool value: found 2, expected 0 or 1"},
      {"BoolInArrayTwo",
       [](I& f) { f.set_array("test.flags", GgufType::kBool, 2, "\1\2"); },
       kLoss,
       "\"test.flags\" bool value: found 2"},
      {"StringLengthHuge",
       [](I& f) { f.set("general.architecture", GgufType::kString, raw(kMax) + "llama"); },
       kLoss,
       "string length: found the end of the file"},
      {"StringLengthWrapsPosition",
       [](I& f) { f.set("general.architecture", GgufType::kString, raw(kMax - 31) + "llama"); },
       kLoss,
       "expected 18446744073709551584 bytes"},
      {"ArrayNested",
       [](I& f) { f.set_array("test.flags", GgufType::kArray, 1, raw_strings({"x"})); },
       kUnsupported,
       "found an array of arrays"},
      {"ArrayElementTypeUnknown",
       [](I& f) { f.set_array("test.flags", static_cast<GgufType>(77), 1, "x"); },
       kLoss,
       "array element type: found type id 77"},
      {"ArrayLengthHuge",
       [](I& f) { f.set_array("test.flags", GgufType::kUint8, kMax, "x"); },
       kLoss,
       "array length: found 18446744073709551615 elements of type uint8"},
      {"ArrayLengthTimesSizeWraps",
       [](I& f) { f.set_array("test.flags", GgufType::kUint64, (1ULL << 61) + 1, raw(kMax)); },
       kLoss,
       "array length"},
      {"ArrayLengthAboveRemaining",
       [](I& f) { f.set_array("test.flags", GgufType::kFloat64, 4000, raw(kMax)); },
       kLoss,
       "array length"},
      {"StringArrayLengthHuge",
       [](I& f) { f.set_array("test.flags", GgufType::kString, kMax / 8, raw_string("x")); },
       kLoss,
       "array length"},
      {"StringInArrayTooLong",
       [](I& f) { f.set_array("test.flags", GgufType::kString, 1, raw(kMax) + "x"); },
       kLoss,
       "array string length: found the end of the file"},
      // Alignment.
      {"AlignmentZero",
       [](I& f) { f.set("general.alignment", GgufType::kUint32, raw<uint32_t>(0)); },
       kLoss,
       "\"general.alignment\" value: found 0, expected a power of two"},
      {"AlignmentNotPowerOfTwo",
       [](I& f) { f.set("general.alignment", GgufType::kUint32, raw<uint32_t>(48)); },
       kLoss,
       "found 48"},
      {"AlignmentTooSmall",
       [](I& f) { f.set("general.alignment", GgufType::kUint32, raw<uint32_t>(4)); },
       kLoss,
       "found 4"},
      {"AlignmentTooBig",
       [](I& f) { f.set("general.alignment", GgufType::kUint32, raw<uint32_t>(1U << 31)); },
       kLoss,
       "found 2147483648"},
      {"AlignmentOfWrongType",
       [](I& f) { f.set_string("general.alignment", "32"); },
       kLoss,
       "\"general.alignment\" type: found string, expected uint32"},
      {"AlignmentOfWrongWidth",
       [](I& f) { f.set("general.alignment", GgufType::kUint64, raw<uint64_t>(32)); },
       kLoss,
       "found uint64, expected uint32"},
      {"AlignmentAboveOffsets",
       [](I& f) { f.set("general.alignment", GgufType::kUint32, raw<uint32_t>(64)); },
       kLoss,
       "offset: found 96, expected a multiple of 64"},
      // Tensor infos.
      {"TensorNameEmpty",
       [](I& f) { f.tensors[1].name = ""; },
       kLoss,
       "tensor 1 name: found a length of 0"},
      {"TensorNameTooLong",
       [](I& f) { f.tensors[1].name = std::string(256, 't'); },
       kLoss,
       "expected 1 to 255 bytes"},
      {"TensorNameDuplicate",
       [](I& f) { f.tensors[2].name = "token_embd.weight"; },
       kLoss,
       "tensor 2 \"token_embd.weight\" name: found a duplicate"},
      {"DimsNone",
       [](I& f) {
         f.tensors[0].num_dims = 0;
         f.tensors[0].dims.clear();
       },
       kLoss,
       "n_dims: found 0, expected 1 to 4"},
      {"DimsFive",
       [](I& f) {
         f.tensors[0].num_dims = 5;
         f.tensors[0].dims = {32, 1, 1, 1, 1};
       },
       kLoss,
       "n_dims: found 5"},
      {"DimsHuge",
       [](I& f) { f.tensors[0].num_dims = 0xffffffff; },
       kLoss,
       "n_dims: found 4294967295"},
      {"DimsMissing", [](I& f) { f.tensors[3].num_dims = 4; }, kLoss, "tensor 3"},
      {"DimZeroFirst",
       [](I& f) { f.tensors[3].dims = {0}; },
       kLoss,
       "dims: found 0, expected at least 1"},
      {"DimZeroSecond",
       [](I& f) {
         f.tensors[0].dims = {32, 0};
       },
       kLoss,
       "dims: found 0"},
      {"RowsOfPartialQ8Blocks",
       [](I& f) {
         f.tensors[0].dims = {33, 2};
       },
       kLoss,
       "dims: found rows of 33 elements, expected a multiple of 32 for Q8_0"},
      {"RowsOfPartialQ4Blocks",
       [](I& f) {
         f.tensors[1].dims = {16, 1};
       },
       kLoss,
       "expected a multiple of 32 for Q4_1"},
      {"DimsProductWraps",
       [](I& f) {
         f.tensors[0].dims = {1ULL << 40, 1ULL << 40};
       },
       kLoss,
       "dims: found a product above 2^64"},
      {"DimsProductWrapsToSmall",
       [](I& f) {
         f.tensors[0] = {"wrap", 3, {4194305, 4194305, 211106198978564}, 1, 0};
       },
       kLoss,
       "a product above 2^64"},
      {"DimsBytesWrap",
       [](I& f) { f.tensors[3].dims = {1ULL << 62}; },
       kLoss,
       "a product above 2^64"},
      {"DimsMaximal",
       [](I& f) {
         f.tensors[3] = {"max", 4, {kMax, kMax, kMax, kMax}, 0, 192};
       },
       kLoss,
       "a product above 2^64"},
      {"TypeIq2Xxs",
       [](I& f) { f.tensors[1].type = 16; },
       kUnsupported,
       "\"blk.0.attn_q.weight\" type: found IQ2_XXS (id 16), expected one of F32, F16, BF16, "
       "Q4_0, "},
      {"TypeQ8K", [](I& f) { f.tensors[1].type = 15; }, kUnsupported, "found Q8_K (id 15)"},
      {"RowsOfHalfASuperBlock",
       [](I& f) { f.tensors[1].type = 12; },
       kLoss,
       "\"blk.0.attn_q.weight\" dims: found rows of 64 elements, expected a multiple of 256 for "
       "Q4_K"},
      {"TypeRemoved", [](I& f) { f.tensors[1].type = 4; }, kUnsupported, "found unknown id 4,"},
      {"TypeUnknown",
       [](I& f) { f.tensors[1].type = 1000; },
       kUnsupported,
       "found unknown id 1000"},
      // Tensor data.
      {"OffsetUnaligned",
       [](I& f) { f.tensors[1].offset = 97; },
       kLoss,
       "offset: found 97, expected a multiple of 32"},
      {"OffsetBehindTheEnd",
       [](I& f) { f.tensors[3].offset = 224; },
       kLoss,
       "\"output_norm.weight\" data: found 8 bytes at data offset 224"},
      {"OffsetMaximal",
       [](I& f) { f.tensors[3].offset = kMax - 31; },
       kLoss,
       "data offset 18446744073709551584"},
      {"OffsetPlusBytesWraps",
       [](I& f) {
         f.tensors[3].offset = kMax - 31;
         f.tensors[3].dims = {16};
       },
       kLoss,
       "found 64 bytes at data offset 18446744073709551584"},
      {"DataLongerThanTheFile",
       [](I& f) { f.tensors[3].dims = {3}; },
       kLoss,
       "found 12 bytes at data offset 192"},
      {"DataMuchLongerThanTheFile",
       [](I& f) { f.tensors[3].dims = {1ULL << 60}; },
       kLoss,
       "found 4611686018427387904 bytes"},
      {"DataMissing", [](I& f) { f.data_bytes = 0; }, kLoss, "tensor 0 \"token_embd.weight\" data"},
      {"DataOverlapsTheNext",
       [](I& f) { f.tensors[1].offset = 64; },
       kLoss,
       "\"blk.0.attn_q.weight\" offset: found 64, expected no overlap with \"token_embd.weight\""},
      {"DataShared", [](I& f) { f.tensors[2].offset = 192; }, kLoss, "expected no overlap with"},
      {"DataInsideAnother",
       [](I& f) {
         f.tensors[0].dims = {32, 5};
       },
       kLoss,
       "\"blk.0.attn_q.weight\" offset: found 96, expected no overlap"},
  };
  return cases;
}

class CorruptGguf : public testing::TestWithParam<CorruptCase> {};

INSTANTIATE_TEST_SUITE_P(Fields,
                         CorruptGguf,
                         testing::ValuesIn(corrupt_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CorruptGguf, IsAnErrorThatNamesTheField) {
  GgufImage image = small_gguf();
  GetParam().corrupt(image);
  const std::string bytes = image.bytes();
  CorruptFile corrupt(std::string("GGUF ") + GetParam().name, bytes.size());
  const auto file = GgufFile::parse(as_span(bytes), "model.gguf");
  ASSERT_FALSE(file.has_value());
  corrupt.refused(file.error(), "model.gguf", GetParam().message);
  EXPECT_EQ(file.error().code, GetParam().code) << file.error().message;
  const std::string& message = file.error().message;
  EXPECT_NE(message.find(": found "), std::string::npos) << message;
  EXPECT_NE(message.find(", expected "), std::string::npos) << message;
}

GgufImage& needs_scores(GgufImage& file) {
  file.set_string("tokenizer.ggml.model", "llama");
  return file;
}

const std::vector<CorruptCase>& corrupt_vocabularies() {
  using I = GgufImage;
  static const std::vector<CorruptCase> cases = {
      {"ModelMissing",
       [](I& f) { f.erase("tokenizer.ggml.model"); },
       kLoss,
       "\"tokenizer.ggml.model\": found no such key, expected a string"},
      {"ModelOfWrongType",
       [](I& f) { f.set("tokenizer.ggml.model", GgufType::kUint8, "x"); },
       kLoss,
       "found uint8, expected a string"},
      {"PreOfWrongType",
       [](I& f) { f.set("tokenizer.ggml.pre", GgufType::kUint8, "x"); },
       kLoss,
       "\"tokenizer.ggml.pre\": found uint8"},
      {"TokensMissing",
       [](I& f) { f.erase("tokenizer.ggml.tokens"); },
       kLoss,
       "\"tokenizer.ggml.tokens\": found no such key"},
      {"TokensNotAnArray",
       [](I& f) { f.set_string("tokenizer.ggml.tokens", "a b"); },
       kLoss,
       "found string, expected array of string"},
      {"TokensOfNumbers",
       [](I& f) { f.set_array("tokenizer.ggml.tokens", GgufType::kUint8, 4, "abcd"); },
       kLoss,
       "found array of uint8, expected array of string"},
      {"TokensNone",
       [](I& f) { f.set("tokenizer.ggml.tokens", GgufType::kArray, raw_strings({})); },
       kLoss,
       "found 0 tokens, expected at least 1"},
      {"ScoresOfBytes",
       [](I& f) {
         needs_scores(f).set_array("tokenizer.ggml.scores", GgufType::kUint8, 4, "abcd");
       },
       kLoss,
       "found array of uint8, expected array of float"},
      {"ScoresTooFew",
       [](I& f) {
         needs_scores(f).set_array("tokenizer.ggml.scores", GgufType::kFloat32, 1, raw(1.0F));
       },
       kLoss,
       "found 1 elements, expected one per token: 4"},
      {"ScoresNan",
       [](I& f) {
         needs_scores(f).set_array("tokenizer.ggml.scores",
                                   GgufType::kFloat64,
                                   4,
                                   raw(0.0) + raw(0.0) + raw(__builtin_nan("")) + raw(0.0));
       },
       kLoss,
       "nan for token 2, expected a finite float"},
      {"ScoresBeyondFloat",
       [](I& f) {
         needs_scores(f).set_array("tokenizer.ggml.scores",
                                   GgufType::kFloat64,
                                   4,
                                   raw(0.0) + raw(1e300) + raw(0.0) + raw(0.0));
       },
       kLoss,
       "1e+300 for token 1"},
      {"TokenTypesOfFloats",
       [](I& f) {
         f.set_array("tokenizer.ggml.token_type", GgufType::kFloat32, 4, std::string(16, '\0'));
       },
       kLoss,
       "found array of float32, expected array of integer"},
      {"TokenTypesTooMany",
       [](I& f) { f.set_array("tokenizer.ggml.token_type", GgufType::kInt8, 5, "\1\1\1\1\1"); },
       kLoss,
       "found 5 elements, expected one per token: 4"},
      {"MergesMissing",
       [](I& f) { f.erase("tokenizer.ggml.merges"); },
       kLoss,
       "\"tokenizer.ggml.merges\": found no such key, expected those that make"},
      {"MergesNone",
       [](I& f) { f.set("tokenizer.ggml.merges", GgufType::kArray, raw_strings({})); },
       kLoss,
       "\"tokenizer.ggml.merges\": found 0 merges, expected those that make"},
      {"MergesOfNumbers",
       [](I& f) { f.set_array("tokenizer.ggml.merges", GgufType::kBool, 1, "\1"); },
       kLoss,
       "\"tokenizer.ggml.merges\": found array of bool"},
      {"BosOutOfRange",
       [](I& f) { f.set("tokenizer.ggml.bos_token_id", GgufType::kUint32, raw<uint32_t>(4)); },
       kLoss,
       "\"tokenizer.ggml.bos_token_id\": found 4, expected an id below 4"},
      {"EosBehindTextsNegative",
       [](I& f) {
         f.set("tokenizer.ggml.eos_token_id", GgufType::kInt32, raw<int32_t>(-1));
         f.set("tokenizer.ggml.add_eos_token", GgufType::kBool, "\1");
       },
       kLoss,
       "\"tokenizer.ggml.eos_token_id\": found -1, expected an id below 4"},
      {"EotOfWrongType",
       [](I& f) { f.set_string("tokenizer.ggml.eot_token_id", "2"); },
       kLoss,
       "\"tokenizer.ggml.eot_token_id\": found string"},
      {"BosMaximal",
       [](I& f) { f.set("tokenizer.ggml.bos_token_id", GgufType::kUint64, raw(kMax)); },
       kLoss,
       "found 18446744073709551615, expected an id below 4"},
      {"PaddingOfWrongType",
       [](I& f) { f.set("tokenizer.ggml.padding_token_id", GgufType::kFloat32, raw(1.0F)); },
       kLoss,
       "\"tokenizer.ggml.padding_token_id\": found float32"},
      {"AddBosOfWrongType",
       [](I& f) { f.set("tokenizer.ggml.add_bos_token", GgufType::kUint8, "\1"); },
       kLoss,
       "\"tokenizer.ggml.add_bos_token\": found uint8, expected a bool"},
  };
  return cases;
}

class CorruptVocabularyTest : public testing::TestWithParam<CorruptCase> {};

INSTANTIATE_TEST_SUITE_P(Fields,
                         CorruptVocabularyTest,
                         testing::ValuesIn(corrupt_vocabularies()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CorruptVocabularyTest, IsAnErrorThatNamesTheKey) {
  GgufImage image = small_gguf();
  GetParam().corrupt(image);
  const std::string bytes = image.bytes();
  const auto file = GgufFile::parse(as_span(bytes), "model.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  CorruptFile corrupt(std::string("vocabulary ") + GetParam().name, bytes.size());
  const auto vocabulary = read_vocabulary(**file);
  ASSERT_FALSE(vocabulary.has_value());
  EXPECT_EQ(vocabulary.error().code, GetParam().code);
  corrupt.refused(vocabulary.error(), "model.gguf", GetParam().message);
}

}  // namespace
}  // namespace sluice
