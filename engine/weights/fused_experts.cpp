// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/fused_experts.h"

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr uint64_t kBlock = 32;       // weights of one MXFP4 block
constexpr const char* kDowns = "w2";  // of kTransposedDown
constexpr uint64_t kBlockBytes = 17;  // in GGUF: exponent, then 16 bytes of codes

class Splitter {
 public:
  Splitter(const std::vector<FileTensor>& parts,
           const FileSpec& spec,
           std::string prefix,
           uint64_t num_experts,
           std::string file)
      : parts_(parts),
        spec_(spec),
        prefix_(std::move(prefix)),
        num_experts_(num_experts),
        file_(std::move(file)) {}

  Expected<void> run() {
    if (spec_.experts == ExpertTensors::kTransposedDown) return downs();
    for (const std::string stem : {"gate_up_proj", "down_proj"}) {
      const bool pair = stem == "gate_up_proj";
      const uint64_t step = pair ? 2 : 1;
      for (uint64_t first = 0; first < step; ++first) {
        const std::string name = !pair        ? "ffn_down_exps"
                                 : first == 0 ? "ffn_gate_exps"
                                              : "ffn_up_exps";
        SLUICE_TRY_VOID(weights(stem, name, first, step));
        if (spec_.experts == ExpertTensors::kTransposed) {
          SLUICE_TRY_VOID(biases(stem, name, first, step));
        }
      }
    }
    return {};
  }

  FusedExperts result;

 private:
  [[nodiscard]] const FileTensor* find(const std::string& name) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& tensor) {
      return tensor.name == std::string(spec_.experts_place) + name;
    });
    return found == parts_.end() ? nullptr : &*found;
  }

  [[nodiscard]] tl::unexpected<Error> wrong(const std::string& name,
                                            const std::string& found,
                                            const std::string& expected) const {
    return make_error(ErrorCode::kDataLoss,
                      file_ + ": tensor " + prefix_ + std::string(spec_.experts_place) +
                          name + ": found " + found + ", expected " + expected);
  }

  std::byte* add(const std::string& name,
                 WeightFormat format,
                 std::vector<uint64_t> shape,
                 uint64_t bytes) {
    result.memory.emplace_back(bytes);
    CheckpointTensor tensor;
    tensor.name = prefix_ + name;
    tensor.num_dims = static_cast<uint32_t>(shape.size());
    std::reverse_copy(shape.begin(), shape.end(), std::begin(tensor.dims));
    tensor.format = format;
    tensor.data = result.memory.back();
    result.tensors.push_back(std::move(tensor));
    return result.memory.back().data();
  }

  // Takes the rows of all experts' down matrices, [experts * columns, rows].
  Expected<void> downs() {
    const FileTensor* const rows = find(kDowns);
    const bool fits = rows != nullptr && rows->type && rows->shape.size() == 2 &&
                      num_experts_ > 0 && rows->shape[0] % num_experts_ == 0;
    if (!fits) return wrong(kDowns, "another shape", "rows of each expert");
    const std::vector<uint64_t> shape = {
        num_experts_, rows->shape[0] / num_experts_, rows->shape[1]};
    FileTensor stack = *rows;
    stack.shape = shape;
    return transposed(stack, kDowns, "ffn_down_exps", 0, 1);
  }

  Expected<void> weights(const std::string& stem,
                         const std::string& name,
                         uint64_t first,
                         uint64_t step) {
    if (const FileTensor* floats = find(stem); floats != nullptr) {
      return transposed(*floats, stem, name, first, step);
    }
    if (spec_.experts == ExpertTensors::kTransposedHalves) return wrong(stem, "nothing", "floats");
    const FileTensor* codes = find(stem + "_blocks");
    const FileTensor* scales = find(stem + "_scales");
    if (codes == nullptr || scales == nullptr) {
      return wrong(stem, "nothing", "floats, or blocks and scales");
    }
    return mxfp4(*codes, *scales, stem, name, first, step);
  }

  // Whether halves are [experts, rows, columns]: their shapes fit together in one of the ways only.
  [[nodiscard]] bool are_plain() const {
    const FileTensor* both = find("gate_up_proj");
    const FileTensor* down = find("down_proj");
    return spec_.experts == ExpertTensors::kTransposedHalves && both != nullptr &&
           down != nullptr && both->shape.size() == 3 && down->shape.size() == 3 &&
           both->shape[1] == 2 * down->shape[2] && both->shape[2] == down->shape[1];
  }

  // Takes half of the rows [experts, rows * step, columns], or all of them.
  void plain(const FileTensor& source,
             WeightFormat format,
             const std::string& name,
             uint64_t first,
             uint64_t step) {
    const uint64_t rows = source.shape[1] / step;
    const auto size = static_cast<uint64_t>(format_info(format).block_bytes);
    const uint64_t bytes = rows * source.shape[2] * size;
    std::byte* out = add(name + ".weight",
                         format,
                         {source.shape[0], rows, source.shape[2]},
                         source.shape[0] * bytes);
    for (uint64_t e = 0; e < source.shape[0]; ++e) {
      std::memcpy(out + e * bytes, source.data.data() + (e * step + first) * bytes, bytes);
    }
  }

  // Transposes floats [experts, columns, rows * step], of which every step-th row is taken, or a
  // run.
  Expected<void> transposed(const FileTensor& source,
                            const std::string& stem,
                            const std::string& name,
                            uint64_t first,
                            uint64_t step) {
    const std::optional<WeightFormat> format = float_format(*source.type);
    if (format && are_plain()) {
      plain(source, *format, name, first, step);
      return {};
    }
    if (!format || source.shape.size() != 3 || source.shape[2] % step != 0) {
      return wrong(stem, "another shape", "[experts, columns, rows] of floats");
    }
    const uint64_t experts = source.shape[0];
    const uint64_t columns = source.shape[1];
    const uint64_t rows = source.shape[2] / step;
    const auto size = static_cast<uint64_t>(format_info(*format).block_bytes);
    std::byte* out =
        add(name + ".weight", *format, {experts, rows, columns}, experts * rows * columns * size);
    const bool alternate = spec_.experts == ExpertTensors::kTransposed;
    for (uint64_t e = 0; e < experts; ++e) {
      for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t stored = alternate ? row * step + first : first * rows + row;
        for (uint64_t column = 0; column < columns; ++column) {
          const uint64_t at = (e * columns + column) * rows * step + stored;
          std::memcpy(out, source.data.data() + at * size, size);
          out += size;
        }
      }
    }
    return {};
  }

  // Converts codes [experts, rows * step, columns / 32, 16] and scales [experts, rows * step,
  // columns / 32]. Byte i of a block holds elements 2 i and 2 i + 1; GGUF wants i and i + 16.
  Expected<void> mxfp4(const FileTensor& codes,
                       const FileTensor& scales,
                       const std::string& stem,
                       const std::string& name,
                       uint64_t first,
                       uint64_t step) {
    const std::vector<uint64_t>& shape = codes.shape;
    const bool fits = codes.type == ElementType::kU8 && scales.type == ElementType::kU8 &&
                      shape.size() == 4 && scales.shape.size() == 3 && shape[3] == kBlock / 2 &&
                      std::equal(scales.shape.begin(), scales.shape.end(), shape.begin()) &&
                      shape[1] % step == 0;
    if (!fits) return wrong(stem, "blocks and scales of other shapes", "those of MXFP4");
    const uint64_t rows = shape[1] / step;
    const uint64_t blocks = shape[2];
    std::byte* out = add(name + ".weight",
                         WeightFormat::kMXFP4,
                         {shape[0], rows, blocks * kBlock},
                         shape[0] * rows * blocks * kBlockBytes);
    for (uint64_t row = 0; row < shape[0] * rows; ++row) {
      const uint64_t expert = row / rows;
      const uint64_t at = (expert * shape[1] + row % rows * step + first) * blocks;
      for (uint64_t block = at; block < at + blocks; ++block) {
        const std::byte* source = codes.data.data() + block * kBlock / 2;
        const auto element = [source](uint64_t i) {
          const auto both = static_cast<unsigned>(source[i / 2]);
          return i % 2 == 0 ? both & 15U : both >> 4;
        };
        *out++ = scales.data[block];
        for (uint64_t i = 0; i < kBlock / 2; ++i) {
          *out++ = static_cast<std::byte>(element(i) | element(i + kBlock / 2) << 4);
        }
      }
    }
    return {};
  }

  // Takes biases [experts, rows * step].
  Expected<void> biases(const std::string& stem,
                        const std::string& name,
                        uint64_t first,
                        uint64_t step) {
    const FileTensor* source = find(stem + "_bias");
    if (source == nullptr) return wrong(stem + "_bias", "nothing", "a tensor");
    const std::optional<WeightFormat> format = float_format(*source->type);
    if (!format || source->shape.size() != 2 || source->shape[1] % step != 0) {
      return wrong(stem + "_bias", "another shape", "[experts, rows] of floats");
    }
    const uint64_t count = source->shape[0] * source->shape[1] / step;
    const auto size = static_cast<uint64_t>(format_info(*format).block_bytes);
    std::byte* out =
        add(name + ".bias", *format, {source->shape[0], source->shape[1] / step}, count * size);
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(out + i * size, source->data.data() + (i * step + first) * size, size);
    }
    return {};
  }

  const std::vector<FileTensor>& parts_;
  const FileSpec& spec_;
  std::string prefix_;
  uint64_t num_experts_;
  std::string file_;
};

}  // namespace

bool is_fused_expert_tensor(std::string_view name_in_layer, const FileSpec& spec) {
  if (!name_in_layer.starts_with(spec.experts_place)) return false;
  name_in_layer.remove_prefix(spec.experts_place.size());
  if (spec.experts == ExpertTensors::kTransposedDown) return name_in_layer == kDowns;
  return name_in_layer.starts_with("gate_up_proj") || name_in_layer.starts_with("down_proj");
}

Expected<FusedExperts> split_fused_experts(const std::vector<FileTensor>& parts,
                                           const FileSpec& spec,
                                           const std::string& prefix,
                                           uint64_t num_experts,
                                           const std::string& file_name) {
  Splitter splitter(parts, spec, prefix, num_experts, file_name);
  SLUICE_TRY_VOID(splitter.run());
  return std::move(splitter.result);
}

}  // namespace sluice
