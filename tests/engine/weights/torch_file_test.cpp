// SPDX-License-Identifier: Apache-2.0
// Files that torch.save() wrote (tests/golden/torch/make_torch.py), and such files with one thing
// wrong at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/torch_file.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::string golden(const std::string& name) {
  std::ifstream file(golden_folder() + "/torch/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    for (const int shift : {4, 0})
      text += "0123456789abcdef"[(static_cast<int>(byte) >> shift) & 15];
  }
  return text;
}

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

// Fails the test unless all data is in the file or in a copy.
void expect_places(const TorchFile& parsed, std::span<const std::byte> file) {
  for (const FileTensor& tensor : parsed.tensors) {
    const bool is_copy = std::ranges::any_of(
        parsed.copies, [&](const auto& copy) { return is_inside(tensor.data, copy); });
    EXPECT_TRUE(tensor.data.empty() || is_copy || is_inside(tensor.data, file)) << tensor.name;
  }
  EXPECT_TRUE(is_inside(parsed.header, file));
}

class TorchFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(TorchFiles, HaveTheTensorsThatPyTorchSays) {
  const std::string file = golden(GetParam());
  const auto parsed = parse_torch_file(bytes_of(file), "f");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  expect_places(*parsed, bytes_of(file));
  EXPECT_EQ(parsed->copies.size(), 3U);  // columns, transposed and turned
  const Json expected = Json::parse(golden("types.json"));
  ASSERT_EQ(parsed->tensors.size(), expected.size());
  std::map<std::string, const FileTensor*> by_name;
  for (size_t i = 0; i < expected.size(); ++i) {
    const FileTensor& tensor = parsed->tensors[i];
    by_name[tensor.name] = &tensor;
    EXPECT_EQ(tensor.name, expected[i]["name"].get<std::string>());
    EXPECT_EQ(tensor.type, element_type(expected[i]["dtype"].get<std::string>())) << tensor.name;
    EXPECT_EQ(tensor.shape, expected[i]["shape"].get<std::vector<uint64_t>>()) << tensor.name;
    if (tensor.name == "expanded") continue;
    EXPECT_EQ(hex_of(tensor.data), expected[i]["bytes"].get<std::string>()) << tensor.name;
  }
  EXPECT_EQ(by_name["tied"]->data.data(), by_name["whole"]->data.data());
  EXPECT_FALSE(by_name["of one"]->unreadable);
  for (const auto& [name, message] :
       {std::pair("type.f64", "dtype: found \"F64\", expected F32"),
        std::pair("expanded", "strides: found [0, 0] for shape [2, 3], expected tensors that"),
        std::pair("scalar", "shape: found 0 dimensions"),
        std::pair("empty", "shape: found 0 elements")}) {
    ASSERT_TRUE(by_name[name]->unreadable) << name;
    EXPECT_NE(by_name[name]->unreadable->message.find(std::string("f: tensor \"") + name +
                                                      "\": " + message),
              std::string::npos)
        << by_name[name]->unreadable->message;
  }
}

// No cut and no changed byte makes a reader that looks beside the file.
TEST_P(TorchFiles, AnyDamageIsSurvived) {
  const std::string whole = golden(GetParam());
  size_t num_refused = 0;
  const auto read = [&](const std::string& file) {
    const auto parsed = parse_torch_file(bytes_of(file), "f");
    if (parsed) return expect_places(*parsed, bytes_of(file));
    ++num_refused;
    EXPECT_TRUE(parsed.error().message.starts_with("f: ")) << parsed.error().message;
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  };
  for (size_t length = 0; length < whole.size(); length += 7) read(whole.substr(0, length));
  EXPECT_EQ(num_refused, (whole.size() + 6) / 7);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80}) {
      std::string file = whole;
      file[at] = static_cast<char>(file[at] ^ change);
      read(file);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, TorchFiles, ::testing::Values("types.bin", "types-legacy.bin"));

TEST(TorchFile, CodeIsNotRunAndRefusedByItsName) {
  for (const char* name : {"call.bin", "call-legacy.bin"}) {
    const std::string file = golden(name);
    const auto parsed = parse_torch_file(bytes_of(file), name);
    ASSERT_FALSE(parsed.has_value()) << name;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(parsed.error().message,
              std::string(name) +
                  ": pickle: found the name \"posix.system\", expected names of "
                  "tensors and their types alone: no code of a file is run");
  }
}

std::string little(uint64_t number, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

struct Record {
  std::string name;
  std::string bytes;
  uint16_t method = 0;
};

// An archive of records, which are stored as they are.
std::string zip_of(const std::vector<Record>& records) {
  std::string file;
  std::string directory;
  for (const Record& record : records) {
    const std::string sizes = little(record.bytes.size(), 4) + little(record.bytes.size(), 4);
    const std::string front = little(0, 2) + little(record.method, 2) + little(0, 8) + sizes;
    const size_t at = file.size();
    file += "PK\x03\x04" + little(0, 2) + front + little(record.name.size(), 2) + little(0, 2) +
            record.name + record.bytes;
    directory += "PK\x01\x02" + little(0, 4) + front + little(record.name.size(), 2) +
                 std::string(12, '\0') + little(at, 4) + record.name;
  }
  const size_t at = file.size();
  return file + directory + "PK\x05\x06" + little(0, 4) + little(records.size(), 2) +
         little(records.size(), 2) + little(directory.size(), 4) + little(at, 4) + little(0, 2);
}

std::string text(const std::string& name) { return "X" + little(name.size(), 4) + name; }

std::string tuple(const std::string& items) { return "(" + items + "t"; }

std::string storage(const std::string& type = "ctorch\nFloatStorage\n",
                    const std::string& elements = "K\x04") {
  return tuple(text("storage") + type + text("0") + text("cpu") + elements) + "Q";
}

// The arguments of a tensor [2, 2] from a storage of four elements.
std::string tensor_of(const std::string& from,
                      const std::string& first = std::string("K\0", 2),
                      const std::string& shape = "K\x02K\x02\x86",
                      const std::string& strides = "K\x02K\x01\x86") {
  return "ctorch._utils\n_rebuild_tensor_v2\n" + tuple(from + first + shape + strides + "\x89}") +
         "R";
}

std::string pickle_of(const std::string& items) { return "\x80\x02}(" + items + "u."; }

std::string archive_of(const std::string& pickle) {
  return zip_of({{"m/data.pkl", pickle}, {"m/data/0", std::string(16, '\0')}});
}

std::vector<CorruptText> corrupt_pickles() {
  const std::string good = text("a") + tensor_of(storage());
  const auto with = [](const std::string& value) { return pickle_of(text("a") + value); };
  return {
      {"nothing", "", "pickle: found its end"},
      {"no end", "\x80\x02}", "pickle: found its end"},
      {"protocol 4", "\x80\x04}.", "found protocol 4, expected 2"},
      {"an opcode of others", "\x80\x02\x93.", "found opcode 147"},
      {"an object by INST", "\x80\x02(ios\nsystem\n.", "found opcode 105"},
      {"an end without objects", "\x80\x02.", "an opcode without its operands"},
      {"a tuple without a mark", "\x80\x02t.", "an opcode without its mark"},
      {"a call of a text", "\x80\x02" + text("a") + ")R.", "a call of no name"},
      {"a call with a text",
       "\x80\x02" + std::string("ccollections\nOrderedDict\n") + text("a") + "R.",
       "a call of no name"},
      {"a dict with arguments",
       "\x80\x02" + std::string("ccollections\nOrderedDict\nN\x85R."),
       "a call with other arguments"},
      {"a call of a storage", with("ctorch\nFloatStorage\n)R"), "a call with other arguments"},
      {"a parameter of nothing",
       with("ctorch._utils\n_rebuild_parameter\nN\x85R"),
       "a call with other arguments"},
      {"a name of others", with("c__builtin__\neval\n"), "the name \"__builtin__.eval\""},
      {"a name without its end", "\x80\x02" + std::string("ctorch"), "found its end"},
      {"a place of the memo without object", "\x80\x02h\x07.", "an empty place of the memo"},
      {"a gap in the memo", "\x80\x02}r" + little(1 << 30, 4) + ".", "a gap in the memo"},
      {"an item of a text", "\x80\x02" + text("a") + "NNs.", "items of no list or dict"},
      {"half an item", "\x80\x02}(Nu.", "items of no list or dict"},
      {"a text past the end", "\x80\x02X" + little(0xffffffff, 4) + "a.", "found its end"},
      {"a list as root", "\x80\x02].", "found no dict"},
      {"a number as name",
       pickle_of("K\x01" + tensor_of(storage())),
       "entry \"\": found no tensor"},
      {"a number as tensor", with("K\x01"), "entry \"a\": found no tensor"},
      {"a nested dict", with("}"), "entry \"a\": found no tensor"},
      {"a name twice", pickle_of(good + good), "the name twice"},
      {"a reference to a text", with(text("0") + "Q"), "a reference to no storage"},
      {"a storage of no type", with(storage("N")), "a reference to no storage"},
      {"a storage of negative size",
       with(storage("ctorch\nFloatStorage\n", "J\xff\xff\xff\xff")),
       "a reference to no storage"},
      {"a view of a storage",
       with(storage("ctorch\nFloatStorage\n", "K\x04K\x01")),
       "found a view of a storage"},
      {"a tensor of a text", with(tensor_of(text("0"))), "a tensor of other arguments"},
      {"a negative place", with(tensor_of(storage(), "J\xff\xff\xff\xff")), "other arguments"},
      {"fewer strides",
       with(tensor_of(storage(), "K\x01", "K\x02K\x02\x86", "K\x02\x85")),
       "other"},
      {"a size that is a text",
       with(tensor_of(storage(), "K\x01", text("2") + "\x85", "K\x01\x85")),
       "other arguments"},
      {"a storage of another size",
       with(tensor_of(storage("ctorch\nFloatStorage\n", "K\x05"))),
       "a storage of 16 bytes, expected 5 elements of 4 bytes"},
      {"a storage of another type",
       with(tensor_of(storage("ctorch\nDoubleStorage\n"))),
       "expected 4 elements of 8 bytes"},
      {"an element past the end",
       with(tensor_of(storage(), "K\x01")),
       "shape [2, 2] with strides [2, 1] from 1, expected elements of the 4 of its storage"},
      {"elements past 64 bits",
       with(tensor_of(storage(),
                      "K\x01",
                      "\x8a\x08" + little(uint64_t{1} << 62, 8) + "K\x08\x86",
                      "K\x01K\x01\x86")),
       "expected elements of the 4"},
      {"strides past 64 bits",
       with(tensor_of(storage(),
                      "K\x01",
                      "K\x04K\x02\x86",
                      "\x8a\x08" + little(uint64_t{1} << 62, 8) + "K\x01\x86")),
       "expected elements of the 4"},
  };
}

TEST(TorchFile, EveryCorruptPickleGetsItsLine) {
  const std::string good = archive_of(pickle_of(text("a") + tensor_of(storage())));
  const auto whole = parse_torch_file(bytes_of(good), "f");
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->tensors.at(0).data.size(), 16U);
  for (const CorruptText& c : corrupt_pickles()) {
    const std::string file = archive_of(c.text);
    CorruptFile corrupt("pickle: " + c.what, file.size());
    const auto parsed = parse_torch_file(bytes_of(file), "m.bin");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "m.bin", c.message);
  }
}

TEST(TorchFile, EveryCorruptArchiveGetsItsLine) {
  const std::string pickle = pickle_of(text("a") + tensor_of(storage()));
  const std::string values(16, '\0');
  const std::string good = archive_of(pickle);
  const auto changed = [&](size_t from_end, const std::string& bytes) {
    std::string file = good;
    return file.replace(file.size() - from_end, bytes.size(), bytes);
  };
  const size_t entry = 22 + 46 + std::string("m/data/0").size();  // of the storage, from the end
  const std::vector<CorruptText> cases = {
      {"an end that is cut", good.substr(0, good.size() - 1), "end: found no end"},
      {"bytes behind", good + "x", "end: found no end"},
      {"neither archive nor pickle", "version https://", "found no ZIP archive and no pickle"},
      {"a pickle of others", "\x80\x02K\x01.", "found a pickle of others"},
      {"a directory past the end", changed(6, little(1 << 20, 4)), "directory: found"},
      {"a directory of more records", changed(12, little(3, 2)), "no further record"},
      {"a record past the end", changed(entry - 42, little(1 << 20, 4)), "found no header at"},
      {"a record of more bytes",
       changed(entry - 20, little(1 << 20, 4) + little(1 << 20, 4)),
       "expected bytes before the directory"},
      {"a record without Zip64", changed(entry - 24, little(0xffffffff, 4)), "no such Zip64 field"},
      {"an encrypted record", changed(entry - 8, little(1, 2)), "found encrypted bytes"},
      {"a compressed record",
       zip_of({{"m/data.pkl", pickle, 8}, {"m/data/0", values}}),
       "found compressed bytes (method 8)"},
      {"a record twice",
       zip_of({{"m/data.pkl", pickle}, {"m/data.pkl", pickle}}),
       "found the name twice"},
      {"no pickle", zip_of({{"m/data/0", values}}), "found no data.pkl"},
      {"no storage", zip_of({{"m/data.pkl", pickle}}), "found no storage \"0\""},
      {"another order of bytes",
       zip_of({{"m/data.pkl", pickle}, {"m/data/0", values}, {"m/byteorder", "big"}}),
       "byteorder: found \"big\", expected little"},
  };
  for (const CorruptText& c : cases) {
    CorruptFile corrupt("archive: " + c.what, c.text.size());
    const auto parsed = parse_torch_file(bytes_of(c.text), "m.bin");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "m.bin", c.message);
  }
}

// Many transposed views of one storage would be more memory than the file has bytes.
TEST(TorchFile, CopiesAreNoLargerThanTheFile) {
  std::string items;
  for (char name = 'a'; name <= 'z'; ++name) {
    items += text(std::string(1, name)) +
             tensor_of(storage("ctorch\nFloatStorage\n", "M" + little(1024, 2)),
                       "K" + std::string(1, static_cast<char>(name - 'a')),
                       "K\x1fK\x1f\x86",
                       "K\x01K\x20\x86");
  }
  const std::string file =
      zip_of({{"m/data.pkl", pickle_of(items)}, {"m/data/0", std::string(4096, '\0')}});
  const auto parsed = parse_torch_file(bytes_of(file), "f");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_GT(parsed->copies.size(), 0U);
  EXPECT_LE(parsed->copies.size() * 31 * 31 * 4, file.size());
  EXPECT_TRUE(parsed->tensors.back().unreadable);
}

TEST(TorchFile, TiedTensorsShareACopy) {
  const std::string turned =
      tensor_of(storage(), std::string("K\0", 2), "K\x02K\x02\x86", "K\x01K\x02\x86");
  const std::string file = archive_of(pickle_of(text("a") + turned + text("b") + turned));
  const auto parsed = parse_torch_file(bytes_of(file), "f");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->copies.size(), 1U);
  EXPECT_EQ(parsed->tensors[0].data.data(), parsed->tensors[1].data.data());
}

// A name costs a few bytes of the file, and a tensor some hundred of memory.
TEST(TorchFile, TensorsAreBounded) {
  std::string items = text("first") + tensor_of(storage()) + "q" + std::string(1, '\0');
  for (int i = 0; i < 1 << 17; ++i) {
    items += text(std::to_string(i)) + "h" + std::string(1, '\0');
  }
  const std::string file = archive_of(pickle_of(items));
  const auto parsed = parse_torch_file(bytes_of(file), "f");
  ASSERT_FALSE(parsed.has_value());
  EXPECT_EQ(parsed.error().message,
            "f: pickle: found more than 2^17 tensors, expected those of a model");
}

TEST_F(HfDirectory, WeightsOfPyTorchAreReadWhereThereAreNoOthers) {
  write("config.json", R"({"model_type":"llama","num_hidden_layers":1})");
  const auto file_of = [](const std::string& name) {
    return archive_of(pickle_of(text(name) + tensor_of(storage())));
  };
  const auto has = [this](const char* name) {
    const auto opened = Checkpoint::open(folder_);
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    return opened && (*opened)->tensors().size() == 1 && (*opened)->has(name);
  };
  write("pytorch_model.bin", file_of("lm_head.weight"));
  write("model.safetensors", shard_of({"model.norm.weight"}));
  EXPECT_TRUE(has("output_norm.weight"));
  remove("model.safetensors");
  EXPECT_TRUE(has("output.weight"));
  std::filesystem::rename(folder_ + "/pytorch_model.bin", folder_ + "/a.bin");
  EXPECT_NE(error().find("model.safetensors: open: found"), std::string::npos) << error();
  write("pytorch_model.bin.index.json", R"({"weight_map":{"lm_head.weight":"a.bin"}})");
  EXPECT_TRUE(has("output.weight"));
  write("pytorch_model.bin.index.json", R"({"weight_map":{"model.norm.weight":"a.bin"}})");
  EXPECT_NE(error().find("found nothing in a.bin"), std::string::npos) << error();
  remove("pytorch_model.bin.index.json");
  std::filesystem::rename(folder_ + "/a.bin", folder_ + "/pytorch_model-00001-of-00001.bin");
  const std::string log = logged_by([&] { EXPECT_TRUE(has("output.weight")); });
  EXPECT_NE(log.find("key=pytorch_model.bin.index.json found=\"no file\""), std::string::npos)
      << log;
}

}  // namespace
}  // namespace sluice
