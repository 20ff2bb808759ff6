// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/gguf_output.h"

#include <cstring>
#include <type_traits>
#include <variant>

#include "engine/core/types.h"
#include "engine/quantize/source_rows.h"
#include "engine/weights/gguf.h"
#include "engine/weights/gguf_split.h"

namespace sluice {
namespace {

constexpr uint32_t kVersion = 3;
constexpr int64_t kAlignment = 32;
constexpr uint32_t kQuantizationVersion = 2;  // of ggml's blocks

// Bytes of a header, little-endian as this machine is.
class Header {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }

  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  void put_text(std::string_view text) {
    put(static_cast<uint64_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text)));
  }

  // Numbers were widened when they were read.
  void put_value(const GgufValue& value) {
    put(value.type);
    if (const auto* array = std::get_if<GgufArray>(&value.value)) {
      put(array->element_type);
      put(array->count);
      return put_bytes(array->bytes);
    }
    if (const auto* text = std::get_if<std::string_view>(&value.value)) return put_text(*text);
    std::visit(
        [&](const auto& number) {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(number)>>) {
            put_number(value.type, number);
          }
        },
        value.value);
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  template <typename T>
  void put_number(GgufType type, T number) {
    switch (type) {
      case GgufType::kUint8:
        return put(static_cast<uint8_t>(number));
      case GgufType::kInt8:
        return put(static_cast<int8_t>(number));
      case GgufType::kUint16:
        return put(static_cast<uint16_t>(number));
      case GgufType::kInt16:
        return put(static_cast<int16_t>(number));
      case GgufType::kUint32:
        return put(static_cast<uint32_t>(number));
      case GgufType::kInt32:
        return put(static_cast<int32_t>(number));
      case GgufType::kFloat32:
        return put(static_cast<float>(number));
      case GgufType::kBool:
        return put(static_cast<uint8_t>(number != 0));
      case GgufType::kUint64:
        return put(static_cast<uint64_t>(number));
      case GgufType::kInt64:
        return put(static_cast<int64_t>(number));
      case GgufType::kFloat64:
        return put(static_cast<double>(number));
      case GgufType::kString:
      case GgufType::kArray:
        break;
    }
    SLUICE_UNREACHABLE("a number of no type of numbers");
  }

  std::vector<std::byte> bytes_;
};

// What the new file says for itself.
bool is_replaced(std::string_view key) {
  return key == "general.file_type" || key == "general.quantization_version" ||
         key == "general.alignment" || key.starts_with("split.");
}

void put_metadata(const GgufFile& input, const QuantizePlan& plan, Header& header) {
  uint64_t count = 2;
  for (const auto& [key, value] : input.metadata()) count += is_replaced(key) ? 0 : 1;
  header.put(count);
  for (const auto& [key, value] : input.metadata()) {
    if (is_replaced(key)) continue;
    header.put_text(key);
    header.put_value(value);
  }
  header.put_text("general.file_type");
  header.put(GgufType::kUint32);
  header.put(gguf_file_type(plan.scheme));
  header.put_text("general.quantization_version");
  header.put(GgufType::kUint32);
  header.put(kQuantizationVersion);
}

}  // namespace

Expected<GgufWriter> GgufWriter::create(const std::string& input,
                                        const std::string& output,
                                        const QuantizePlan& plan) {
  SLUICE_TRY(const auto parts, open_gguf_parts(input));
  Header header;
  header.put_bytes(std::as_bytes(std::span("GGUF", 4)));
  header.put(kVersion);
  header.put(static_cast<uint64_t>(plan.tensors.size()));
  put_metadata(*parts.front(), plan, header);
  std::map<std::string, int64_t> offsets;
  int64_t end = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    const CheckpointTensor& tensor = *planned.tensor;
    const bool is_kept = planned.target.kind == TargetKind::kKept;
    const WeightFormat format = is_kept ? tensor.format : planned.target.format;
    header.put_text(planned.stored_name);
    header.put(tensor.num_dims);
    for (uint32_t d = 0; d < tensor.num_dims; ++d) header.put(tensor.dims[d]);
    header.put(format_info(format).ggml_type);
    header.put(static_cast<uint64_t>(end));
    offsets[planned.stored_name] = end;
    const TensorRows shape = rows_of(tensor);
    end = align_up(end + shape.rows * row_bytes(format, shape.width), kAlignment);
  }
  std::vector<std::byte>& bytes = header.bytes();
  bytes.resize(static_cast<size_t>(align_up(static_cast<int64_t>(bytes.size()), kAlignment)));
  const auto data_at = static_cast<int64_t>(bytes.size());
  SLUICE_TRY(OutputFile file, OutputFile::create(output, data_at + end));
  SLUICE_TRY_VOID(file.write(0, bytes));
  GgufWriter writer(std::move(file));
  for (auto& [name, offset] : offsets) offset += data_at;
  writer.offsets_ = std::move(offsets);
  return writer;
}

Expected<void> GgufWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = offsets_.find(name);
  CHECK(found != offsets_.end());
  return file_.write(found->second, bytes);
}

Expected<void> GgufWriter::finish() { return file_.close(); }

}  // namespace sluice
