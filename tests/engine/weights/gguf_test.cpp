// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "engine/tokenizer/files/named_templates.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/describe_gguf.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/captured_log.h"
#include "tests/support/gguf_tensor.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

std::unique_ptr<GgufFile> parse_or_die(const std::string& bytes) {
  auto file = GgufFile::parse(as_span(bytes), "model.gguf");
  EXPECT_TRUE(file.has_value()) << file.error().message;
  return file ? std::move(*file) : nullptr;
}

const std::string& tiny_path() {
  static const std::string path = golden_folder() + "/tiny/tiny-llama.gguf";
  return path;
}

TEST(Gguf, ReadsEveryScalarType) {
  GgufImage image;
  image.set("u8", GgufType::kUint8, raw<uint8_t>(200));
  image.set("i8", GgufType::kInt8, raw<int8_t>(-100));
  image.set("u16", GgufType::kUint16, raw<uint16_t>(60000));
  image.set("i16", GgufType::kInt16, raw<int16_t>(-30000));
  image.set("u32", GgufType::kUint32, raw<uint32_t>(4000000000U));
  image.set("i32", GgufType::kInt32, raw<int32_t>(-2000000000));
  image.set("u64", GgufType::kUint64, raw<uint64_t>(1ULL << 63));
  image.set("i64", GgufType::kInt64, raw<int64_t>(-(1LL << 62)));
  image.set("f32", GgufType::kFloat32, raw(1.5F));
  image.set("f64", GgufType::kFloat64, raw(-0.1));
  image.set("bool", GgufType::kBool, "\1");
  image.set_string("text", "x\ny");
  const std::string bytes = image.bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->get_uint("u8"), 200U);
  EXPECT_EQ(std::get<int64_t>(file->find("i8")->value), -100);
  EXPECT_EQ(file->get_uint("u16"), 60000U);
  EXPECT_EQ(std::get<int64_t>(file->find("i16")->value), -30000);
  EXPECT_EQ(file->get_uint("u32"), 4000000000U);
  EXPECT_EQ(std::get<int64_t>(file->find("i32")->value), -2000000000);
  EXPECT_EQ(file->get_uint("u64"), 1ULL << 63);
  EXPECT_EQ(std::get<int64_t>(file->find("i64")->value), -(1LL << 62));
  EXPECT_EQ(file->get_float("f32"), 1.5);
  EXPECT_EQ(file->get_float("f64"), -0.1);
  EXPECT_EQ(file->get_bool_or("bool", false), true);
  EXPECT_EQ(file->get_string("text"), "x\ny");
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Gguf, ReadsArraysOfEveryElementType) {
  GgufImage image;
  image.set_array("u8", GgufType::kUint8, 2, "\1\xff");
  image.set_array("i8", GgufType::kInt8, 2, "\1\xff");
  image.set_array("u16", GgufType::kUint16, 1, raw<uint16_t>(65535));
  image.set_array("i16", GgufType::kInt16, 1, raw<int16_t>(-1));
  image.set_array("u32", GgufType::kUint32, 1, raw<uint32_t>(0xffffffff));
  image.set_array("i32", GgufType::kInt32, 1, raw<int32_t>(-5));
  image.set_array("u64", GgufType::kUint64, 1, raw<uint64_t>(1ULL << 40));
  image.set_array("i64", GgufType::kInt64, 1, raw<int64_t>(-(1LL << 40)));
  image.set_array("f32", GgufType::kFloat32, 1, raw(0.5F));
  image.set_array("f64", GgufType::kFloat64, 1, raw(0.1));
  image.set_array("bool", GgufType::kBool, 1, "\1");
  image.set_array("empty", GgufType::kString, 0, "");
  image.set("text", GgufType::kArray, raw_strings({"", "a", "bc"}));
  const std::string bytes = image.bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  const auto array = [&](const char* key) { return std::get<GgufArray>(file->find(key)->value); };
  EXPECT_EQ(array("u8").number(1), 255);
  EXPECT_EQ(array("i8").number(1), -1);
  EXPECT_EQ(array("u16").number(0), 65535);
  EXPECT_EQ(array("i16").number(0), -1);
  EXPECT_EQ(array("u32").number(0), 4294967295.0);
  EXPECT_EQ(array("i32").number(0), -5);
  EXPECT_EQ(array("u64").number(0), 0x1p40);
  EXPECT_EQ(array("i64").number(0), -0x1p40);
  EXPECT_EQ(array("f32").number(0), 0.5);
  EXPECT_EQ(array("f64").number(0), 0.1);
  EXPECT_EQ(array("bool").number(0), 1);
  EXPECT_TRUE(array("empty").strings().empty());
  EXPECT_EQ(array("text").strings(), (std::vector<std::string_view>{"", "a", "bc"}));
}

TEST(Gguf, PlacesTensorsInTheDataSection) {
  const std::string bytes = small_gguf().bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(file->tensors().size(), 4U);
  const std::byte* data = as_span(bytes).data() + bytes.size() - 200;
  const GgufTensor* q = find_tensor(*file, "blk.0.attn_q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->format, WeightFormat::kQ4_1);
  EXPECT_EQ(q->num_dims, 2U);
  EXPECT_EQ(q->dims[0], 64U);
  EXPECT_EQ(q->dims[1], 1U);
  EXPECT_EQ(q->dims[3], 1U);
  EXPECT_EQ(q->data.data(), data + 96);
  EXPECT_EQ(q->data.size(), 40U);
  EXPECT_EQ(find_tensor(*file, "output_norm.weight")->data.size(), 8U);
}

TEST(Gguf, UsesTheFilesAlignment) {
  GgufImage image;
  image.alignment = 64;
  image.set("general.alignment", GgufType::kUint32, raw<uint32_t>(64));
  image.tensors = {{"a", 1, {1}, 0, 0}, {"b", 1, {1}, 0, 64}};
  image.data_bytes = 68;
  const std::string bytes = image.bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->alignment(), 64U);
  EXPECT_EQ(find_tensor(*file, "b")->data.data(), as_span(bytes).data() + bytes.size() - 4);
}

TEST(Gguf, TensorsMayLieInAnyOrderAndWithGaps) {
  GgufImage image = small_gguf();
  std::swap(image.tensors[0], image.tensors[3]);
  image.tensors[1].offset = 256;
  image.data_bytes = 400;
  const std::string bytes = image.bytes();
  ASSERT_NE(parse_or_die(bytes), nullptr);
}

TEST(Gguf, TruncationAtEveryByteIsAnError) {
  const std::string bytes = small_gguf().bytes();
  ASSERT_NE(parse_or_die(bytes), nullptr);
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exact size, so that the sanitizer sees a read past its end.
    const std::vector<std::byte> cut(as_span(bytes).begin(),
                                     as_span(bytes).begin() + static_cast<std::ptrdiff_t>(size));
    const auto file = GgufFile::parse(cut, "cut.gguf");
    ASSERT_FALSE(file.has_value()) << size;
    EXPECT_EQ(file.error().code, ErrorCode::kDataLoss) << size;
  }
}

TEST(Gguf, EveryByteChangedNeverCrashes) {
  const std::string bytes = small_gguf().bytes();
  const size_t header_bytes = small_gguf().header().size();
  size_t num_accepted = 0;
  for (size_t i = 0; i < header_bytes; ++i) {
    for (const unsigned char value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(value);
      const auto file = GgufFile::parse(as_span(changed), "changed.gguf");
      if (!file) continue;
      ++num_accepted;
      logged_by([&] { (void)read_vocabulary(**file).has_value(); });
      EXPECT_FALSE(describe_gguf(**file, true).empty());
    }
  }
  EXPECT_GT(num_accepted, 0U);  // letters of names may change
}

TEST(Gguf, TypedAccessNamesTheKeyAndBothTypes) {
  const std::string bytes = small_gguf().bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->get_uint("test.signed"), 7U);
  const auto negative = file->get_uint("test.negative");
  ASSERT_FALSE(negative.has_value());
  EXPECT_EQ(negative.error().message,
            "model.gguf: metadata \"test.negative\": found -7, expected an integer of at least 0");
  const auto text = file->get_uint("general.architecture");
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().message,
            "model.gguf: metadata \"general.architecture\": found string, expected an integer");
  EXPECT_EQ(text.error().code, ErrorCode::kDataLoss);
  EXPECT_FALSE(file->get_float("llama.block_count").has_value());
  EXPECT_FALSE(file->get_string("llama.block_count").has_value());
  EXPECT_FALSE(file->get_string("absent").has_value());
  EXPECT_FALSE(file->get_float("absent").has_value());
}

TEST(Gguf, DefaultsStandOnlyForAbsentKeys) {
  const std::string bytes = small_gguf().bytes();
  const auto file = parse_or_die(bytes);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->get_uint_or("absent", 5), 5U);
  EXPECT_EQ(file->get_float_or("absent", 0.5), 0.5);
  EXPECT_EQ(file->get_bool_or("absent", true), true);
  EXPECT_EQ(file->get_uint_or("llama.block_count", 5), 1U);
  EXPECT_FALSE(file->get_uint_or("general.architecture", 5).has_value());
  EXPECT_FALSE(file->get_float_or("general.architecture", 5).has_value());
  EXPECT_FALSE(file->get_bool_or("general.architecture", true).has_value());
}

// Ollama's files of multimodal models have their towers.
TEST(GgufOpen, PartsBesideTheTextModelAreLeftOut) {
  GgufImage image = small_gguf();
  image.tensors.push_back({"v.blk.0.attn_q.weight", 1, {2}, 0, 224});
  image.tensors.push_back({"mm.input_projection.weight", 1, {2}, 0, 256});
  image.tensors.push_back({"a.conv1d.0.weight", 1, {2}, 0, 288});
  image.data_bytes = 296;
  const testing::TemporaryFolder folder;
  std::ofstream(folder.at("model.gguf"), std::ios::binary) << image.bytes();
  std::vector<std::string> names;
  const std::string log = logged_by([&] {
    const auto checkpoint = Checkpoint::open(folder.at("model.gguf"));
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    for (const CheckpointTensor& tensor : (*checkpoint)->tensors()) names.push_back(tensor.name);
    EXPECT_EQ((*checkpoint)->left_out().size(), 3U);
  });
  EXPECT_EQ(names.size(), small_gguf().tensors.size());
  EXPECT_NE(log.find("part=\"the vision tower\" tensors_not_read=1"), std::string::npos) << log;
}

TEST(GgufOpen, MapsTheTinyModel) {
  const auto file = GgufFile::open(tiny_path());
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ((*file)->get_string("general.architecture"), "llama");
  EXPECT_EQ((*file)->get_uint("llama.block_count"), 3U);
  EXPECT_EQ((*file)->tensors().size(), 3U * 9 + 2);
  const GgufTensor* embedding = find_tensor(**file, "token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dims[0], 64U);
  EXPECT_EQ(embedding->dims[1], 487U);
  EXPECT_EQ(static_cast<int64_t>(embedding->data.size()), 487 * row_bytes(WeightFormat::kQ8_0, 64));
  std::set<WeightFormat> seen;
  for (const GgufTensor& tensor : (*file)->tensors()) {
    seen.insert(tensor.format);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % 32, 0U) << tensor.name;
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST(GgufOpen, AMissingFileIsNotFound) {
  const auto file = GgufFile::open(golden_folder() + "/no-such-file.gguf");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_NE(file.error().message.find("no-such-file.gguf: open: found"), std::string::npos);
}

TEST(GgufOpen, ADirectoryAPipeAndAnEmptyFileAreErrors) {
  EXPECT_EQ(GgufFile::open(golden_folder()).error().code, ErrorCode::kDataLoss);
  const testing::TemporaryFolder folder;
  const std::string pipe = folder.at("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::open(pipe).error().code, ErrorCode::kDataLoss);
  const std::string empty = folder.at("empty");
  std::ofstream(empty).close();
  EXPECT_EQ(GgufFile::open(empty).error().code, ErrorCode::kDataLoss);
}

TEST(GgufVocabulary, ReadsTheTinyModels) {
  const auto file = GgufFile::open(tiny_path());
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const auto vocabulary = read_vocabulary(**file);
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "smollm");
  ASSERT_EQ(vocabulary->tokens.size(), 487U);
  EXPECT_EQ(vocabulary->tokens[1], "<|im_start|>");
  EXPECT_EQ(vocabulary->tokens[3], "!");
  EXPECT_EQ(vocabulary->token_types[2], TokenType::kControl);
  EXPECT_EQ(vocabulary->token_types[3], TokenType::kNormal);
  EXPECT_EQ(vocabulary->merges.size(), 487U - 259U);
  EXPECT_TRUE(vocabulary->scores.empty());
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_EQ(vocabulary->eos, 2);
  EXPECT_EQ(vocabulary->eot, kInvalidToken);
  EXPECT_EQ(vocabulary->unknown, 0);
  EXPECT_EQ(vocabulary->padding, 2);
  EXPECT_FALSE(vocabulary->add_bos);
}

TEST(GgufVocabulary, OptionalKeysMayBeAbsent) {
  GgufImage image;
  image.set_string("tokenizer.ggml.model", "llama");
  image.set("tokenizer.ggml.tokens", GgufType::kArray, raw_strings({"a"}));
  const std::string bytes = image.bytes();
  const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pre, "");
  EXPECT_EQ(vocabulary->bos, kInvalidToken);
  EXPECT_TRUE(vocabulary->token_types.empty());
  EXPECT_TRUE(vocabulary->merges.empty());
}

TEST(GgufVocabulary, TemplatesWithNamesAreOneThatChooses) {
  const testing::TemporaryFolder folder;
  GgufImage image = small_gguf();
  image.set_string("tokenizer.chat_template", "D");
  image.set_string("tokenizer.chat_template.tool_use", "U");
  image.set_string("tokenizer.chat_template.rag", "R");
  std::ofstream(folder.at("model.gguf"), std::ios::binary) << image.bytes();
  const auto checkpoint = open_gguf_checkpoint(folder.at("model.gguf"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto text = (*checkpoint)->text();
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(text->chat_template, joined_templates({.standard = "D", .tool_use = "U", .rag = "R"}));
}

TEST(GgufVocabulary, ReadsScoresTypesAndFlags) {
  GgufImage image = small_gguf();
  image.set_string("tokenizer.ggml.model", "llama");
  const std::string bytes = image.bytes();
  const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->scores, (std::vector<float>{0, -1, -2, -3}));
  EXPECT_EQ(vocabulary->token_types[0], TokenType::kControl);
  EXPECT_TRUE(vocabulary->add_bos);
  EXPECT_EQ(vocabulary->bos, 1);
  EXPECT_EQ(vocabulary->eos, 0);
}

TEST(GgufVocabulary, TextsBeginWithBosWhereThePretokenizerSaysSo) {
  const auto begins = [](const std::string& model, const std::string& pre) {
    GgufImage image = small_gguf();
    image.erase("tokenizer.ggml.add_bos_token");
    image.set_string("tokenizer.ggml.model", model);
    image.set_string("tokenizer.ggml.pre", pre);
    const std::string bytes = image.bytes();
    const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
    EXPECT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
    return vocabulary && vocabulary->add_bos;
  };
  for (const char* pre : {"falcon-h1",
                          "falcon3",
                          "jina-v5-nano",
                          "lfm2",
                          "llama-bpe",
                          "llama-v3",
                          "llama3",
                          "midm-2.0",
                          "pixtral",
                          "tekken"}) {
    EXPECT_TRUE(begins("gpt2", pre)) << pre;
  }
  for (const char* pre : {"gpt-2", "gpt-4o", "llama4", "minicpm5", "qwen2"}) {
    EXPECT_FALSE(begins("gpt2", pre)) << pre;
  }
  EXPECT_TRUE(begins("gemma4", "gemma4"));
}

// Ollama's files of Mistral's newer models.
TEST(GgufVocabulary, MistralsWithoutAPretokenizersNameHaveTekken) {
  const auto pre_of = [](const char* architecture, const char* pre) {
    GgufImage image = small_gguf();
    image.set_string("general.architecture", architecture);
    image.set_string("tokenizer.ggml.pre", pre);
    const std::string bytes = image.bytes();
    return read_vocabulary(*parse_or_die(bytes)).value().pre;
  };
  EXPECT_EQ(pre_of("mistral3", "default"), "tekken");
  EXPECT_EQ(pre_of("mistral3", "qwen2"), "qwen2");
  EXPECT_EQ(pre_of("llama", "default"), "default");
}

// Ollama's files of Gemma 4 have merges, and the model's name of a vocabulary of scores.
TEST(GgufVocabulary, Gemma4sIsKnownByItsPretokenizer) {
  GgufImage image = small_gguf();
  image.set_string("tokenizer.ggml.model", "llama");
  image.set_string("tokenizer.ggml.pre", "gemma4");
  image.erase("tokenizer.ggml.scores");
  const std::string bytes = image.bytes();
  const auto tokenizer = create_tokenizer(read_vocabulary(*parse_or_die(bytes)).value());
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  std::vector<TokenId> ids;
  (*tokenizer)->encode("ab", SpecialText::kParse, ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{3}));
}

// GLM-4.5 has <|endoftext|>, <|user|> and, after calls of tools, <|observation|>.
TEST(GgufVocabulary, ReadsTheEndsOfTurnsAndOfMessages) {
  GgufImage image = small_gguf();
  image.set("tokenizer.ggml.eot_token_id", GgufType::kUint32, raw<uint32_t>(2));
  image.set("tokenizer.ggml.eom_token_id", GgufType::kUint32, raw<uint32_t>(3));
  const std::string bytes = image.bytes();
  const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->eot, 2);
  EXPECT_EQ(vocabulary->eom, 3);
}

// llama.cpp's converters write -1, or its 32 bits, for "none".
TEST(GgufVocabulary, IdsThatNoTokenHasCountAsNotGiven) {
  struct Id {
    const char* name;
    TokenId Vocabulary::*id;
  };

  struct Found {
    GgufType type;
    std::string value;
    const char* text;
  };

  const Id ids[] = {{"padding", &Vocabulary::padding},
                    {"unknown", &Vocabulary::unknown},
                    {"eos", &Vocabulary::eos},
                    {"eot", &Vocabulary::eot},
                    {"eom", &Vocabulary::eom},
                    {"bos", &Vocabulary::bos}};
  const Found values[] = {{GgufType::kUint32, raw<uint32_t>(UINT32_MAX), "4294967295"},
                          {GgufType::kInt32, raw<int32_t>(-1), "-1"},
                          {GgufType::kInt64, raw<int64_t>(-7), "-7"},
                          {GgufType::kUint64, raw<uint64_t>(UINT64_MAX), "18446744073709551615"},
                          {GgufType::kUint32, raw<uint32_t>(4), "4"}};
  for (const Id& id : ids) {
    for (const Found& found : values) {
      const std::string key = "tokenizer.ggml." + std::string(id.name) + "_token_id";
      GgufImage image = small_gguf();
      image.set("tokenizer.ggml.add_bos_token", GgufType::kBool, std::string(1, '\0'));
      image.set(key, found.type, found.value);
      const std::string bytes = image.bytes();
      const std::string log = logged_by([&] {
        const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
        ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
        EXPECT_EQ((*vocabulary).*id.id, kInvalidToken) << key;
      });
      EXPECT_NE(log.find("model.gguf"), std::string::npos) << log;
      EXPECT_NE(log.find("key=" + key + " found=" + found.text + " "), std::string::npos) << log;
      EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    }
  }
  // Other unused ids have no effect at all.
  GgufImage image = small_gguf();
  for (const char* name : {"seperator", "mask", "cls", "fim_pre", "eom"}) {
    image.set("tokenizer.ggml." + std::string(name) + "_token_id",
              GgufType::kUint32,
              raw<uint32_t>(UINT32_MAX));
  }
  const std::string bytes = image.bytes();
  EXPECT_TRUE(read_vocabulary(*parse_or_die(bytes)).has_value());
}

TEST(GgufVocabulary, TokensOfATypeThatIsNoneAreNormal) {
  for (const auto& [type, shown] : {std::pair(0, "0"), std::pair(-1, "-1"), std::pair(7, "7")}) {
    GgufImage image = small_gguf();
    const std::string odd = raw(static_cast<int8_t>(type));
    image.set_array("tokenizer.ggml.token_type", GgufType::kInt8, 4, "\3" + odd + odd + "\1");
    const std::string bytes = image.bytes();
    const std::string log = logged_by([&] {
      const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
      ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
      EXPECT_EQ(vocabulary->token_types[0], TokenType::kControl);
      EXPECT_EQ(vocabulary->token_types[1], TokenType::kNormal);
      EXPECT_EQ(vocabulary->token_types[2], TokenType::kNormal);
    });
    const std::string found = "found=\"type " + std::string(shown) + " for token 1\"";
    EXPECT_NE(log.find("key=tokenizer.ggml.token_type " + found), std::string::npos) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  }
}

TEST(GgufVocabulary, AnEmptyListOfTypesIsNone) {
  for (const GgufType type : {GgufType::kInt32, GgufType::kString}) {
    GgufImage image = small_gguf();
    image.set_array("tokenizer.ggml.token_type", type, 0, "");
    image.set_array("tokenizer.ggml.merges", GgufType::kUint8, 0, "");
    image.set("tokenizer.ggml.tokens", GgufType::kArray, raw_strings({"<", "a", "b", "\u0120"}));
    const std::string bytes = image.bytes();
    const std::string log = logged_by([&] {
      const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
      ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
      EXPECT_TRUE(vocabulary->token_types.empty());
      EXPECT_TRUE(vocabulary->merges.empty());
    });
    EXPECT_NE(log.find("key=tokenizer.ggml.token_type found=\"0 elements\""), std::string::npos)
        << log;
  }
}

// Lists that a kind of tokenizer does not use may have any contents.
TEST(GgufVocabulary, ListsThatTheTokenizerDoesNotUseAreNotRead) {
  for (const auto& [type, elements] :
       {std::pair(GgufType::kFloat32, raw(__builtin_nanf("")) + raw(0.0F)),
        std::pair(GgufType::kFloat64, raw(1e300) + raw(0.0)),
        std::pair(GgufType::kUint8, std::string("ab"))}) {
    GgufImage image = small_gguf();
    image.set_array("tokenizer.ggml.scores", type, 2, elements);
    image.set_array("tokenizer.ggml.precompiled_charsmap", GgufType::kBool, 1, "\1");
    const std::string bytes = image.bytes();
    const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
    ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
    EXPECT_TRUE(vocabulary->scores.empty());
    EXPECT_EQ(vocabulary->merges.size(), 1U);
  }
  GgufImage image = small_gguf();
  image.set_string("tokenizer.ggml.model", "llama");
  image.set_string("tokenizer.ggml.merges", "a b");
  const std::string bytes = image.bytes();
  const auto vocabulary = read_vocabulary(*parse_or_die(bytes));
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->scores.size(), 4U);
}

TEST(Gguf, VersionTwoHasTheLayoutOfThree) {
  GgufImage image = small_gguf();
  image.version = 2;
  const std::string bytes = image.bytes();
  const auto file = parse_or_die(bytes);
  const std::string newer = small_gguf().bytes();
  EXPECT_EQ(file->metadata().size(), parse_or_die(newer)->metadata().size());
  EXPECT_EQ(file->tensors().size(), 4U);
  EXPECT_NE(describe_gguf(*file, false).find("GGUF version 2,"), std::string::npos);
}

TEST(DescribeGguf, ShowsMetadataTensorsAndTotals) {
  const std::string bytes = small_gguf().bytes();
  const std::string text = describe_gguf(*parse_or_die(bytes), true);
  for (const char* part : {"model.gguf: GGUF version 3",
                           "metadata (17)",
                           "\"llama\"",
                           "-7",
                           "9.99999975e-06",
                           "bool[3]",
                           "[1, 0, 1]",
                           "[\"<e>\", \"a\", \"b\", \"ab\"]",
                           "tensors (4)",
                           "token_embd.weight    Q8_0    [32, 2]           68",
                           "blk.1.attn_q.weight",
                           "Q4_1    1 tensors  40 bytes"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(DescribeGguf, LeavesLaterLayersOutUnlessAsked) {
  const std::string bytes = small_gguf().bytes();
  const std::string text = describe_gguf(*parse_or_die(bytes), false);
  EXPECT_EQ(text.find("blk.1."), std::string::npos);
  EXPECT_NE(text.find("... 1 more in later layers"), std::string::npos) << text;
}

TEST(DescribeGguf, ShowsUtf8AndEscapesBytesThatAreNot) {
  GgufImage image;
  image.set_string("valid", "\u0120a\u20ac\U0001f600");
  image.set_string("invalid", "a\xff\xc2\x9b\xc0\xaf\xed\xa0\x80\xe2\x82");
  image.set_string("clipped", std::string(58, 'x') + "\u20ac\u20ac");
  const std::string bytes = image.bytes();
  const std::string text = describe_gguf(*parse_or_die(bytes), true);
  EXPECT_NE(text.find("\"\u0120a\u20ac\U0001f600\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"a\\xff\\xc2\\x9b\\xc0\\xaf\\xed\\xa0\\x80\\xe2\\x82\""), std::string::npos)
      << text;
  EXPECT_NE(text.find("x\u20ac\"...\n"), std::string::npos) << text;
}

TEST(DescribeGguf, ClipsLongValuesAndEscapesControlBytes) {
  GgufImage image;
  image.set_string("evil\x1b[2J", "\x1b[31m" + std::string(500, 'x'));
  image.set_array("long", GgufType::kUint8, 100, std::string(100, '\5'));
  const std::string bytes = image.bytes();
  const std::string text = describe_gguf(*parse_or_die(bytes), true);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find(std::string(61, 'x')), std::string::npos);
  EXPECT_NE(text.find("[5, 5, 5, 5, 5, 5, ...]"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
