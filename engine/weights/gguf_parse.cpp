// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf_parse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "engine/core/checked.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little-endian");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint32_t kOldestVersion = 2;  // same layout, little-endian
// Real files have tens of keys and a few thousand tensors. With these bounds the tables below stay
// small whatever a header claims.
constexpr uint64_t kMaxMetadata = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 65535;  // GGUF's own limit
constexpr uint64_t kMaxNameBytes = 255;
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;            // key, type, value
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset
constexpr uint64_t kMinAlignment = 8;  // keeps every element of a mapped tensor aligned
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kMaxReserve = 4096;

// Names, for messages, of tensor types that exist but are unsupported.
struct TensorTypeName {
  uint32_t id;
  std::string_view name;
};

constexpr std::array<TensorTypeName, 20> kOtherTensorTypes = {{
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"},    {17, "IQ2_XS"},     {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},      {24, "I8"},         {25, "I16"},
    {26, "I32"},   {27, "I64"},   {28, "F64"},        {29, "IQ1_M"},      {34, "TQ1_0"},
    {35, "TQ2_0"}, {40, "NVFP4"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
}};

std::string describe_tensor_type(uint32_t id) {
  for (const TensorTypeName& type : kOtherTensorTypes) {
    if (type.id == id) return std::string(type.name) + " (id " + std::to_string(id) + ")";
  }
  return "unknown id " + std::to_string(id);
}

std::string supported_tensor_types() {
  std::string list;
  for (const FormatInfo& info : format_table()) {
    if (!list.empty()) list += ", ";
    list += info.name;
  }
  return list;
}

// Returns the bytes of the character that `text` starts with; 0 for a control character or invalid
// UTF-8, which could move a terminal's cursor or break a log's encoding.
size_t printable_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  uint32_t code = byte(0) & (0x7fU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kSmallest[5] = {0, 0, 0xa0, 0x800, 0x10000};  // 0x80 to 0x9f are controls
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallest[length] || code > 0x10ffff || surrogate ? 0 : length;
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name) {}

  Expected<GgufContents> parse();

 private:
  struct Offset {
    uint64_t begin = 0;  // from the start of the data section
    uint64_t bytes = 0;
  };

  Expected<void> parse_header();
  Expected<void> parse_metadata();
  Expected<GgufValue> parse_value(GgufType type);
  Expected<GgufValue> parse_array();
  Expected<void> read_alignment();
  Expected<void> parse_tensor_infos();
  Expected<void> parse_dims(GgufTensor& tensor);
  Expected<uint64_t> tensor_bytes(const GgufTensor& tensor) const;
  Expected<void> place_tensors();
  Expected<void> check_overlaps() const;

  template <typename T>
  Expected<T> read(std::string_view field);
  Expected<bool> read_bool();
  Expected<GgufType> read_type(std::string_view field);
  Expected<std::string_view> read_string(std::string_view field, uint64_t min, uint64_t max);
  template <typename T, typename Wide>
  Expected<GgufValue> read_number(GgufType type);
  template <typename Item, typename NameOf>
  Expected<std::vector<uint32_t>> index_names(const std::vector<Item>& items, NameOf name_of);

  [[nodiscard]] uint64_t remaining() const { return bytes_.size() - position_; }

  // Formats the current place, as "metadata 3 'general.name' value".
  [[nodiscard]] std::string place(std::string_view field) const;
  [[nodiscard]] tl::unexpected<Error> fail(std::string_view field,
                                           const std::string& found,
                                           const std::string& expected,
                                           ErrorCode code = ErrorCode::kDataLoss) const;
  [[nodiscard]] tl::unexpected<Error> truncated(std::string_view field, uint64_t needed) const;

  std::span<const std::byte> bytes_;
  const std::string& file_name_;
  size_t position_ = 0;

  // The current place, for messages.
  std::string_view section_ = "header";
  uint64_t item_ = 0;
  std::string_view item_name_;

  uint64_t num_tensors_ = 0;
  uint64_t num_metadata_ = 0;
  GgufContents contents_;
  std::vector<Offset> offsets_;  // by tensor
};

std::string Parser::place(std::string_view field) const {
  std::string text(section_);
  if (section_ != "header") {
    text += " " + std::to_string(item_);
    if (!item_name_.empty()) text += " " + in_quotes(item_name_);
  }
  return text + " " + std::string(field);
}

tl::unexpected<Error> Parser::fail(std::string_view field,
                                   const std::string& found,
                                   const std::string& expected,
                                   ErrorCode code) const {
  return make_error(
      code, file_name_ + ": " + place(field) + ": found " + found + ", expected " + expected);
}

tl::unexpected<Error> Parser::truncated(std::string_view field, uint64_t needed) const {
  return fail(field,
              "the end of the file " + std::to_string(remaining()) + " bytes after offset " +
                  std::to_string(position_),
              std::to_string(needed) + " bytes");
}

template <typename T>
Expected<T> Parser::read(std::string_view field) {
  if (remaining() < sizeof(T)) return truncated(field, sizeof(T));
  T value;
  std::memcpy(&value, bytes_.data() + position_, sizeof(T));
  position_ += sizeof(T);
  return value;
}

Expected<bool> Parser::read_bool() {
  SLUICE_TRY(const uint8_t byte, read<uint8_t>("bool value"));
  if (byte > 1) return fail("bool value", std::to_string(byte), "0 or 1");
  return byte == 1;
}

Expected<GgufType> Parser::read_type(std::string_view field) {
  SLUICE_TRY(const uint32_t id, read<uint32_t>(field));
  if (id > static_cast<uint32_t>(GgufType::kFloat64)) {
    return fail(field, "type id " + std::to_string(id), "a value type from 0 to 12");
  }
  return static_cast<GgufType>(id);
}

Expected<std::string_view> Parser::read_string(std::string_view field, uint64_t min, uint64_t max) {
  SLUICE_TRY(const uint64_t length, read<uint64_t>(field));
  if (length > remaining()) return truncated(field, length);
  if (length < min || length > max) {
    return fail(field,
                "a length of " + std::to_string(length) + " bytes",
                std::to_string(min) + " to " + std::to_string(max) + " bytes");
  }
  const auto* text = reinterpret_cast<const char*>(bytes_.data() + position_);
  position_ += length;
  return std::string_view(text, length);
}

template <typename T, typename Wide>
Expected<GgufValue> Parser::read_number(GgufType type) {
  SLUICE_TRY(const T value, read<T>("value"));
  return GgufValue{.value = static_cast<Wide>(value), .type = type};
}

template <typename Item, typename NameOf>
Expected<std::vector<uint32_t>> Parser::index_names(const std::vector<Item>& items,
                                                    NameOf name_of) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return name_of(items[a]) < name_of(items[b]);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const std::string_view name = name_of(items[order[i]]);
    if (name == name_of(items[order[i - 1]])) {
      item_ = std::max(order[i], order[i - 1]);
      item_name_ = name;
      return fail("name", "a duplicate", "a name used once");
    }
  }
  return order;
}

Expected<GgufContents> Parser::parse() {
  SLUICE_TRY_VOID(parse_header());
  SLUICE_TRY_VOID(parse_metadata());
  SLUICE_TRY_VOID(read_alignment());
  SLUICE_TRY_VOID(parse_tensor_infos());
  SLUICE_TRY_VOID(place_tensors());
  SLUICE_TRY_VOID(check_overlaps());
  return std::move(contents_);
}

Expected<void> Parser::parse_header() {
  SLUICE_TRY(const uint32_t magic, read<uint32_t>("magic"));
  if (magic != kMagic) {
    return fail(
        "magic", in_quotes({reinterpret_cast<const char*>(bytes_.data()), sizeof(magic)}), "\"GGUF\"");
  }
  SLUICE_TRY(const uint32_t version, read<uint32_t>("version"));
  if (version < kOldestVersion || version > kVersion) {
    const uint32_t swapped = __builtin_bswap32(version);
    const bool big_endian = swapped >= 1 && swapped <= kVersion;
    const bool other_version = version >= 1 && version <= 0xffff;
    return fail(
        "version",
        big_endian ? "big-endian version " + std::to_string(swapped) : std::to_string(version),
        "little-endian version 2 or 3",
        big_endian || other_version ? ErrorCode::kUnsupported : ErrorCode::kDataLoss);
  }
  contents_.version = version;
  SLUICE_TRY(num_tensors_, read<uint64_t>("tensor_count"));
  SLUICE_TRY(num_metadata_, read<uint64_t>("metadata_kv_count"));
  const uint64_t tensor_limit = std::min(kMaxTensors, remaining() / kMinTensorInfoBytes);
  if (num_tensors_ > tensor_limit) {
    return fail("tensor_count",
                std::to_string(num_tensors_),
                "at most " + std::to_string(tensor_limit) + " in the bytes that remain");
  }
  const uint64_t metadata_limit = std::min(kMaxMetadata, remaining() / kMinMetadataBytes);
  if (num_metadata_ > metadata_limit) {
    return fail("metadata_kv_count",
                std::to_string(num_metadata_),
                "at most " + std::to_string(metadata_limit) + " in the bytes that remain");
  }
  return {};
}

Expected<void> Parser::parse_metadata() {
  section_ = "metadata";
  contents_.metadata.reserve(std::min(num_metadata_, kMaxReserve));
  for (item_ = 0; item_ < num_metadata_; ++item_) {
    item_name_ = {};
    SLUICE_TRY(item_name_, read_string("key", 1, kMaxKeyBytes));
    SLUICE_TRY(const GgufType type, read_type("value type"));
    SLUICE_TRY(GgufValue value, parse_value(type));
    contents_.metadata.emplace_back(item_name_, std::move(value));
  }
  SLUICE_TRY(contents_.metadata_by_name,
             index_names(contents_.metadata, [](const auto& entry) { return entry.first; }));
  return {};
}

Expected<GgufValue> Parser::parse_value(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return read_number<uint8_t, uint64_t>(type);
    case GgufType::kInt8:
      return read_number<int8_t, int64_t>(type);
    case GgufType::kUint16:
      return read_number<uint16_t, uint64_t>(type);
    case GgufType::kInt16:
      return read_number<int16_t, int64_t>(type);
    case GgufType::kUint32:
      return read_number<uint32_t, uint64_t>(type);
    case GgufType::kInt32:
      return read_number<int32_t, int64_t>(type);
    case GgufType::kFloat32:
      return read_number<float, double>(type);
    case GgufType::kUint64:
      return read_number<uint64_t, uint64_t>(type);
    case GgufType::kInt64:
      return read_number<int64_t, int64_t>(type);
    case GgufType::kFloat64:
      return read_number<double, double>(type);
    case GgufType::kBool: {
      SLUICE_TRY(const bool value, read_bool());
      return GgufValue{.value = value, .type = type};
    }
    case GgufType::kString: {
      SLUICE_TRY(const std::string_view text,
                 read_string("string length", 0, std::numeric_limits<uint64_t>::max()));
      return GgufValue{.value = text, .type = type};
    }
    case GgufType::kArray:
      return parse_array();
  }
  SLUICE_UNREACHABLE("read_type() let an unknown value type through");
}

Expected<GgufValue> Parser::parse_array() {
  SLUICE_TRY(const GgufType element_type, read_type("array element type"));
  SLUICE_TRY(const uint64_t count, read<uint64_t>("array length"));
  if (element_type == GgufType::kArray) {
    return fail("array element type",
                "an array of arrays",
                "numbers, bools or strings",
                ErrorCode::kUnsupported);
  }
  const size_t begin = position_;
  const bool is_string = element_type == GgufType::kString;
  const uint64_t min_element_bytes = is_string ? sizeof(uint64_t) : gguf_type_bytes(element_type);
  const auto min_bytes = checked_mul(count, min_element_bytes);
  if (!min_bytes || *min_bytes > remaining()) {
    return fail(
        "array length",
        std::to_string(count) + " elements of type " + std::string(to_string(element_type)),
        "at most " + std::to_string(remaining() / min_element_bytes) + " in the bytes that remain");
  }
  if (is_string) {
    for (uint64_t i = 0; i < count; ++i) {
      SLUICE_TRY_VOID(read_string("array string length", 0, std::numeric_limits<uint64_t>::max()));
    }
  } else if (element_type == GgufType::kBool) {
    for (uint64_t i = 0; i < count; ++i) SLUICE_TRY_VOID(read_bool());
  } else {
    position_ += *min_bytes;
  }
  const GgufArray array{.element_type = element_type,
                        .count = count,
                        .bytes = bytes_.subspan(begin, position_ - begin)};
  return GgufValue{.value = array, .type = GgufType::kArray};
}

Expected<void> Parser::read_alignment() {
  for (item_ = 0; item_ < contents_.metadata.size(); ++item_) {
    const auto& [key, value] = contents_.metadata[item_];
    if (key != "general.alignment") continue;
    item_name_ = key;
    if (value.type != GgufType::kUint32) {
      return fail("type", std::string(to_string(value.type)), "uint32");
    }
    const uint64_t alignment = std::get<uint64_t>(value.value);
    if (alignment < kMinAlignment || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      return fail("value", std::to_string(alignment), "a power of two from 8 to 65536");
    }
    contents_.alignment = alignment;
  }
  return {};
}

Expected<void> Parser::parse_tensor_infos() {
  section_ = "tensor";
  contents_.tensors.reserve(std::min(num_tensors_, kMaxReserve));
  offsets_.reserve(std::min(num_tensors_, kMaxReserve));
  for (item_ = 0; item_ < num_tensors_; ++item_) {
    item_name_ = {};
    GgufTensor tensor;
    SLUICE_TRY(tensor.name, read_string("name", 1, kMaxNameBytes));
    item_name_ = tensor.name;
    SLUICE_TRY_VOID(parse_dims(tensor));
    SLUICE_TRY(const uint32_t type, read<uint32_t>("type"));
    const auto format = format_from_ggml_type(type);
    if (!format) {
      return fail("type",
                  describe_tensor_type(type),
                  "one of " + supported_tensor_types(),
                  ErrorCode::kUnsupported);
    }
    tensor.format = *format;
    SLUICE_TRY(const uint64_t offset, read<uint64_t>("offset"));
    if (offset % contents_.alignment != 0) {
      return fail(
          "offset", std::to_string(offset), "a multiple of " + std::to_string(contents_.alignment));
    }
    SLUICE_TRY(const uint64_t size, tensor_bytes(tensor));
    offsets_.push_back({.begin = offset, .bytes = size});
    contents_.tensors.push_back(tensor);
  }
  SLUICE_TRY_VOID(
      index_names(contents_.tensors, [](const GgufTensor& tensor) { return tensor.name; }));
  return {};
}

Expected<void> Parser::parse_dims(GgufTensor& tensor) {
  SLUICE_TRY(tensor.num_dims, read<uint32_t>("n_dims"));
  if (tensor.num_dims < 1 || tensor.num_dims > 4) {
    return fail("n_dims", std::to_string(tensor.num_dims), "1 to 4");
  }
  for (uint32_t d = 0; d < tensor.num_dims; ++d) {
    SLUICE_TRY(tensor.dims[d], read<uint64_t>("dims"));
    if (tensor.dims[d] == 0) return fail("dims", "0", "at least 1");
  }
  return {};
}

Expected<uint64_t> Parser::tensor_bytes(const GgufTensor& tensor) const {
  const FormatInfo& info = format_info(tensor.format);
  const auto block_elements = static_cast<uint64_t>(info.block_elements);
  if (tensor.dims[0] % block_elements != 0) {
    return fail(
        "dims",
        "rows of " + std::to_string(tensor.dims[0]) + " elements",
        "a multiple of " + std::to_string(block_elements) + " for " + std::string(info.name));
  }
  auto bytes =
      checked_mul(tensor.dims[0] / block_elements, static_cast<uint64_t>(info.block_bytes));
  for (int d = 1; bytes && d < 4; ++d) bytes = checked_mul(*bytes, tensor.dims[d]);
  if (!bytes) return fail("dims", "a product above 2^64", "a tensor that fits the file");
  return *bytes;
}

Expected<void> Parser::place_tensors() {
  if (num_tensors_ == 0) return {};
  const auto data_begin = checked_align(position_, contents_.alignment);
  const uint64_t file_bytes = bytes_.size();
  for (item_ = 0; item_ < num_tensors_; ++item_) {
    GgufTensor& tensor = contents_.tensors[item_];
    item_name_ = tensor.name;
    const Offset& offset = offsets_[item_];
    const auto begin = data_begin ? checked_add(*data_begin, offset.begin) : std::nullopt;
    const auto end = begin ? checked_add(*begin, offset.bytes) : std::nullopt;
    if (!end || *end > file_bytes) {
      return fail(
          "data",
          std::to_string(offset.bytes) + " bytes at data offset " + std::to_string(offset.begin),
          "data inside the file of " + std::to_string(file_bytes) + " bytes");
    }
    tensor.data = bytes_.subspan(*begin, offset.bytes);
  }
  return {};
}

Expected<void> Parser::check_overlaps() const {
  std::vector<uint32_t> order(offsets_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return offsets_[a].begin < offsets_[b].begin;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Offset& before = offsets_[order[i - 1]];
    const Offset& after = offsets_[order[i]];
    if (before.begin + before.bytes <= after.begin) continue;  // both end inside the file
    const GgufTensor& tensor = contents_.tensors[order[i]];
    return make_error(ErrorCode::kDataLoss,
                      file_name_ + ": tensor " + std::to_string(order[i]) + " " +
                          in_quotes(tensor.name) + " offset: found " + std::to_string(after.begin) +
                          ", expected no overlap with " +
                          in_quotes(contents_.tensors[order[i - 1]].name));
  }
  return {};
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size() && i < kMaxBytes) {
    const size_t length = printable_bytes(text.substr(i));
    if (length > 0) {
      if (text[i] == '"' || text[i] == '\\') out += '\\';
      out += text.substr(i, length);
      i += length;
    } else if (text[i] == '\n') {
      out += "\\n";
      ++i;
    } else {
      const auto byte = static_cast<unsigned char>(text[i]);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      ++i;
    }
  }
  out += i < text.size() ? "\"..." : "\"";
  return out;
}

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.9g", value);
  return buffer.data();
}

Expected<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& file_name) {
  return Parser(bytes, file_name).parse();
}

}  // namespace sluice
