// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/gguf_output.h"

#include <cstring>

#include "engine/core/types.h"
#include "engine/quantize/source_rows.h"

namespace sluice {
namespace {

constexpr int64_t kAlignment = 32;
constexpr uint32_t kQuantizationVersion = 2;  // version of ggml's blocks

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

void append_text(std::vector<std::byte>& bytes, std::string_view text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  const auto content = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), content.begin(), content.end());
}

}  // namespace

Expected<GgufWriter> GgufWriter::create(GgufMetadata metadata,
                                        const std::string& output,
                                        const QuantizePlan& plan) {
  metadata.put_uint("general.file_type", gguf_file_type(plan.scheme));
  metadata.put_uint("general.quantization_version", kQuantizationVersion);
  std::vector<std::byte> bytes = gguf_header(metadata, plan.tensors.size());
  std::map<std::string, int64_t> offsets;
  int64_t end = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    const SourceTensor& tensor = planned.source;
    const bool is_kept = planned.target.kind == TargetKind::kKept;
    const WeightFormat format = is_kept ? *tensor.format() : planned.target.format;
    append_text(bytes, tensor.stored_name);
    append(bytes, tensor.num_dims);
    for (uint32_t d = 0; d < tensor.num_dims; ++d) append(bytes, tensor.dims[d]);
    append(bytes, format_info(format).ggml_type);
    append(bytes, static_cast<uint64_t>(end));
    offsets[tensor.stored_name] = end;
    const TensorRows shape = tensor.shape();
    end = align_up(end + shape.rows * row_bytes(format, shape.width), kAlignment);
  }
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
