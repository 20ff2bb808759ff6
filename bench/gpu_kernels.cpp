// SPDX-License-Identifier: Apache-2.0
// CUDA kernels on the first GPU, at the shapes of an 8B model, against the GPU's limits and, for
// linear layers, cuBLASLt, all in one run. Inputs are random and used in turn, so that none is in
// the L2 cache; attention's are normal, with cache blocks in random order. Times are of recorded
// graphs.
//
//   gpu_kernels [--only linear|tiles|attention|sampling] [FILE]   FILE: the figures as JSON
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cublas_lt.h"
#include "bench/gpu_rig.h"
#include "engine/core/types.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/launch.h"
#include "quant/repack.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Layer {
  const char* name;
  int32_t n;
  int32_t k;
};

// The layers of Llama 3 8B.
constexpr Layer kLayers[] = {{"qkv", 6144, 4096},
                             {"attention out", 4096, 4096},
                             {"gate and up", 28672, 4096},
                             {"down", 4096, 14336},
                             {"head", 128256, 4096}};
constexpr int32_t kRows[] = {1, 4, 8, 16, 32, 64, 512, 2048};
constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kVocab = 128256;

// The GPU's limits.
struct Limits {
  double read = 0;  // bytes a second
  double bf16 = 0;  // operations a second; 0: no cuBLASLt to ask
  double int8 = 0;
};

Limits probe(GpuRig& rig, CublasLt* cublas) {
  Limits limits;
  limits.read = rig.probe_read();
  std::printf("read %.0f GB/s, copy (read and written) %.0f GB/s\n",
              limits.read * 1e-9,
              rig.probe_copy() * 1e-9);
  std::fflush(stdout);  // gpu_peers.py waits for this line
  if (cublas == nullptr) return limits;
  constexpr int32_t kSide = 8192;
  const auto x = rig.random(int64_t{kSide} * kSide * 2);
  const auto w = rig.random(int64_t{kSide} * kSide * 2);
  const auto y = rig.zeros(int64_t{kSide} * kSide * 4);
  const double operations = 2.0 * kSide * kSide * kSide;
  for (const auto type : {CublasLt::Type::kBf16, CublasLt::Type::kInt8}) {
    const double time =
        cublas->best_seconds({type, kSide, kSide, kSide}, x.data(), w.data(), 1, y.data());
    (type == CublasLt::Type::kBf16 ? limits.bf16 : limits.int8) = time > 0 ? operations / time : 0;
  }
  std::printf("cuBLASLt at 8192 x 8192 x 8192: BF16 %.0f TFLOP/s, INT8 %.0f TOP/s\n",
              limits.bf16 * 1e-12,
              limits.int8 * 1e-12);
  return limits;
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// A layer in one of the two formats.
class LinearBench {
 public:
  LinearBench(GpuRig& rig, const Layer& layer, bool int8)
      : rig_(rig),
        layer_(layer),
        int8_(int8),
        bytes_(int64_t{layer.n} * layer.k * (int8 ? 1 : 2)),
        copies_(rig.copies_for(bytes_)),
        weights_(rig.random(bytes_ * copies_)),
        scales_(rig.random(int64_t{layer.n} * 4)) {}

  [[nodiscard]] double ours(int32_t rows) const {
    namespace k = kernels;
    const auto out = rig_.zeros(int64_t{rows} * layer_.n * 4);
    const int64_t bytes = k::cuda::linear_workspace_bytes(rows, layer_.n, int8_ ? layer_.k : 0);
    const auto workspace = rig_.zeros(bytes);
    void* const room = bytes > 0 ? workspace.data() : nullptr;
    const auto format = int8_ ? k::ActivationFormat::kInt8Token : k::ActivationFormat::kBF16;
    const auto x = rig_.random(k::activation_bytes(format, rows, layer_.k));
    const k::Activations in = k::carve_activations(format, rows, layer_.k, x.data());
    return rig_.seconds(copies_, [&](int32_t i) {
      const std::byte* const weight = weights_.data() + i * bytes_;
      if (int8_) {
        k::cuda::launch_linear_int8(rig_.stream(),
                                    {.x = in,
                                     .weight = reinterpret_cast<const int8_t*>(weight),
                                     .weight_stride = layer_.k,
                                     .weight_scale = reinterpret_cast<float*>(scales_.data()),
                                     .n = layer_.n,
                                     .k = layer_.k,
                                     .out = reinterpret_cast<float*>(out.data()),
                                     .out_stride = layer_.n,
                                     .workspace = room});
      } else {
        k::cuda::launch_linear_half(rig_.stream(),
                                    {.x = static_cast<const uint16_t*>(in.data),
                                     .x_stride = layer_.k,
                                     .weight = reinterpret_cast<const uint16_t*>(weight),
                                     .weight_stride = layer_.k,
                                     .num_rows = rows,
                                     .n = layer_.n,
                                     .k = layer_.k,
                                     .out = reinterpret_cast<float*>(out.data()),
                                     .out_stride = layer_.n,
                                     .workspace = room});
      }
    });
  }

  [[nodiscard]] double theirs(CublasLt& cublas, int32_t rows) const {
    const auto out = rig_.zeros(int64_t{rows} * layer_.n * 4);
    const auto x = rig_.random(int64_t{rows} * layer_.k * 2);
    const auto type = int8_ ? CublasLt::Type::kInt8 : CublasLt::Type::kBf16;
    return cublas.best_seconds(
        {type, rows, layer_.n, layer_.k}, x.data(), weights_.data(), copies_, out.data());
  }

  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  GpuRig& rig_;
  const Layer layer_;
  const bool int8_;
  const int64_t bytes_;
  const int32_t copies_;
  kernels::DeviceBuffer weights_;
  kernels::DeviceBuffer scales_;
};

Json linear_layers(GpuRig& rig, CublasLt* cublas, const Limits& limits) {
  Json figures = Json::array();
  std::printf("\n%-5s %-14s %5s %10s %6s %8s %6s %10s %9s\n",
              "",
              "layer",
              "rows",
              "us",
              "read",
              "TOP/s",
              "peak",
              "cuBLASLt",
              "theirs/us");
  for (const bool int8 : {false, true}) {
    for (const Layer& layer : kLayers) {
      const LinearBench bench(rig, layer, int8);
      for (const int32_t rows : kRows) {
        const double time = bench.ours(rows);
        const double theirs = cublas == nullptr ? 0 : bench.theirs(*cublas, rows);
        const double operations = 2.0 * rows * layer.n * layer.k / time;
        std::printf("%-5s %-14s %5d %10.1f %5.1f%% %8.1f %5.1f%% %10.1f %9.2f\n",
                    int8 ? "INT8" : "BF16",
                    layer.name,
                    rows,
                    time * 1e6,
                    percent(static_cast<double>(bench.bytes()) / time, limits.read),
                    operations * 1e-12,
                    percent(operations, int8 ? limits.int8 : limits.bf16),
                    theirs * 1e6,
                    theirs / time);
        std::fflush(stdout);
        figures.push_back({{"type", int8 ? "INT8" : "BF16"},
                           {"layer", layer.name},
                           {"rows", rows},
                           {"us", time * 1e6},
                           {"cublaslt_us", theirs * 1e6}});
      }
    }
  }
  return figures;
}

// Returns the seconds of one layer of weights in tiles with activations of either width.
double tiles_seconds(GpuRig& rig,
                     const Layer& layer,
                     WeightFormat weight,
                     kernels::ActivationFormat activations,
                     int32_t rows) {
  namespace k = kernels;
  const int64_t bytes = packed_bytes(weight, layer.n, layer.k);
  const int32_t copies = rig.copies_for(bytes);
  const auto weights = rig.random(bytes * copies);
  const auto x = rig.random(k::activation_bytes(activations, rows, layer.k));
  const auto out = rig.zeros(int64_t{rows} * layer.n * 4);
  const auto launch = activations == k::ActivationFormat::kInt8
                          ? k::cuda::launch_linear_blocks
                          : k::cuda::launch_linear_blocks_half;
  return rig.seconds(copies, [&](int32_t i) {
    const PackedWeight matrix{
        .format = weight, .n = layer.n, .k = layer.k, .data = weights.data() + i * bytes};
    launch(rig.stream(),
           {.x = k::carve_activations(activations, rows, layer.k, x.data()),
            .weight = &matrix,
            .out = reinterpret_cast<float*>(out.data()),
            .out_stride = layer.n},
           nullptr);
  });
}

Json tile_layers(GpuRig& rig, const Limits& limits) {
  constexpr WeightFormat kFormats[] = {
      WeightFormat::kQ4_K, WeightFormat::kMXFP4, WeightFormat::kNVFP4, WeightFormat::kInt4Group128};
  Json figures = Json::array();
  std::printf(
      "\n%-14s %-5s %-14s %5s %10s %6s %8s\n", "", "x", "layer", "rows", "us", "read", "TOP/s");
  for (const WeightFormat format : kFormats) {
    for (const Layer& layer : kLayers) {
      for (const bool half : {false, true}) {
        for (const int32_t rows : kRows) {
          using kernels::ActivationFormat;
          const auto activations = half ? ActivationFormat::kBF16 : ActivationFormat::kInt8;
          const double time = tiles_seconds(rig, layer, format, activations, rows);
          const auto bytes = static_cast<double>(packed_bytes(format, layer.n, layer.k));
          std::printf("%-14s %-5s %-14s %5d %10.1f %5.1f%% %8.1f\n",
                      format_info(format).name.data(),
                      half ? "BF16" : "int8",
                      layer.name,
                      rows,
                      time * 1e6,
                      percent(bytes / time, limits.read),
                      2e-12 * rows * layer.n * layer.k / time);
          std::fflush(stdout);
          figures.push_back({{"type", format_info(format).name},
                             {"activations", half ? "BF16" : "int8"},
                             {"layer", layer.name},
                             {"rows", rows},
                             {"us", time * 1e6}});
        }
      }
    }
  }
  return figures;
}

// Returns the time of one layer for `tokens` rows each of `reqs` requests with `length` KV tokens.
double attention_seconds(GpuRig& rig, int32_t reqs, int32_t tokens, int32_t length) {
  namespace k = kernels;
  const int32_t blocks_per_req = static_cast<int32_t>(ceil_div(length, kBlockSize));
  const int32_t num_blocks = reqs * blocks_per_req;
  const int64_t head = k::kv_head_bytes(DType::kBF16, kHeadDim, kBlockSize);
  const int64_t cache_bytes = int64_t{num_blocks} * kKvHeads * head;
  const int32_t copies = rig.copies_for(2 * cache_bytes);
  const auto cache_k = rig.normal_bf16(cache_bytes / 2 * copies);
  const auto cache_v = rig.normal_bf16(cache_bytes / 2 * copies);
  const int64_t width = int64_t{kHeads} * kHeadDim;
  const auto q = rig.normal_floats(int64_t{reqs} * tokens * width);
  const auto out = rig.zeros(int64_t{reqs} * tokens * width * 4);
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::minstd_rand(3));
  std::vector<int32_t> starts(static_cast<size_t>(reqs) + 1);
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i) * tokens;
  const std::vector<int32_t> lengths(static_cast<size_t>(reqs), length);
  const auto on_gpu = [&](const std::vector<int32_t>& values) {
    return rig.copy_of(values.data(), static_cast<int64_t>(values.size() * sizeof(int32_t)));
  };
  const auto gpu_table = on_gpu(table);
  const auto gpu_starts = on_gpu(starts);
  const auto gpu_lengths = on_gpu(lengths);
  const k::AttentionLimits limits{.num_tokens = reqs * tokens,
                                  .num_reqs = reqs,
                                  .seq_len = length,
                                  .num_heads = kHeads,
                                  .num_kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .num_threads = 1};
  const int64_t workspace_bytes = k::cuda::attention_workspace_bytes(limits, 0);
  const auto workspace = rig.zeros(workspace_bytes);
  return rig.seconds(copies, [&](int32_t i) {
    k::AttentionArgs args{
        .q = reinterpret_cast<float*>(q.data()),
        .q_stride = width,
        .num_heads = kHeads,
        .kv = {.k = cache_k.data() + i * cache_bytes,
               .v = cache_v.data() + i * cache_bytes,
               .dtype = DType::kBF16,
               .num_blocks = num_blocks,
               .block_size = kBlockSize,
               .num_kv_heads = kKvHeads,
               .head_dim = kHeadDim},
        .query_start_loc = {reinterpret_cast<int32_t*>(gpu_starts.data()), starts.size()},
        .seq_lens = {reinterpret_cast<int32_t*>(gpu_lengths.data()), lengths.size()},
        .num_tokens = reqs * tokens,
        .max_seq_len = length,
        .block_table = reinterpret_cast<int32_t*>(gpu_table.data()),
        .block_table_stride = blocks_per_req,
        .scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim)),
        .out = reinterpret_cast<float*>(out.data()),
        .out_stride = width,
        .workspace = {}};
    if (workspace_bytes > 0) args.workspace = workspace.span();
    k::cuda::launch_attention(rig.stream(), args, limits);
  });
}

Json attention(GpuRig& rig, const Limits& limits) {
  Json figures = {{"decode", Json::array()}, {"prefill", Json::array()}};
  std::printf("\ndecode over BF16 KV, 32 heads, 8 of KV, of 128\n%5s %8s %10s %6s\n",
              "reqs",
              "context",
              "us",
              "read");
  for (const int32_t reqs : {1, 8, 16, 32, 64}) {
    for (const int32_t length : {512, 4096, 16384}) {
      const double time = attention_seconds(rig, reqs, 1, length);
      const double bytes = 2.0 * reqs * length * kKvHeads * kHeadDim * 2;
      std::printf(
          "%5d %8d %10.1f %5.1f%%\n", reqs, length, time * 1e6, percent(bytes / time, limits.read));
      std::fflush(stdout);
      figures["decode"].push_back({{"requests", reqs},
                                   {"context", length},
                                   {"us", time * 1e6},
                                   {"of_read", bytes / time / limits.read}});
    }
  }
  std::printf("\nprefill of one prompt\n%8s %10s %8s %6s\n", "tokens", "us", "TFLOP/s", "peak");
  for (const int32_t length : {512, 2048, 8192}) {
    const double time = attention_seconds(rig, 1, length, length);
    const double operations = 2.0 * kHeads * kHeadDim * length * length / time;
    std::printf("%8d %10.1f %8.1f %5.1f%%\n",
                length,
                time * 1e6,
                operations * 1e-12,
                percent(operations, limits.bf16));
    std::fflush(stdout);
    figures["prefill"].push_back({{"tokens", length}, {"us", time * 1e6}});
  }
  return figures;
}

void sampling(GpuRig& rig, const Limits& limits) {
  std::printf(
      "\nsampling of %d logits\n%5s %-24s %-9s %10s %6s\n", kVocab, "rows", "", "", "us", "read");

  struct Way {
    const char* name;
    float temperature, top_p;
    int32_t top_k;
  };

  constexpr Way kWays[] = {{"greedy", 0, 1, 0},
                           {"temperature 0.8", 0.8F, 1, 0},
                           {"top_p 0.9", 0.8F, 0.9F, 0},
                           {"top_k 50, top_p 0.9", 0.8F, 0.9F, 50}};
  // With the chosen token's log-probability, which needs a sum over all of a row, and without.
  for (const auto& [rows, num_logprobs] :
       {std::pair{1, -1}, {8, -1}, {64, -1}, {1, 0}, {8, 0}, {64, 0}}) {
    const int64_t bytes = int64_t{rows} * kVocab * 4;
    const int32_t copies = rig.copies_for(bytes);
    const auto logits = rig.random(bytes * copies);
    const auto workspace = rig.zeros(kernels::cuda::sampling_workspace_bytes(kVocab, rows));
    for (const Way& way : kWays) {
      std::vector<kernels::SampleRow> asked;
      for (int32_t i = 0; i < copies * rows; ++i) {
        asked.push_back({.logits = reinterpret_cast<float*>(logits.data()) + int64_t{i} * kVocab,
                         .temperature = way.temperature,
                         .top_p = way.top_p,
                         .top_k = way.top_k,
                         .seed = 7,
                         .position = i,
                         .num_logprobs = num_logprobs});
      }
      const auto on_gpu = rig.copy_of(
          asked.data(), static_cast<int64_t>(asked.size() * sizeof(kernels::SampleRow)));
      auto* const first = reinterpret_cast<kernels::SampleRow*>(on_gpu.data());
      const double time = rig.seconds(copies, [&](int32_t i) {
        kernels::cuda::launch_sample(
            rig.stream(),
            {.rows = {first + int64_t{i} * rows, static_cast<size_t>(rows)},
             .vocab_size = kVocab,
             .workspace = workspace.span()});
      });
      std::printf("%5d %-24s %-9s %10.1f %5.1f%%\n",
                  rows,
                  way.name,
                  num_logprobs < 0 ? "" : "logprob",
                  time * 1e6,
                  percent(static_cast<double>(bytes) / time, limits.read));
      std::fflush(stdout);
    }
  }
}

int run(GpuRig& rig, std::string_view only, const char* json_path) {
  const std::unique_ptr<CublasLt> cublas = CublasLt::open(rig);
  const Limits limits = probe(rig, cublas.get());
  Json figures = {{"gpu", rig.name()}, {"read_bytes_per_second", limits.read}};
  const auto wanted = [only](std::string_view part) { return only.empty() || only == part; };
  if (wanted("linear")) figures["linear"] = linear_layers(rig, cublas.get(), limits);
  if (wanted("tiles")) figures["tiles"] = tile_layers(rig, limits);
  if (wanted("attention")) figures["attention"] = attention(rig, limits);
  if (wanted("sampling")) sampling(rig, limits);
  std::printf("\nread again %.0f GB/s\n", rig.probe_read() * 1e-9);
  if (json_path == nullptr) return 0;
  std::ofstream file(json_path);
  file << figures.dump(1) << '\n';
  return file ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  std::string_view only;
  const char* json_path = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      json_path = argv[i];
    }
  }
  if (!only.empty() && only != "linear" && only != "tiles" && only != "attention" &&
      only != "sampling") {
    std::fprintf(stderr, "usage: gpu_kernels [--only linear|tiles|attention|sampling] [FILE]\n");
    return 2;
  }
  return sluice::bench::run_on_gpu([only, json_path](sluice::bench::GpuRig& rig) {
    return sluice::bench::run(rig, only, json_path);
  });
}
