// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/expert_sources.h"

#include <vector>

#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_names.h"

namespace sluice {

std::optional<ExpertName> expert_name(const std::string& name) {
  for (const std::string_view many : {std::string_view("_exps."), kHeadNorm}) {
    const size_t at = name.find(many);
    if (at == std::string::npos) continue;
    std::string_view rest = std::string_view(name).substr(at + many.size());
    const std::optional<std::string> number = take_number(rest);
    if (!number) continue;
    return ExpertName{name.substr(0, at + many.size()), std::stoull(*number), std::string(rest)};
  }
  return std::nullopt;
}

Expected<int64_t> stack_rows(const std::string& file,
                             const std::string& tensor,
                             int64_t rows,
                             uint64_t parts) {
  if (parts > 0 && static_cast<uint64_t>(rows) % parts == 0) {
    return static_cast<int64_t>(static_cast<uint64_t>(rows) / parts);
  }
  return make_error(ErrorCode::kDataLoss,
                    file + ": tensor " + sluice::in_quotes(tensor) + ": found " +
                        std::to_string(rows) + " rows, expected those of " + std::to_string(parts) +
                        " equal parts");
}

Expected<SourceTensor> expert_of(const std::string& file,
                                 const CheckpointTensor& stack,
                                 uint64_t experts,
                                 uint64_t expert) {
  SourceTensor source = source_of(stack);
  SLUICE_TRY(const int64_t rows, stack_rows(file, stack.name, source.shape().rows, experts));
  const bool is_bias = stack.name.ends_with(".bias");
  source.num_dims = is_bias ? 1 : 2;
  source.dims[1] = is_bias ? 1 : static_cast<uint64_t>(rows);
  source.dims[2] = 1;
  source.pieces = {{.tensor = &stack, .first = static_cast<int64_t>(expert) * rows, .count = rows}};
  const size_t dot = stack.name.rfind('.');
  source.name = stack.name.substr(0, dot) + "." + std::to_string(expert) + stack.name.substr(dot);
  source.read_names = {source.name};
  return source;
}

SourceTensor alternating(const CheckpointTensor& gate, const CheckpointTensor& up) {
  SourceTensor source = source_of(gate);
  source.read_names.push_back(up.name);
  if (!gate.name.ends_with(".bias")) {
    source.pieces.push_back(source_of(up).pieces.front());
    source.order = RowOrder::kAlternating;
    source.dims[1] *= 2;
    return source;
  }
  const TensorRows shape = source.shape();
  std::vector<float> values(static_cast<size_t>(2 * shape.rows * shape.width));
  std::vector<float> row(static_cast<size_t>(shape.width));
  for (const size_t p : {size_t{0}, size_t{1}}) {
    const CheckpointTensor& tensor = p == 0 ? gate : up;
    const int64_t bytes = row_bytes(tensor.format, shape.width);
    for (int64_t r = 0; r < shape.rows; ++r) {
      dequantize_row(tensor.format, tensor.data.data() + r * bytes, shape.width, row.data());
      for (size_t i = 0; i < row.size(); ++i) {
        values[2 * (static_cast<size_t>(r) * row.size() + i) + p] = row[i];
      }
    }
  }
  source.dims[0] *= 2;
  source.pieces.clear();
  source.values = std::move(values);
  return source;
}

Expected<SourceTensor> joined(const std::string& file,
                              const CheckpointTensor& gate,
                              const CheckpointTensor& up,
                              uint64_t count) {
  SourceTensor source = source_of(gate);
  SLUICE_TRY(const int64_t rows, stack_rows(file, gate.name, source.shape().rows, count));
  source.pieces.clear();
  for (uint64_t e = 0; e < count; ++e) {
    const int64_t first = static_cast<int64_t>(e) * rows;
    source.pieces.push_back({.tensor = &gate, .first = first, .count = rows});
    source.pieces.push_back({.tensor = &up, .first = first, .count = rows});
  }
  source.dims[1] *= 2;
  return source;
}

Expected<SourceTensor> half_of(const std::string& file,
                               const CheckpointTensor& both,
                               int64_t which,
                               uint64_t count) {
  SourceTensor source = source_of(both);
  SLUICE_TRY(const int64_t rows, stack_rows(file, both.name, source.shape().rows, 2 * count));
  source.pieces.clear();
  for (uint64_t e = 0; e < count; ++e) {
    source.pieces.push_back(
        {.tensor = &both, .first = (2 * static_cast<int64_t>(e) + which) * rows, .count = rows});
  }
  source.dims[1] /= 2;
  return source;
}

Expected<SourceTensor> joined_qkv(const Checkpoint& input, const CheckpointTensor& q) {
  const auto name_of = [&q](std::string_view part) {
    constexpr std::string_view kOfQ = ".attn_q.";
    std::string name = q.name;
    return name.replace(name.find(kOfQ), kOfQ.size(), part);
  };
  SourceTensor source = source_of(q);
  source.name = name_of(".attn_qkv.");
  const bool is_bias = q.num_dims == 1;
  for (const std::string_view part : {".attn_q.", ".attn_k.", ".attn_v."}) {
    const CheckpointTensor* const found = input.find(name_of(part));
    if (found == nullptr || found->num_dims != q.num_dims ||
        (!is_bias && found->dims[0] != q.dims[0])) {
      return make_error(ErrorCode::kDataLoss,
                        input.path() + ": tensor " + sluice::in_quotes(q.name) +
                            ": found no key or value beside it, expected both");
    }
    const SourceTensor each = source_of(*found);
    if (is_bias) {  // one row, of elements
      const size_t before = source.values.size();
      source.values.resize(before + static_cast<size_t>(each.dims[0]));
      SLUICE_TRY_VOID(SourceRows(input.path(), each).read(0, 1, source.values.data() + before));
    }
    if (part == ".attn_q.") continue;
    source.pieces.push_back(each.pieces.front());
    source.dims[is_bias ? 0 : 1] += each.dims[is_bias ? 0 : 1];
  }
  if (is_bias) source.pieces.clear();
  return source;
}

uint64_t experts_of(const CheckpointTensor& tensor) {
  return tensor.num_dims > 2 ? tensor.dims[2] : 1;
}

}  // namespace sluice
