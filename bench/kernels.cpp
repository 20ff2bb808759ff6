// SPDX-License-Identifier: Apache-2.0
// Linear layers against the machine's limits:
//   kernels [--isa I] [--threads N] [--rows 1,8] [--only SHAPE,SHAPE] [--together [--json]]
//           [--probes-only]
//
// One line per weight shape and row count: time per call, GOP/s and share of the int8 peak, GB/s of
// weights read and share of the read bandwidth. Each shape has as many copies of its weight as
// exceed 96 MB, used in turn, so that a call finds its weight in memory, as a decode step does.
// Probes and kernel alternate; shares are medians of the ratios within a round. --together: the
// shapes take turns by processor time, and each is compared with the first; with --json a line of
// JSON for each. --probes-only prints the limits as JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bench/probes.h"
#include "kernels/gemm.h"
#include "quant/repack.h"

namespace sluice::bench {
namespace {

using kernels::ActivationFormat;

struct Shape {
  const char* name;
  WeightFormat format;
  ActivationFormat activation;
  int32_t n;
  int32_t k;
};

constexpr auto kQ4 = WeightFormat::kQ4_1;
constexpr auto kQ8 = WeightFormat::kQ8_0;
constexpr auto kInt8 = ActivationFormat::kInt8;

constexpr auto kW8 = WeightFormat::kInt8Channel;
constexpr auto kToken = ActivationFormat::kInt8Token;

constexpr Shape kShapes[] = {
    {"135M qkv", kQ4, kInt8, 960, 576},
    {"135M o", kQ4, kInt8, 576, 576},
    {"135M gate/up", kQ4, kInt8, 3072, 576},
    {"135M down", kQ4, kInt8, 576, 1536},
    {"135M head", kQ8, kInt8, 49152, 576},
    {"270M head", kQ8, kInt8, 262144, 640},
    {"1B gate/up", kQ4, kInt8, 16384, 2048},
    {"1B o Q4_1", kQ4, kInt8, 2048, 2048},
    {"1B down", kQ4, kInt8, 2048, 8192},
    {"135M gate/up int16", kQ4, ActivationFormat::kInt16, 3072, 576},
    {"135M gate/up float", kQ4, ActivationFormat::kFloat, 3072, 576},
    {"135M gate/up f16", WeightFormat::kF16, ActivationFormat::kFloat, 3072, 576},
    {"1B o Q4_0", WeightFormat::kQ4_0, kInt8, 2048, 2048},
    {"1B o Q8_0", WeightFormat::kQ8_0, kInt8, 2048, 2048},
    {"1B o Q4_K", WeightFormat::kQ4_K, kInt8, 2048, 2048},
    {"1B o Q6_K", WeightFormat::kQ6_K, kInt8, 2048, 2048},
    {"1B o Q5_K", WeightFormat::kQ5_K, kInt8, 2048, 2048},
    {"1B o BF16", WeightFormat::kBF16, ActivationFormat::kFloat, 2048, 2048},
    {"1B o Q5_0", WeightFormat::kQ5_0, kInt8, 2048, 2048},
    {"1B o Q2_K", WeightFormat::kQ2_K, kInt8, 2048, 2048},
    {"1B o Q3_K", WeightFormat::kQ3_K, kInt8, 2048, 2048},
    {"1B o IQ4_XS", WeightFormat::kIQ4_XS, kInt8, 2048, 2048},
    {"1B o MXFP4", WeightFormat::kMXFP4, kInt8, 2048, 2048},
    {"1B o NVFP4", WeightFormat::kNVFP4, kInt8, 2048, 2048},
    {"1B o INT4", WeightFormat::kInt4Group128, kInt8, 2048, 2048},
    {"1B o INT4 per 32", WeightFormat::kInt4Group32, kInt8, 2048, 2048},
    {"1B o INT8 per 32", WeightFormat::kInt8Group32, kInt8, 2048, 2048},
    {"1B o FP8", WeightFormat::kE4M3Channel, ActivationFormat::kE4M3Token, 2048, 2048},
    {"1B o FP8 block", WeightFormat::kE4M3Block, ActivationFormat::kE4M3Group, 2048, 2048},
    {"1B o W8A8", kW8, kToken, 2048, 2048},
    {"1B gate/up W8A8", kW8, kToken, 16384, 2048},
    {"1B down W8A8", kW8, kToken, 2048, 8192},
};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
};

using Buffer = std::unique_ptr<std::byte, FreeAligned>;

// Returns words of 16 bits: `base`, with the bits of `varied` random.
Buffer random_buffer(int64_t bytes, uint16_t base, uint16_t varied) {
  const auto size = static_cast<size_t>(align_up(bytes, 64));
  Buffer buffer(static_cast<std::byte*>(::operator new (size, std::align_val_t{64})));
  std::minstd_rand rng(1);
  for (size_t i = 0; i < size; i += 2) {
    const auto value = static_cast<uint16_t>(base | (rng() & varied));
    std::memcpy(buffer.get() + i, &value, 2);
  }
  return buffer;
}

// Numbers from 0.5 to 2 as fp16 and as the upper half of an fp32, and from 2^-8 to 0.5 as scales of
// one exponent byte: sums neither overflow nor become denormal, on which some processors take a
// hundred times as long.
Buffer random_numbers(int64_t bytes) { return random_buffer(bytes, 0x3800, 0x7FF); }

Buffer random_weights(WeightFormat format, int64_t bytes) {
  return format == WeightFormat::kMXFP4 ? random_buffer(bytes, 0x7878, 0x707)
                                        : random_numbers(bytes);
}

struct Options {
  std::string isa = "auto";
  int32_t threads = 0;
  std::vector<int32_t> rows = {1, 8, 32, 512};
  std::vector<std::string> only;  // names or parts of them; empty: all shapes
  bool together = false;
  bool json = false;  // for --together
  bool probes_only = false;
};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the CPU time of all threads of the process together.
double processor_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A shape's layer with weights in several copies, so that each call reads them from memory.
class Layer {
 public:
  Layer(const Shape& shape, int32_t rows)
      : shape_(shape),
        rows_(rows),
        weight_bytes_(packed_bytes(shape.format, shape.n, shape.k)),
        copies_(std::max<int64_t>(1, (int64_t{96} << 20) / weight_bytes_)),
        weights_(random_weights(shape.format, weight_bytes_ * copies_)),
        x_(random_numbers(kernels::activation_bytes(shape.activation, rows, shape.k))),
        out_(static_cast<size_t>(rows) * static_cast<size_t>(shape.n)) {}

  [[nodiscard]] const Shape& shape() const { return shape_; }

  [[nodiscard]] int32_t rows() const { return rows_; }

  [[nodiscard]] double operations() const { return 2.0 * rows_ * shape_.n * shape_.k; }

  [[nodiscard]] double weight_bytes() const { return static_cast<double>(weight_bytes_); }

  // Returns the seconds per call by `now`, over calls for 20 ms.
  double seconds(const kernels::ExecContext& ctx, double (*now)()) {
    const auto activations =
        kernels::carve_activations(shape_.activation, rows_, shape_.k, x_.get());
    int64_t calls = 0;
    const double start = now();
    double elapsed = 0;
    do {
      const PackedWeight weight{.format = shape_.format,
                                .n = shape_.n,
                                .k = shape_.k,
                                .data = weights_.get() + weight_bytes_ * (next_++ % copies_)};
      const kernels::RowGroup group{
          .weight = &weight, .out = out_.data(), .out_stride = shape_.n, .bias = nullptr};
      kernels::linear(ctx, {.x = activations, .groups = {&group, 1}});
      ++calls;
      elapsed = now() - start;
    } while (elapsed < 0.02);
    return elapsed / static_cast<double>(calls);
  }

 private:
  Shape shape_;
  int32_t rows_;
  int64_t weight_bytes_;
  int64_t copies_;
  Buffer weights_;
  Buffer x_;
  std::vector<float> out_;
  int64_t next_ = 0;
};

void run_shape(const kernels::ExecContext& ctx, const Shape& shape, int32_t rows) {
  Layer layer(shape, rows);
  std::vector<double> times;
  std::vector<double> int8_peaks;
  std::vector<double> read_peaks;
  std::vector<double> int8_shares;
  std::vector<double> read_shares;
  for (int round = 0; round < 11; ++round) {
    int8_peaks.push_back(probe_int8_gops(ctx));
    read_peaks.push_back(probe_read_gbps(ctx));
    times.push_back(layer.seconds(ctx, wall_seconds));
    int8_shares.push_back(layer.operations() / times.back() * 1e-9 / int8_peaks.back());
    read_shares.push_back(layer.weight_bytes() / times.back() * 1e-9 / read_peaks.back());
  }
  const double seconds = median(times);
  std::printf("%-20s %5d %5d %5d %10.1f %8.1f %5.1f%% %7.1f %5.1f%%   %7.1f %6.1f\n",
              shape.name,
              shape.n,
              shape.k,
              rows,
              seconds * 1e6,
              layer.operations() / seconds * 1e-9,
              100 * median(int8_shares),
              layer.weight_bytes() / seconds * 1e-9,
              100 * median(read_shares),
              median(int8_peaks),
              median(read_peaks));
  std::fflush(stdout);
}

// Shapes take turns and count CPU time, so that other work of the machine slows all of them alike;
// each one's rate is printed as a share of the first's.
void run_together(const kernels::ExecContext& ctx,
                  const std::vector<Shape>& shapes,
                  int32_t rows,
                  bool json) {
  constexpr int kRounds = 31;
  std::vector<std::unique_ptr<Layer>> layers;
  for (const Shape& shape : shapes) layers.push_back(std::make_unique<Layer>(shape, rows));
  std::vector<std::vector<double>> times(layers.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < layers.size(); ++i)
      times[i].push_back(layers[i]->seconds(ctx, processor_seconds));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = *layers[i];
    std::vector<double> operations;
    std::vector<double> bytes;
    for (size_t round = 0; round < kRounds; ++round) {
      const double faster = times[0][round] / times[i][round];
      operations.push_back(faster * layer.operations() / layers[0]->operations());
      bytes.push_back(faster * layer.weight_bytes() / layers[0]->weight_bytes());
    }
    const double seconds = median(times[i]);
    const char* const form =
        json ? "{\"shape\": \"%s\", \"n\": %d, \"k\": %d, \"rows\": %d, \"us\": %.1f, "
               "\"gops\": %.1f, \"gbps\": %.2f, \"of_gops\": %.3f, \"of_gbps\": %.3f, "
               "\"bits\": %.3f}\n"
             : "%-20s %5d %5d %5d %10.1f %8.1f %7.1f   %5.2f of its GOP/s, %5.2f of its GB/s, %.3f "
               "bits\n";
    const Shape& shape = layer.shape();
    std::printf(form,
                shape.name,
                shape.n,
                shape.k,
                rows,
                seconds * 1e6,
                layer.operations() / seconds * 1e-9,
                layer.weight_bytes() / seconds * 1e-9,
                median(operations),
                median(bytes),
                8 * layer.weight_bytes() / (double{1} * shape.n * shape.k));
  }
  std::fflush(stdout);
}

// Prints the limits as one line of JSON.
void print_probes(const kernels::ExecContext& ctx) {
  std::vector<double> int8_peaks;
  std::vector<double> tile_peaks;
  std::vector<double> read_peaks;
  for (int round = 0; round < 11; ++round) {
    int8_peaks.push_back(probe_int8_gops(ctx));
    tile_peaks.push_back(probe_tile_gops(ctx));
    read_peaks.push_back(probe_read_gbps(ctx));
  }
  std::printf("{\"int8_gops\": %.1f, \"tile_gops\": %.1f, \"read_gbps\": %.2f}\n",
              median(std::move(int8_peaks)),
              median(std::move(tile_peaks)),
              median(std::move(read_peaks)));
}

// Returns shapes in the order asked for: those whose name is, or contains, a part.
std::vector<Shape> chosen_shapes(const std::vector<std::string>& only) {
  if (only.empty()) return {std::begin(kShapes), std::end(kShapes)};
  std::vector<Shape> shapes;
  for (const std::string& part : only) {
    const auto is_named = [&](const Shape& shape) { return shape.name == part; };
    const bool is_whole = std::any_of(std::begin(kShapes), std::end(kShapes), is_named);
    for (const Shape& shape : kShapes) {
      const bool has_part = std::string(shape.name).find(part) != std::string::npos;
      if (is_whole ? is_named(shape) : has_part) shapes.push_back(shape);
    }
  }
  return shapes;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

int run(const Options& options) {
  const auto device = kernels::Device::create({.isa = options.isa, .threads = options.threads});
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  if (options.probes_only) {
    print_probes((*device)->context());
    return 0;
  }
  if (!options.json) {
    std::printf("%s, %d threads\n", (*device)->name().c_str(), (*device)->num_threads());
  }
  const std::vector<Shape> shapes = chosen_shapes(options.only);
  if (options.together) {
    for (const int32_t rows : options.rows) {
      run_together((*device)->context(), shapes, rows, options.json);
    }
    return 0;
  }
  std::printf("%-20s %5s %5s %5s %10s %8s %6s %7s %6s   %7s %6s\n",
              "weight",
              "n",
              "k",
              "rows",
              "us",
              "GOP/s",
              "int8",
              "GB/s",
              "read",
              "int8",
              "read");
  for (const Shape& shape : shapes) {
    for (const int32_t rows : options.rows) run_shape((*device)->context(), shape, rows);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--probes-only") {
      options.probes_only = true;
      continue;
    }
    if (flag == "--together" || flag == "--json") {
      (flag == "--json" ? options.json : options.together) = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--isa") {
      options.isa = value;
    } else if (flag == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (flag == "--only") {
      options.only = sluice::bench::split(value);
    } else if (flag == "--rows") {
      options.rows.clear();
      for (const std::string& rows : sluice::bench::split(value)) {
        options.rows.push_back(std::atoi(rows.c_str()));
      }
    } else {
      std::fprintf(stderr,
                   "usage: kernels [--isa I] [--threads N] [--rows 1,8] [--only SHAPE,SHAPE] "
                   "[--together [--json]] [--probes-only]\n");
      return 2;
    }
  }
  return sluice::bench::run(options);
}
