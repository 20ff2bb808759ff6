// SPDX-License-Identifier: Apache-2.0
// Tests on this GPU the assumptions of the CUDA backend's determinism:
//   P1  a BF16 product has the same bits wherever its row and its output are in the matrices, and
//       with the segments of K one after the other and side by side; one of FP8 wherever its row is
//   P2  wgmma and mma.sync give the same bits, and those of the model that tests use; wgmma of FP8
//       those of its model, whose steps were recorded of another form of the instruction
//   P3  a pinned algorithm of cuBLASLt gives a row the same bits for any number of rows
//   P4  attention gives a token the same bits decoded alone and in chunks of a prompt, and with the
//       partitions of its keys one after the other and side by side
// One line each: what was compared and how many differ, and under P2 the first that differ. Inputs
// are the same everywhere, so that the model can be mended without a GPU. P1, P4 and the model must
// hold; the exit code says whether they do. P2's first half and P3 only say what is possible.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/cublas_lt.h"
#include "bench/gpu_multiply.h"
#include "bench/gpu_rig.h"
#include "engine/core/types.h"
#include "kernels/cuda/launch.h"
#include "kernels/gemm.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::bench {
namespace {

constexpr int32_t kN = 256;
constexpr int32_t kK = 4096;
constexpr size_t kShown = 40;  // of what differs

// Random codes, none of them NaN.
std::vector<uint8_t> e4m3_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random());
    if ((code & 0x7FU) == 0x7FU) code = 0x7E;
  }
  return codes;
}

// Random positive numbers from 2^-9 to 2^-3.
std::vector<float> scale_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> scales(static_cast<size_t>(count));
  for (float& scale : scales) {
    const auto bits = static_cast<uint32_t>(random());
    scale = std::bit_cast<float>((118 + bits % 6) << 23 | (bits >> 9 & 0x7FFFFFU));
  }
  return scales;
}

// Random signs and mantissas; exponents over `spread` powers of two, some values zero.
std::vector<uint16_t> bf16_values(int64_t count, uint32_t seed, uint32_t spread) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) {
    const uint32_t bits = static_cast<uint32_t>(random());
    const uint32_t exponent = 127 - spread / 2 + (bits >> 16) % (spread + 1);
    value = static_cast<uint16_t>((bits & 0x8000U) | exponent << 7 | (bits & 0x7FU));
    if ((bits >> 8 & 0x3FU) == 0) value = 0;
  }
  return values;
}

class Probes {
 public:
  explicit Probes(GpuRig& rig) : rig_(rig) {}

  void run() {
    for (const uint32_t spread : {4U, 40U}) {
      positions(spread);
      instructions(spread);
    }
    if (kernels::cuda::device_has_fp8()) {
      float8(kernels::ActivationFormat::kE4M3Token);
      float8(kernels::ActivationFormat::kE4M3Group);
    } else {
      std::printf("P1  not asked of FP8, which is Hopper's alone\n");
    }
    cublas();
    attention();
  }

  [[nodiscard]] bool holds() const { return holds_; }

 private:
  // The kinds of product: launch_linear_half without or with a workspace, or given instructions.
  enum class By : uint8_t { kDefault, kSideBySide, kWgmma, kMma };

  void report(
      const char* name, const std::string& what, int64_t compared, int64_t differ, bool must_hold) {
    std::printf("%s  %s: %lld compared, %lld differ\n",
                name,
                what.c_str(),
                static_cast<long long>(compared),
                static_cast<long long>(differ));
    std::fflush(stdout);
    if (must_hold && (differ > 0 || compared == 0)) holds_ = false;
  }

  // x [rows, kK] by w [n, kK].
  std::vector<uint32_t> multiply(const std::vector<uint16_t>& x,
                                 const std::vector<uint16_t>& w,
                                 By by) {
    const auto rows = static_cast<int32_t>(x.size() / kK);
    const auto n = static_cast<int32_t>(w.size() / kK);
    const auto gpu_x = rig_.copy_of(x.data(), static_cast<int64_t>(x.size() * 2));
    const auto gpu_w = rig_.copy_of(w.data(), static_cast<int64_t>(w.size() * 2));
    const auto out = rig_.zeros(int64_t{rows} * n * 4);
    const int64_t room = by == By::kSideBySide ? kernels::cuda::linear_workspace_bytes(rows, n) : 0;
    const auto workspace = rig_.zeros(room);
    const kernels::cuda::LinearHalfArgs args{
        .x = reinterpret_cast<const uint16_t*>(gpu_x.data()),
        .x_stride = kK,
        .weight = reinterpret_cast<const uint16_t*>(gpu_w.data()),
        .weight_stride = kK,
        .num_rows = rows,
        .n = n,
        .k = kK,
        .out = reinterpret_cast<float*>(out.data()),
        .out_stride = n,
        .workspace = room > 0 ? workspace.data() : nullptr};
    if (by == By::kDefault || by == By::kSideBySide) {
      kernels::cuda::launch_linear_half(rig_.stream(), args);
    } else {
      launch_linear_by(
          by == By::kWgmma ? Instructions::kWgmma : Instructions::kMma, rig_.stream(), args);
    }
    return words(out, int64_t{rows} * n);
  }

  std::vector<uint32_t> words(const kernels::DeviceBuffer& buffer, int64_t count) {
    const std::vector<std::byte> bytes = rig_.to_host(buffer);
    std::vector<uint32_t> result(static_cast<size_t>(count));
    std::memcpy(result.data(), bytes.data(), result.size() * 4);
    return result;
  }

  void positions(uint32_t spread) {
    const std::vector<uint16_t> w = bf16_values(int64_t{kN} * kK, 1, spread);
    const std::vector<uint16_t> row = bf16_values(kK, 2, spread);
    const std::vector<uint32_t> alone = multiply(row, w, By::kDefault);
    int64_t compared = 0;
    int64_t differ = 0;
    for (const By by : {By::kDefault, By::kSideBySide}) {
      for (const int32_t rows : {1, 2, 8, 9, 64, 65, 200}) {
        const std::vector<uint16_t> x = bf16_values(int64_t{rows} * kK, 3, spread);
        for (const int32_t place : {0, rows / 4, rows / 2, rows - 1}) {
          std::vector<uint16_t> all = x;
          std::ranges::copy(row, all.begin() + int64_t{place} * kK);
          const std::vector<uint32_t> got = multiply(all, w, by);
          for (int32_t i = 0; i < kN; ++i, ++compared) {
            differ += got[static_cast<size_t>(place * kN + i)] != alone[static_cast<size_t>(i)];
          }
        }
      }
      for (const int32_t shift : {1, 7, 64, 129}) {
        std::vector<uint16_t> moved = w;
        std::ranges::rotate(moved, moved.begin() + int64_t{shift} * kK);
        const std::vector<uint32_t> got = multiply(row, moved, by);
        for (int32_t i = 0; i < kN; ++i, ++compared) {
          differ += got[static_cast<size_t>(i)] != alone[static_cast<size_t>((i + shift) % kN)];
        }
      }
    }
    report("P1", "BF16, exponents over " + std::to_string(spread), compared, differ, true);
  }

  void instructions(uint32_t spread) {
    if (!has(Instructions::kWgmma)) {
      std::printf("P2  not asked: this GPU has no wgmma, which is Hopper's alone\n");
      return;
    }
    constexpr int32_t kRows = 24;
    const std::vector<uint16_t> w = bf16_values(int64_t{kN} * kK, 4, spread);
    const std::vector<uint16_t> x = bf16_values(int64_t{kRows} * kK, 5, spread);
    const std::vector<uint32_t> wgmma = multiply(x, w, By::kWgmma);
    const std::vector<uint32_t> mma = multiply(x, w, By::kMma);
    int64_t differ = 0;
    for (size_t i = 0; i < wgmma.size(); ++i) differ += wgmma[i] != mma[i];
    const std::string what = ", exponents over " + std::to_string(spread);
    const auto count = static_cast<int64_t>(wgmma.size());
    report("P2", "wgmma and mma.sync" + what, count, differ, false);
    std::vector<std::string> shown;
    int64_t from_model = 0;
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t i = 0; i < kN; ++i) {
        const auto at = static_cast<size_t>(row * kN + i);
        const auto want = std::bit_cast<uint32_t>(
            model(x.data() + int64_t{row} * kK, w.data() + int64_t{i} * kK));
        from_model += wgmma[at] != want;
        if ((wgmma[at] == want && mma[at] == want) || shown.size() == kShown) continue;
        char line[96];
        std::snprintf(line,
                      sizeof line,
                      "    row %2d output %3d: wgmma %08x, mma.sync %08x, model %08x\n",
                      row,
                      i,
                      wgmma[at],
                      mma[at],
                      want);
        shown.emplace_back(line);
      }
    }
    report("P2", "wgmma and the model" + what, count, from_model, true);
    for (const std::string& line : shown) std::fputs(line.c_str(), stdout);
  }

  // The model: the definition in kernels/cuda/launch.h.
  static float model(const uint16_t* x, const uint16_t* w) {
    constexpr int kSegments = 8;
    constexpr int kStep = 16;
    std::array<float, kSegments> s{};
    constexpr int kSegment = kK / kSegments;
    static_assert(kSegment % kQuantGroup == 0);
    for (int i = 0; i < kSegments; ++i) {
      for (int k = i * kSegment; k < (i + 1) * kSegment; k += kStep) {
        s[static_cast<size_t>(i)] =
            simt::tensor_core_step(simt::Half::kBF16, w + k, x + k, s[static_cast<size_t>(i)]);
      }
    }
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }

  // A layer of FP8 and what its row 0 is multiplied by: scales per output and row, or per 128
  // columns of them.
  struct Float8Layer {
    explicit Float8Layer(kernels::ActivationFormat of) : format(of) {}

    [[nodiscard]] bool has_blocks() const {
      return format == kernels::ActivationFormat::kE4M3Group;
    }

    // Scales of a row, of the weight or of x.
    [[nodiscard]] int32_t num_scales() const { return has_blocks() ? kBlocks : 1; }

    static constexpr int32_t kBlocks = kK / 128;
    kernels::ActivationFormat format;
    std::vector<uint8_t> codes = e4m3_values(int64_t{kN} * kK, 10);
    std::vector<float> scales = scale_values(int64_t{kN} * kBlocks, 11);
    std::vector<uint8_t> row_codes = e4m3_values(kK, 12);
    std::vector<float> row_scales = scale_values(kBlocks, 13);
  };

  // `rows` rows of which row `place` is the layer's, by the layer.
  std::vector<uint32_t> multiply(const Float8Layer& layer,
                                 int32_t rows,
                                 int32_t place,
                                 bool side_by_side) {
    const int64_t bytes = kernels::activation_bytes(layer.format, rows, kK);
    auto host = kernels::DeviceBuffer::allocate(kernels::host_memory(), bytes, "probe");
    CHECK(host.has_value());
    const auto x = kernels::carve_activations(layer.format, rows, kK, host->data());
    const std::vector<uint8_t> codes = e4m3_values(int64_t{rows} * kK, 14);
    const std::vector<float> scales = scale_values(int64_t{rows} * Float8Layer::kBlocks, 15);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t group = 0; group < kK / kQuantGroup; ++group) {
        const kernels::ActivationGroup own = kernels::activation_group(x, row, group);
        const bool is_its = row == place;
        const uint8_t* const from = is_its ? layer.row_codes.data() : codes.data() + row * kK;
        std::memcpy(own.codes, from + group * kQuantGroup, kQuantGroup);
        const int64_t block = layer.has_blocks() ? group / 4 : 0;
        *own.scale = is_its ? layer.row_scales[static_cast<size_t>(block)]
                            : scales[static_cast<size_t>(row * Float8Layer::kBlocks + block)];
      }
    }
    const auto gpu_x = rig_.copy_of(host->data(), bytes);
    const auto gpu_w = rig_.copy_of(layer.codes.data(), int64_t{kN} * kK);
    const auto gpu_scales = rig_.copy_of(layer.scales.data(), std::ssize(layer.scales) * 4);
    const auto out = rig_.zeros(int64_t{rows} * kN * 4);
    const int64_t room = side_by_side ? kernels::cuda::linear_workspace_bytes(rows, kN) : 0;
    const auto workspace = rig_.zeros(room);
    kernels::cuda::launch_linear_fp8(
        rig_.stream(),
        {.x = kernels::carve_activations(layer.format, rows, kK, gpu_x.data()),
         .weight = reinterpret_cast<const uint8_t*>(gpu_w.data()),
         .weight_stride = kK,
         .weight_scale = reinterpret_cast<const float*>(gpu_scales.data()),
         .weight_scale_stride = layer.num_scales(),
         .n = kN,
         .k = kK,
         .out = reinterpret_cast<float*>(out.data()),
         .out_stride = kN,
         .workspace = room > 0 ? workspace.data() : nullptr});
    return words(out, int64_t{rows} * kN);
  }

  // The model: the definition in kernels/cuda/launch.h.
  static float model(const Float8Layer& layer, int32_t output) {
    constexpr int kSegments = 8;
    constexpr int kRun = 128;
    static_assert(kK / kSegments % kRun == 0);
    const auto type = simt::Float8::kE4M3;
    const float* const scales = layer.scales.data() + int64_t{output} * layer.num_scales();
    std::array<float, kSegments> s{};
    for (int run = 0; run < kK / kRun; ++run) {
      float p = 0;
      for (int k = run * kRun; k < (run + 1) * kRun; k += 32) {
        const uint8_t* const w = layer.codes.data() + int64_t{output} * kK + k;
        p = simt::wgmma_float8_step(type, w, type, layer.row_codes.data() + k, p);
      }
      float& acc = s[static_cast<size_t>(run / (kK / kSegments / kRun))];
      acc = layer.has_blocks()
                ? std::fma(p, scales[run] * layer.row_scales[static_cast<size_t>(run)], acc)
                : acc + p;
    }
    const float y = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    return layer.has_blocks() ? y : y * layer.row_scales[0] * scales[0];
  }

  // Tiles of 8 to 64 rows, few rows and many.
  void float8(kernels::ActivationFormat format) {
    const Float8Layer layer(format);
    const char* const scales = layer.has_blocks() ? "FP8, scales per 128" : "FP8, a scale a row";
    const std::vector<uint32_t> alone = multiply(layer, 1, 0, false);
    int64_t compared = 0;
    int64_t differ = 0;
    for (const bool side_by_side : {false, true}) {
      for (const int32_t rows : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 200}) {
        for (const int32_t place : {0, rows / 2, rows - 1}) {
          const std::vector<uint32_t> got = multiply(layer, rows, place, side_by_side);
          for (int32_t i = 0; i < kN; ++i, ++compared) {
            differ += got[static_cast<size_t>(place * kN + i)] != alone[static_cast<size_t>(i)];
          }
        }
      }
    }
    report("P1", scales, compared, differ, true);
    std::vector<std::string> shown;
    for (int32_t i = 0; i < kN; ++i) {
      const auto want = std::bit_cast<uint32_t>(model(layer, i));
      const uint32_t got = alone[static_cast<size_t>(i)];
      if (got == want) continue;
      char line[96];
      std::snprintf(line, sizeof line, "    output %3d: wgmma %08x, model %08x\n", i, got, want);
      shown.emplace_back(line);
    }
    report("P2", std::string(scales) + ": wgmma and the model", kN, std::ssize(shown), true);
    for (const std::string& line : std::span(shown).first(std::min(shown.size(), kShown))) {
      std::fputs(line.c_str(), stdout);
    }
  }

  void cublas() {
    const std::unique_ptr<CublasLt> library = CublasLt::open(rig_);
    if (library == nullptr) {
      std::printf("P3  not asked: no cuBLASLt\n");
      return;
    }
    constexpr int32_t kMost = 128;
    const std::vector<uint16_t> w = bf16_values(int64_t{kK} * kK, 6, 8);
    const std::vector<uint16_t> x = bf16_values(int64_t{kMost} * kK, 7, 8);
    const auto gpu_w = rig_.copy_of(w.data(), static_cast<int64_t>(w.size() * 2));
    const auto gpu_x = rig_.copy_of(x.data(), static_cast<int64_t>(x.size() * 2));
    const auto y = rig_.zeros(int64_t{kMost} * kK * 4);
    int number = 0;
    for (const CublasLt::Algorithm& algorithm :
         library->algorithms({CublasLt::Type::kBf16, 64, kK, kK})) {
      int64_t compared = 0;
      int64_t differ = 0;
      std::vector<uint32_t> first;
      std::string counts;
      for (const int32_t rows : {1, 2, 8, 16, 64, 128}) {
        const CublasLt::Shape shape{CublasLt::Type::kBf16, rows, kK, kK};
        if (!library->multiply(shape, algorithm, gpu_x.data(), gpu_w.data(), y.data())) continue;
        std::vector<uint32_t> row = words(y, kK);
        counts += (counts.empty() ? "" : ", ") + std::to_string(rows);
        if (first.empty()) {
          first = std::move(row);
          continue;
        }
        for (size_t i = 0; i < row.size(); ++i, ++compared) differ += row[i] != first[i];
      }
      report("P3",
             "cuBLASLt algorithm " + std::to_string(number++) + " at rows " + counts,
             compared,
             differ,
             false);
    }
  }

  // P4's only request. Its blocks lie in reverse order.
  struct Prompt {
    static constexpr int32_t kHeads = 32;
    static constexpr int32_t kKvHeads = 8;
    static constexpr int32_t kHeadDim = 128;
    static constexpr int32_t kBlock = 16;
    static constexpr int32_t kLength = 1100;
    static constexpr int64_t kWidth = int64_t{kHeads} * kHeadDim;
    static constexpr auto kBlocks = static_cast<int32_t>(ceil_div(kLength, kBlock));

    kernels::DeviceBuffer k;
    kernels::DeviceBuffer v;
    kernels::DeviceBuffer q;
    kernels::DeviceBuffer out;
    kernels::DeviceBuffer table;
  };

  Prompt make_prompt() {
    const int64_t cache = int64_t{Prompt::kBlocks} * Prompt::kKvHeads *
                          kernels::kv_head_bytes(DType::kBF16, Prompt::kHeadDim, Prompt::kBlock);
    const std::vector<uint16_t> values = bf16_values(cache / 2, 8, 6);
    Prompt prompt;
    prompt.k = rig_.copy_of(values.data(), cache);
    prompt.v = rig_.random(cache);
    std::vector<float> queries;
    for (const uint16_t value : bf16_values(Prompt::kLength * Prompt::kWidth, 9, 4)) {
      queries.push_back(std::bit_cast<float>(uint32_t{value} << 16));
    }
    prompt.q = rig_.copy_of(queries.data(), static_cast<int64_t>(queries.size() * 4));
    prompt.out = rig_.zeros(Prompt::kLength * Prompt::kWidth * 4);
    std::vector<int32_t> table(Prompt::kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    prompt.table = rig_.copy_of(table.data(), Prompt::kBlocks * 4);
    return prompt;
  }

  // Attention of `count` tokens from `first` on, with the partitions of their keys one after the
  // other or side by side.
  std::vector<uint32_t> attend(const Prompt& prompt,
                               int32_t first,
                               int32_t count,
                               bool side_by_side) {
    const kernels::AttentionLimits limits{.num_tokens = count,
                                          .num_reqs = 1,
                                          .seq_len = first + count,
                                          .num_heads = Prompt::kHeads,
                                          .num_kv_heads = Prompt::kKvHeads,
                                          .head_dim = Prompt::kHeadDim,
                                          .num_threads = 1};
    const int64_t room = side_by_side ? kernels::cuda::attention_workspace_bytes(limits, 0) : 0;
    const auto workspace = rig_.zeros(room);
    const std::array<int32_t, 3> numbers = {0, count, first + count};
    const auto gpu_numbers = rig_.copy_of(numbers.data(), sizeof numbers);
    auto* const ints = reinterpret_cast<int32_t*>(gpu_numbers.data());
    kernels::cuda::launch_attention(
        rig_.stream(),
        {.q = reinterpret_cast<float*>(prompt.q.data()) + first * Prompt::kWidth,
         .q_stride = Prompt::kWidth,
         .num_heads = Prompt::kHeads,
         .kv = {.k = prompt.k.data(),
                .v = prompt.v.data(),
                .dtype = DType::kBF16,
                .num_blocks = Prompt::kBlocks,
                .block_size = Prompt::kBlock,
                .num_kv_heads = Prompt::kKvHeads,
                .head_dim = Prompt::kHeadDim},
         .query_start_loc = {ints, 2},
         .seq_lens = {ints + 2, 1},
         .num_tokens = count,
         .max_seq_len = first + count,
         .block_table = reinterpret_cast<int32_t*>(prompt.table.data()),
         .block_table_stride = Prompt::kBlocks,
         .scale = 0.088F,
         .out = reinterpret_cast<float*>(prompt.out.data()),
         .out_stride = Prompt::kWidth,
         .workspace = room > 0 ? workspace.span() : std::span<std::byte>{}},
        limits);
    return words(prompt.out, count * Prompt::kWidth);
  }

  void attention() {
    const Prompt prompt = make_prompt();
    const std::vector<uint32_t> all = attend(prompt, 0, Prompt::kLength, false);
    int64_t compared = 0;
    int64_t differ = 0;
    for (const bool side_by_side : {false, true}) {
      for (const int32_t chunk : {1, 3, 64}) {
        for (const int32_t first : {0, 63, 64, 511, 512, 1000}) {
          const std::vector<uint32_t> part = attend(prompt, first, chunk, side_by_side);
          for (size_t i = 0; i < part.size(); ++i, ++compared) {
            differ += part[i] != all[static_cast<size_t>(first * Prompt::kWidth) + i];
          }
        }
      }
    }
    report("P4", "attention in chunks of 1, 3 and 64", compared, differ, true);
  }

  GpuRig& rig_;
  bool holds_ = true;
};

int run(GpuRig& rig) {
  Probes probes(rig);
  probes.run();
  return probes.holds() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main() { return sluice::bench::run_on_gpu(sluice::bench::run); }
