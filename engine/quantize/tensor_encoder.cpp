// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/tensor_encoder.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "engine/core/types.h"
#include "engine/weights/gguf_parse.h"
#include "quant/kv_code.h"

namespace sluice {
namespace {

// Rows per chunk of a thread: one FP8 block.
constexpr int64_t kChunk = 128;

int64_t num_groups(const Encoding& encoding, int64_t k) {
  return encoding.group == 0 ? 1 : ceil_div(k, encoding.group);
}

// Returns a name without its ".weight".
std::string stem_of(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

std::string code_type(CodeScheme scheme) {
  switch (scheme_info(scheme).code) {
    case CodeKind::kInt8:
      return "I8";
    case CodeKind::kInt4:
      return "I32";
    case CodeKind::kE2M1:
      return "U8";
    case CodeKind::kE4M3:
      return "F8_E4M3";
    default:
      SLUICE_UNREACHABLE("codes that no scheme has");
  }
}

// Returns the largest magnitude of a code on the given side.
double reach_of(CodeScheme scheme, uint8_t zero, bool is_negative) {
  switch (scheme_info(scheme).code) {
    case CodeKind::kInt8:
      return 127;
    case CodeKind::kInt4:
      return is_negative ? zero : 15 - zero;
    case CodeKind::kE2M1:
      return 6;
    case CodeKind::kE4M3:
      return 448;
    default:
      SLUICE_UNREACHABLE("codes that no scheme has");
  }
}

// Fused experts are stored as floats [experts, columns, rows].
bool is_transposed(const TensorJob& job) {
  return job.source->is_fused && job.source->num_dims == 3 && job.target.kind != TargetKind::kCodes;
}

// Hashes weights; both zeros are equal.
uint64_t hash_of(std::vector<double>& values) {
  for (double& value : values) value += 0.0;
  return XXH3_64bits(values.data(), values.size() * sizeof(double));
}

template <typename T>
void put(std::byte* bytes, int64_t index, T value) {
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

class Encoder {
 public:
  Encoder(const std::string& file, const TensorJob& job)
      : file_(file), job_(job), shape_(job.source->shape()) {
    for (StoredTensor& tensor : parts_of(job)) {
      const auto bytes = static_cast<size_t>(tensor.bytes());
      result_.parts.push_back({std::move(tensor), std::vector<std::byte>(bytes)});
    }
    num_chunks_ = ceil_div(shape_.rows, kChunk);
    errors_.resize(static_cast<size_t>(num_chunks_));
  }

  Expected<EncodedTensor> run(int32_t threads) {
    if (job_.target.kind == TargetKind::kCodes) {
      matrix_scale_ = matrix_scale(job_.target.encoding, job_.largest_magnitude);
      store_matrix_tensors();
    }
    const auto work = [this](int64_t chunk) {
      return job_.target.kind == TargetKind::kCodes ? encode_chunk(chunk) : convert_chunk(chunk);
    };
    SLUICE_TRY_VOID(for_chunks(num_chunks_, threads, work));
    std::vector<uint64_t> hashes;
    for (const TensorError& error : errors_) {
      result_.error.squared_error += error.squared_error;
      result_.error.squared_weights += error.squared_weights;
      result_.error.weighed_error += error.weighed_error;
      result_.error.weighed_weights += error.weighed_weights;
      result_.error.num_clipped += error.num_clipped;
      hashes.push_back(error.value_hash);
    }
    result_.error.value_hash = XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
    if (is_transposed(job_)) transpose();
    return std::move(result_);
  }

 private:
  struct Rows {
    int64_t first;
    int64_t count;
  };

  [[nodiscard]] Rows rows_of_chunk(int64_t chunk) const {
    const int64_t first = chunk * kChunk;
    return {first, std::min(kChunk, shape_.rows - first)};
  }

  [[nodiscard]] const float* importance() const {
    return job_.inputs == nullptr ? nullptr : job_.inputs->mean_squares.data();
  }

  std::byte* part(size_t index) { return result_.parts[index].bytes.data(); }

  // Stores tensors that exist once per matrix.
  void store_matrix_tensors() {
    const Encoding& encoding = job_.target.encoding;
    const SchemeInfo& info = scheme_info(encoding.scheme);
    if (info.place == ScalePlace::kMatrix) put(part(1), 0, matrix_scale_);
    if (info.has_multiplier) {
      const bool divides = job_.target.spelling == Spelling::kCompressedTensors;
      put(part(2), 0, divides ? 1.0F / matrix_scale_ : matrix_scale_);
    }
    if (info.code == CodeKind::kInt4) {
      put(part(2), 0, shape_.rows);
      put(part(2), 1, shape_.width);
    }
  }

  Expected<void> encode_chunk(int64_t chunk) {
    const Encoding& encoding = job_.target.encoding;
    const Rows rows = rows_of_chunk(chunk);
    const int64_t k = shape_.width;
    const int64_t groups = num_groups(encoding, k);
    std::vector<float> x(static_cast<size_t>(rows.count * k));
    SLUICE_TRY_VOID(SourceRows(file_, *job_.source).read(rows.first, rows.count, x.data()));
    const FloatRows in{.x = x.data(), .importance = importance(), .rows = rows.count, .k = k};
    std::vector<float> scales(static_cast<size_t>(rows.count * groups));
    std::vector<uint8_t> zeros(scheme_info(encoding.scheme).has_zeros ? scales.size() : 0);
    std::vector<uint8_t> codes(x.size());
    const RowScales both = {scales.data(), zeros.empty() ? nullptr : zeros.data()};
    choose_scales(encoding, in, matrix_scale_, both);
    if (job_.gptq != nullptr) {
      job_.gptq->encode(encoding, in, matrix_scale_, both, codes.data());
    } else {
      encode_codes(encoding, in, matrix_scale_, both, codes.data());
    }
    store_codes(rows, codes);
    store_scales(rows, scales);
    if (!zeros.empty()) store_zeros(rows, zeros);
    return measure(chunk, in, both, codes);
  }

  void store_codes(const Rows& rows, const std::vector<uint8_t>& codes) {
    const int64_t k = shape_.width;
    if (code_bits(scheme_info(job_.target.encoding.scheme).code) == 8) {
      std::memcpy(part(0) + rows.first * k, codes.data(), codes.size());
      return;
    }
    // These bytes are also words of 8 codes: little-endian, the first code lowest.
    std::byte* out = part(0) + rows.first * k / 2;
    for (size_t i = 0; i < codes.size(); i += 2) {
      out[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
    }
  }

  void store_scales(const Rows& rows, const std::vector<float>& scales) {
    const Encoding& encoding = job_.target.encoding;
    const int64_t groups = num_groups(encoding, shape_.width);
    const SchemeInfo& info = scheme_info(encoding.scheme);
    if (info.place == ScalePlace::kMatrix) return;
    const bool is_block = info.place == ScalePlace::kBlock;
    const int64_t first = is_block ? rows.first / kChunk * groups : rows.first * groups;
    const int64_t count = is_block ? groups : rows.count * groups;
    for (int64_t i = 0; i < count; ++i) {
      const float scale = scales[static_cast<size_t>(i)];
      if (info.scales == ScaleType::kE4M3) {
        put(part(1), first + i, nearest_code(CodeScheme::kE4M3Tensor, scale, 1));
      } else if (info.scales == ScaleType::kE8M0) {
        put(part(1), first + i, static_cast<uint8_t>(std::ilogb(scale) + 127));
      } else if (info.code == CodeKind::kInt4) {
        put(part(1), first + i, float_to_bf16(scale));
      } else {
        put(part(1), first + i, scale);
      }
    }
  }

  // Packs words of 8 along the rows; a chunk has whole words.
  void store_zeros(const Rows& rows, const std::vector<uint8_t>& zeros) {
    constexpr int64_t kPerWord = 8;
    static_assert(kChunk % kPerWord == 0);
    const int64_t groups = num_groups(job_.target.encoding, shape_.width);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t first = 0; first < rows.count; first += kPerWord) {
        uint32_t word = 0;
        for (int64_t i = 0; i < std::min(kPerWord, rows.count - first); ++i) {
          word |= uint32_t{zeros[static_cast<size_t>((first + i) * groups + g)]} << (4 * i);
        }
        put(part(3), (rows.first + first) / kPerWord * groups + g, word);
      }
    }
  }

  Expected<void> measure(int64_t chunk,
                         const FloatRows& in,
                         const RowScales& scales,
                         const std::vector<uint8_t>& codes) {
    const Encoding& encoding = job_.target.encoding;
    const int64_t group = encoding.group == 0 ? in.k : encoding.group;
    const int64_t groups = num_groups(encoding, in.k);
    const double multiplier =
        scheme_info(encoding.scheme).has_multiplier ? double{matrix_scale_} : 1.0;
    TensorError& error = errors_[static_cast<size_t>(chunk)];
    std::vector<double> values(codes.size());
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t i = 0; i < in.k; ++i) {
        const auto at = static_cast<size_t>(r * in.k + i);
        const int64_t of_group = r * groups + i / group;
        const double scale = double{scales.scales[of_group]} * multiplier;
        const uint8_t zero = scales.zeros == nullptr ? kMiddleOfInt4 : scales.zeros[of_group];
        const double x = in.x[at];
        values[at] = double{code_value(encoding.scheme, codes[at], zero)} * scale;
        add_error(error, i, x, values[at]);
        const double reach = reach_of(encoding.scheme, zero, x < 0) * scale;
        error.num_clipped += std::fabs(x) > reach * (1 + 1e-6);
      }
    }
    error.value_hash = hash_of(values);
    return check_values(chunk, values);
  }

  // Rejects weights beyond their target's range, which would be stored as infinite.
  [[nodiscard]] Expected<void> check_values(int64_t chunk,
                                            const std::vector<double>& values) const {
    const auto bad = std::ranges::find_if(values, [](double x) { return !std::isfinite(x); });
    if (bad == values.end()) return {};
    const int64_t row = chunk * kChunk + (bad - values.begin()) / shape_.width;
    return make_error(ErrorCode::kDataLoss,
                      file_ + ": tensor " + sluice::in_quotes(job_.source->name) + ": row " +
                          std::to_string(row) + ": found a weight that is " + number_text(*bad) +
                          " as " + job_.target.name + ", expected finite ones");
  }

  // Turns columns into rows, per expert.
  void transpose() {
    const std::vector<std::byte> rows = result_.parts[0].bytes;
    const int64_t experts = static_cast<int64_t>(job_.source->dims[2]);
    const int64_t n = shape_.rows / experts;
    const int64_t k = shape_.width;
    const auto bytes = static_cast<int64_t>(rows.size()) / (shape_.rows * k);
    for (int64_t row = 0; row < shape_.rows; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const int64_t to = (row / n * k + i) * n + row % n;
        std::memcpy(
            part(0) + to * bytes, rows.data() + (row * k + i) * bytes, static_cast<size_t>(bytes));
      }
    }
  }

  void add_error(TensorError& error, int64_t column, double x, double value) const {
    const double square = (x - value) * (x - value);
    const double weight = importance() == nullptr ? 1.0 : double{importance()[column]};
    error.squared_error += square;
    error.squared_weights += x * x;
    error.weighed_error += weight * square;
    error.weighed_weights += weight * x * x;
  }

  // Converts to rows of blocks or floats, or copies.
  Expected<void> convert_chunk(int64_t chunk) {
    const Rows rows = rows_of_chunk(chunk);
    const int64_t k = shape_.width;
    const bool is_kept = job_.target.kind == TargetKind::kKept;
    const WeightFormat format = is_kept ? *job_.source->format() : job_.target.format;
    const int64_t bytes = row_bytes(format, k);
    std::byte* out = part(0) + rows.first * bytes;
    std::vector<float> x(static_cast<size_t>(rows.count * k));
    SourceRows source(file_, *job_.source);
    SLUICE_TRY_VOID(source.read(rows.first, rows.count, x.data()));
    TensorError& error = errors_[static_cast<size_t>(chunk)];
    std::vector<double> values(x.size());
    if (is_kept) source.copy(rows.first, rows.count, out);
    for (int64_t r = 0; r < rows.count && !is_kept; ++r) {
      encode_blocks(format, x.data() + r * k, importance(), k, out + r * bytes);
    }
    if (job_.gptq != nullptr) {
      job_.gptq->encode_blocks(format, {.x = x.data(), .rows = rows.count, .k = k}, out);
    }
    for (int64_t r = 0; r < rows.count; ++r) {
      dequantize_row_f64(format, out + r * bytes, k, values.data() + r * k);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      add_error(error, static_cast<int64_t>(i) % k, double{x[i]}, values[i]);
    }
    error.value_hash = hash_of(values);
    // Scales beyond their range make the error infinite instead.
    return layout_of(format).is_integer() ? Expected<void>() : check_values(chunk, values);
  }

  const std::string& file_;
  const TensorJob& job_;
  TensorRows shape_;
  int64_t num_chunks_ = 0;
  float matrix_scale_ = 1;
  std::vector<TensorError> errors_;
  EncodedTensor result_;
};

std::string float_type(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBF16:
      return "BF16";
    default:
      return "U8";  // GGUF's blocks, which have types of their own
  }
}

}  // namespace

double TensorError::relative() const {
  if (!std::isfinite(squared_error)) return std::numeric_limits<double>::infinity();
  return squared_weights > 0 ? std::sqrt(squared_error / squared_weights) : 0;
}

std::vector<StoredTensor> parts_of(const TensorJob& job) {
  const SourceTensor& source = *job.source;
  const TensorRows shape = source.shape();
  const int64_t n = shape.rows;
  const int64_t k = shape.width;
  std::vector<int64_t> dims;
  for (uint32_t d = source.num_dims; d-- > 0;) dims.push_back(static_cast<int64_t>(source.dims[d]));
  if (job.target.kind != TargetKind::kCodes) {
    const bool is_kept = job.target.kind == TargetKind::kKept;
    const WeightFormat format = is_kept ? *source.format() : job.target.format;
    StoredTensor tensor{.name = source.stored_name, .dtype = float_type(format), .shape = dims};
    if (layout_of(format).is_integer()) {
      tensor.shape = {n, row_bytes(format, k)};
    } else if (is_transposed(job)) {
      std::swap(tensor.shape[1], tensor.shape[2]);
    }
    return {tensor};
  }
  if (source.is_fused) {
    const int64_t experts = dims[0];
    constexpr int64_t kBlock = 32;
    return {{source.stored_name + "_blocks", "U8", {experts, n / experts, k / kBlock, kBlock / 2}},
            {source.stored_name + "_scales", "U8", {experts, n / experts, k / kBlock}}};
  }
  const Encoding& encoding = job.target.encoding;
  const std::string stem = stem_of(source.stored_name);
  const std::string weight = stem + ".weight";
  const int64_t groups = num_groups(encoding, k);
  const std::string codes = code_type(encoding.scheme);
  const bool divides = job.target.spelling == Spelling::kCompressedTensors;
  switch (encoding.scheme) {
    case CodeScheme::kInt8Channel:
    case CodeScheme::kE4M3Channel:
      return {{weight, codes, {n, k}}, {weight + "_scale", "F32", {n, 1}}};
    case CodeScheme::kE4M3Tensor:
      return {{weight, codes, {n, k}}, {weight + "_scale", "F32", {1}}};
    case CodeScheme::kE4M3Block:
      return {{weight, codes, {n, k}},
              {weight + "_scale_inv", "F32", {ceil_div(n, kChunk), groups}}};
    case CodeScheme::kInt4Group:
      return {{weight + "_packed", codes, {n, k / 8}},
              {weight + "_scale", "BF16", {n, groups}},
              {weight + "_shape", "I64", {2}}};
    case CodeScheme::kInt4Zeros:
      return {{weight + "_packed", codes, {n, k / 8}},
              {weight + "_scale", "BF16", {n, groups}},
              {weight + "_shape", "I64", {2}},
              {weight + "_zero_point", "I32", {ceil_div(n, 8), groups}}};
    case CodeScheme::kNvfp4:
      if (divides) {
        return {{weight + "_packed", codes, {n, k / 2}},
                {weight + "_scale", "F8_E4M3", {n, groups}},
                {weight + "_global_scale", "F32", {1}}};
      }
      return {{weight, codes, {n, k / 2}},
              {weight + "_scale", "F8_E4M3", {n, groups}},
              {weight + "_scale_2", "F32", {}}};
    case CodeScheme::kMxfp4:
      return {{weight + "_packed", codes, {n, k / 2}}, {weight + "_scale", "U8", {n, groups}}};
  }
  return {};
}

Expected<EncodedTensor> encode_tensor(const std::string& file,
                                      const TensorJob& job,
                                      int32_t threads) {
  return Encoder(file, job).run(threads);
}

Expected<float> largest_magnitude(const std::string& file,
                                  const SourceTensor& tensor,
                                  int32_t threads) {
  const TensorRows shape = tensor.shape();
  const int64_t num_chunks = ceil_div(shape.rows, kChunk);
  std::vector<float> largest(static_cast<size_t>(num_chunks));
  const auto work = [&](int64_t chunk) -> Expected<void> {
    const int64_t first = chunk * kChunk;
    const int64_t count = std::min(kChunk, shape.rows - first);
    std::vector<float> x(static_cast<size_t>(count * shape.width));
    SLUICE_TRY_VOID(SourceRows(file, tensor).read(first, count, x.data()));
    for (const float value : x) {
      float& here = largest[static_cast<size_t>(chunk)];
      here = std::max(here, std::fabs(value));
    }
    return {};
  };
  SLUICE_TRY_VOID(for_chunks(num_chunks, threads, work));
  float all = 0;
  for (const float value : largest) all = std::max(all, value);
  return all;
}

uint64_t hash_values(const std::string& file, const SourceTensor& tensor, int32_t threads) {
  const TensorRows shape = tensor.shape();
  const int64_t num_chunks = ceil_div(shape.rows, kChunk);
  std::vector<uint64_t> hashes(static_cast<size_t>(num_chunks));
  const auto done = for_chunks(num_chunks, threads, [&](int64_t chunk) -> Expected<void> {
    const int64_t first = chunk * kChunk;
    const int64_t count = std::min(kChunk, shape.rows - first);
    std::vector<double> values(static_cast<size_t>(count * shape.width));
    SourceRows(file, tensor).read_f64(first, count, values.data());
    hashes[static_cast<size_t>(chunk)] = hash_of(values);
    return {};
  });
  CHECK(done.has_value());
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
}

Expected<void> for_chunks(int64_t num_chunks,
                          int32_t threads,
                          const std::function<Expected<void>(int64_t)>& work) {
  std::vector<Expected<void>> results(static_cast<size_t>(num_chunks));
  std::atomic<int64_t> next = 0;
  const auto run = [&] {
    for (int64_t chunk = next++; chunk < num_chunks; chunk = next++) {
      results[static_cast<size_t>(chunk)] = work(chunk);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int32_t i = 1; i < std::min<int64_t>(threads, num_chunks); ++i) others.emplace_back(run);
    run();
  }
  for (Expected<void>& result : results) {
    if (!result) return result;
  }
  return {};
}

}  // namespace sluice
