// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/weight_store.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "engine/core/load_watch.h"
#include "engine/core/log.h"
#include "engine/weights/latent_halves.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/pack.h"
#include "engine/weights/random_weights.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

// Size of files that load for seconds and fill a notable part of memory.
constexpr int64_t kLarge = 512 << 20;

// The number of rows of the last dimension, over all dimensions above it.
int64_t num_rows(const CheckpointTensor& tensor) {
  return static_cast<int64_t>(tensor.dims[1] * tensor.dims[2] * tensor.dims[3]);
}

// The bytes of rows [first, first + n); of a matrix with codes along n, all bytes.
std::span<const std::byte> bytes_of_slice(const CheckpointTensor& tensor,
                                          int64_t first,
                                          int64_t n) {
  const int64_t rows = num_rows(tensor);
  if (tensor.latent) return tensor.latent->whole().data;
  if (tensor.coded && tensor.coded->is_transposed()) return tensor.data;
  const int64_t bytes = static_cast<int64_t>(tensor.data.size()) / rows;
  return tensor.data.subspan(static_cast<size_t>(first * bytes), static_cast<size_t>(n * bytes));
}

// GPTQ writers add a bias to every layer, often zero.
bool is_zero_bias(const CheckpointTensor& tensor) {
  return tensor.name.ends_with(".bias") && !tensor.coded &&
         std::ranges::all_of(tensor.data, [](std::byte byte) { return byte == std::byte{0}; });
}

std::string shape_text(int64_t n, int64_t k) {
  return "[" + std::to_string(n) + ", " + std::to_string(k) + "]";
}

// The number of rows in [0, n) that the share has.
int64_t rows_of(const MatrixShare& share, int64_t n) {
  return share.num_rows == 0 ? n : share.num_rows;
}

// Bytes of `num_rows` rows, in whole tiles or without what is stored after the rows.
int64_t bytes_of_rows(WeightFormat format, MatrixForm form, int64_t num_rows, int64_t columns) {
  return form == MatrixForm::kRows
             ? num_rows * matrix_row_stride(format, columns)
             : ceil_div(num_rows, kRowTile) * packed_tile_bytes(format, columns);
}

// Stores in pieces what `weight` keeps of rows or tiles with all of K. write(first, count, bytes)
// makes a piece; `first` is a multiple of kRowTile.
template <typename Write>
Expected<void> write_stored(const PackedWeight& weight,
                            MatrixForm form,
                            int64_t num_rows,
                            std::vector<std::byte>& scratch,
                            std::byte* to,
                            const Write& write) {
  if (weight.num_columns == 0) return write(0, num_rows, to);
  constexpr int64_t kScratchBytes = 8 << 20;
  const int64_t tile_bytes = bytes_of_rows(weight.format, form, kRowTile, weight.k);
  const int64_t rows = std::min(align_up(num_rows, kRowTile),
                                std::max<int64_t>(1, kScratchBytes / tile_bytes) * kRowTile);
  scratch.resize(static_cast<size_t>(rows / kRowTile * tile_bytes));
  for (int64_t first = 0; first < num_rows; first += rows) {
    const int64_t count = std::min(rows, num_rows - first);
    SLUICE_TRY_VOID(write(first, count, scratch.data()));
    cut_columns(weight.format,
                form,
                weight.k,
                {weight.first_column, weight.num_columns},
                count,
                scratch.data(),
                to + bytes_of_rows(weight.format, form, first, weight.num_columns));
  }
  return {};
}

// The input scale does not change codes but changes what the model computes.
uint64_t with_input_scale(const CheckpointTensor& tensor, uint64_t hash) {
  const float scale = tensor.coded ? tensor.coded->input_scale() : 0;
  return scale > 0 ? XXH3_64bits_withSeed(&scale, sizeof(scale), hash) : hash;
}

}  // namespace

int64_t WeightStore::rows_in(std::string_view name) const {
  const CheckpointTensor* const tensor = checkpoint_.find(name);
  return tensor == nullptr ? 0 : num_rows(*tensor);
}

MatrixForm WeightStore::form_of(WeightFormat format) const {
  const bool rows = device_ == DeviceType::kCuda && has_rows(format);
  return rows ? MatrixForm::kRows : MatrixForm::kTiles;
}

int64_t WeightStore::bytes_of(const PackedWeight& weight) const {
  const int64_t columns = weight.stored_columns();
  return form_of(weight.format) == MatrixForm::kRows
             ? matrix_bytes(weight.format, weight.n, columns)
             : sluice::packed_bytes(weight.format, weight.n, columns);
}

PackedWeight WeightStore::shared_out(WeightFormat format,
                                     int64_t n,
                                     int64_t k,
                                     const MatrixShare& share) const {
  PackedWeight weight{format, static_cast<int32_t>(rows_of(share, n)), static_cast<int32_t>(k)};
  CHECK_EQ(share.first_row % kRowTile, 0);
  CHECK_LE(share.first_row + weight.n, n);
  if (share.end_column == 0) return weight;
  const ColumnRange columns =
      columns_to_store(format, form_of(format), share.first_column, share.end_column, k);
  weight.first_column = static_cast<int32_t>(columns.first);
  weight.num_columns = static_cast<int32_t>(columns.count);
  return weight;
}

std::byte* WeightStore::add(const PackedWeight& weight) {
  const int64_t begin = packed_bytes_;
  packed_bytes_ += align_up(bytes_of(weight), 64);
  bytes_of_types_[static_cast<size_t>(weight.format)] += bytes_of(weight);
  largest_.add(weight);
  if (arena_.data() == nullptr) return nullptr;
  CHECK_LE(packed_bytes_, static_cast<int64_t>(arena_.size()));
  return arena_.data() + begin;
}

std::string WeightStore::types_text() const {
  std::vector<size_t> types;
  for (size_t i = 0; i < bytes_of_types_.size(); ++i) {
    if (bytes_of_types_[i] > 0) types.push_back(i);
  }
  std::ranges::stable_sort(types, std::greater(), [this](size_t i) { return bytes_of_types_[i]; });
  std::string text;
  for (const size_t type : types) {
    text +=
        (text.empty() ? "" : ", ") + std::string(format_info(static_cast<WeightFormat>(type)).name);
  }
  return text;
}

void WeightStore::fill_random(const std::string& name,
                              const PackedWeight& weight,
                              const MatrixShare& share,
                              std::byte* dst) {
  const RandomTile empty(name, weight, share.first_row / kRowTile);
  const MatrixForm form = form_of(weight.format);
  // Calls make_tile(tile, index, rows) for tiles [first, first + count).
  const auto make_tiles = [&](int64_t first, int64_t count, const auto& make_tile) {
    const int64_t workers = num_pack_workers(count * packed_tile_bytes(weight.format, weight.k));
    share_out(count, workers, [&](int64_t, int64_t begin, int64_t end) {
      RandomTile tile = empty;
      for (int64_t i = begin; i < end; ++i) make_tile(i, tile.make(first + i), tile);
    });
  };
  const int64_t tile_bytes = bytes_of_rows(weight.format, form, kRowTile, weight.stored_columns());
  const auto fill = [&](int64_t first, int64_t num_rows, std::byte* to) -> Expected<void> {
    make_tiles(first / kRowTile,
               ceil_div(num_rows, kRowTile),
               [&](int64_t i, int64_t count, const RandomTile& tile) {
                 std::vector<std::byte> scratch;
                 const auto copy = [&](int64_t, int64_t, std::byte* out) -> Expected<void> {
                   form == MatrixForm::kRows ? tile.copy_rows(out) : tile.pack(out);
                   return {};
                 };
                 std::byte* const out = to + i * tile_bytes;
                 CHECK(write_stored(weight, form, count, scratch, out, copy).has_value());
               });
    return {};
  };
  CHECK(fill_rows(name, weight, dst, fill).has_value());
  if (upload_) upload_scales(weight, empty.row_scales(weight.n), dst);
}

template <typename Fill>
Expected<void> WeightStore::fill_rows(const std::string& where,
                                      const PackedWeight& weight,
                                      std::byte* dst,
                                      const Fill& fill) {
  if (!upload_) return fill(0, weight.n, dst);
  const MatrixForm form = form_of(weight.format);
  const int64_t tile_bytes = bytes_of_rows(weight.format, form, kRowTile, weight.stored_columns());
  const int64_t rows = form == MatrixForm::kRows ? weight.n : align_up(weight.n, kRowTile);
  return upload_->rows(where, rows, tile_bytes / kRowTile, dst, fill);
}

// Makes BF16, or the configured format for layers' matrices; routers stay floats.
Expected<PackedWeight> WeightStore::random_matrix(const std::string& name,
                                                  int64_t n,
                                                  int64_t k,
                                                  const MatrixShare& share) {
  const bool is_layers =
      name.starts_with("blk.") && name.find(".ffn_gate_inp.") == std::string::npos;
  PackedWeight weight =
      shared_out(is_layers ? checkpoint_.dummy_format() : WeightFormat::kBF16, n, k, share);
  num_random_ += n * k;
  std::byte* const dst = add(weight);
  if (dst == nullptr) return weight;
  fill_random(name, weight, share, dst);
  weight.data = dst;
  return weight;
}

// Makes values near 1 for norms and near 0 for biases.
std::vector<float> WeightStore::random_vector(const std::string& name, int64_t n) {
  const NamedRandom random(name);
  const float center = name.ends_with("norm.weight") ? 1.0F : 0.0F;
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = center + 0.02F * random.at(i);
  return values;
}

Expected<std::span<std::byte>> WeightStore::allocate(int64_t bytes, AlignedBuffer::Pages pages) {
  CHECK(device_ == DeviceType::kCpu);
  SLUICE_TRY(
      arena_,
      kernels::DeviceBuffer::allocate(kernels::host_memory(), bytes, "packed weights", pages));
  return arena_.span();
}

Expected<void> WeightStore::allocate_on(kernels::DeviceMemory& memory, int64_t bytes) {
  CHECK(device_ == DeviceType::kCuda);
  SLUICE_TRY(arena_, kernels::DeviceBuffer::allocate(memory, bytes, "weights"));
  SLUICE_TRY(upload_, DeviceUpload::create(memory, bytes));
  return {};
}

template <typename T>
DeviceValues<T> WeightStore::place_values(std::vector<T> values) {
  if (device_ == DeviceType::kCpu || values.empty()) return DeviceValues<T>(std::move(values));
  const int64_t begin = packed_bytes_;
  packed_bytes_ += align_up(static_cast<int64_t>(values.size() * sizeof(T)), 64);
  if (!upload_) return {nullptr, values.size()};
  CHECK_LE(packed_bytes_, static_cast<int64_t>(arena_.size()));
  std::byte* const to = arena_.data() + begin;
  upload_->values(std::as_bytes(std::span(values)), to);
  return {reinterpret_cast<const T*>(to), values.size()};
}

DeviceFloats WeightStore::place(std::vector<float> values) {
  return place_values(std::move(values));
}

DeviceInts WeightStore::place(std::vector<int32_t> values) {
  return place_values(std::move(values));
}

WeightInputs WeightStore::inputs_of(std::string_view name) const {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr || !tensor->coded) return {};
  return {.are_floats = tensor->coded->scheme().inputs == SchemeInputs::kFloats,
          .scale = tensor->coded->input_scale()};
}

Expected<const CheckpointTensor*> WeightStore::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    return make_error(ErrorCode::kDataLoss, checkpoint_.place_of(name) + " is missing");
  }
  taken_.insert(tensor->name);
  return tensor;
}

Expected<PackedWeight> WeightStore::matrix(
    const std::string& name, int64_t n, int64_t k, RowSlice slice, const MatrixShare& share) {
  CHECK(keeps_shares() || (share.num_rows == 0 && share.end_column == 0));
  const std::string place = name + " " + std::to_string(slice.first);
  const auto found = matrices_.find(place);
  if (found != matrices_.end()) return found->second;
  SLUICE_TRY(const PackedWeight weight, take_matrix(name, n, k, slice, share));
  matrices_.emplace(place, weight);
  return weight;
}

Expected<PackedWeight> WeightStore::take_matrix(
    const std::string& name, int64_t n, int64_t k, RowSlice slice, const MatrixShare& share) {
  if (checkpoint_.is_dummy()) {
    return random_matrix(name + " " + std::to_string(slice.first), n, k, share);
  }
  SLUICE_TRY(const CheckpointTensor* tensor, take(name));
  const int64_t rows = slice.total == 0 ? n : slice.total;
  if (num_rows(*tensor) != rows || static_cast<int64_t>(tensor->dims[0]) != k) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint_.place_of(name) + ": found shape " +
                          shape_text(num_rows(*tensor), static_cast<int64_t>(tensor->dims[0])) +
                          " in " + std::to_string(tensor->num_dims) + " dimensions, expected " +
                          shape_text(rows, k));
  }
  CHECK_LE(slice.first + n, rows);
  PackedWeight weight = shared_out(tensor->format, n, k, share);
  const int64_t begin = packed_bytes_;
  std::byte* const dst = add(weight);
  note_layout(name, weight, slice, share);
  if (cache_) {
    CHECK_LE(packed_bytes_, static_cast<int64_t>(cache_->arena().size()));
    note_content(name, slice, with_input_scale(*tensor, cache_->content_hash(num_matrices_ - 1)));
    weight.data = cache_->arena().data() + begin;
    return weight;
  }
  if (dst == nullptr) return weight;
  SLUICE_TRY(const uint64_t hash, pack(*tensor, weight, n, slice, share, dst));
  note_content(name, slice, with_input_scale(*tensor, hash));
  matrix_hashes_.push_back(hash);
  report_progress();
  weight.data = dst;
  return weight;
}

Expected<uint64_t> WeightStore::pack(const CheckpointTensor& tensor,
                                     const PackedWeight& weight,
                                     int64_t n,
                                     RowSlice slice,
                                     const MatrixShare& share,
                                     std::byte* dst) {
  const auto source = bytes_of_slice(tensor, slice.first, n);
  // The file is read once, in the order of the layers: one as large as the memory does not evict
  // what is still to be read.
  advise_needed(source);
  SLUICE_TRY(const uint64_t hash, store_share(tensor, weight, slice.first, n, share, dst));
  if (checkpoint_.file_bytes() >= kLarge) advise_read(source);
  return hash;
}

Expected<uint64_t> WeightStore::pack_rows(const CheckpointTensor& tensor,
                                          int64_t first,
                                          int64_t n,
                                          std::byte* dst,
                                          const MatrixPart& part) const {
  const std::string where = checkpoint_.place_of(tensor.name);
  if (tensor.coded) return pack_checked(where, *tensor.coded, first, n, dst, part);
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  if (tensor.latent) {
    const std::vector<std::byte> rows = tensor.latent->rows(first, n);
    return pack_checked(where, tensor.format, rows.data(), n, k, dst, part);
  }
  const std::byte* const source = tensor.data.data() + first * row_bytes(tensor.format, k);
  return pack_checked(where, tensor.format, source, n, k, dst, part);
}

// Hashes and checks the rows of other ranks as one's own.
Expected<uint64_t> WeightStore::hash_others(const CheckpointTensor& tensor,
                                            int64_t first,
                                            int64_t n,
                                            const MatrixShare& share,
                                            Magnitude& magnitude) const {
  if (share.num_rows == 0 || hashed_ == Hashed::kShares) return 0;
  uint64_t hash = 0;
  const int64_t end = share.first_row + share.num_rows;
  for (const auto& [begin, last] : {std::pair{int64_t{0}, share.first_row}, {end, n}}) {
    if (begin == last) continue;
    SLUICE_TRY(
        const uint64_t part,
        pack_rows(tensor,
                  first + begin,
                  last - begin,
                  nullptr,
                  {.layout = MatrixLayout::kNone, .first_row = begin, .magnitude = &magnitude}));
    hash += part;
  }
  return hash;
}

Expected<uint64_t> WeightStore::store_share(const CheckpointTensor& tensor,
                                            const PackedWeight& weight,
                                            int64_t first,
                                            int64_t n,
                                            const MatrixShare& share,
                                            std::byte* dst) {
  const std::string where = checkpoint_.place_of(tensor.name);
  const MatrixForm form = form_of(weight.format);
  const bool rows = form == MatrixForm::kRows;
  Magnitude magnitude;
  SLUICE_TRY(uint64_t hash, hash_others(tensor, first, n, share, magnitude));
  std::vector<std::byte> scratch;
  const auto fill = [&](int64_t from, int64_t room, std::byte* to) -> Expected<void> {
    const int64_t count = std::min(room, weight.n - from);  // the last tile may not be full
    const auto write = [&](int64_t begin, int64_t num_rows, std::byte* out) -> Expected<void> {
      const int64_t row = share.first_row + from + begin;
      SLUICE_TRY(const uint64_t part,
                 pack_rows(tensor,
                           first + row,
                           num_rows,
                           out,
                           {.layout = rows ? MatrixLayout::kRows : MatrixLayout::kTiles,
                            .first_row = row,
                            .magnitude = &magnitude}));
      hash += part;
      return {};
    };
    return write_stored(weight, form, count, scratch, to, write);
  };
  SLUICE_TRY_VOID(fill_rows(where, weight, dst, fill));
  warn_of_magnitude(where, magnitude);
  if (rows && tensor.coded) {
    upload_scales(weight, plain_row_scales(*tensor.coded, first + share.first_row, weight.n), dst);
  }
  return hash;
}

// Uploads the scales of all columns after the rows of a matrix that has such scales.
void WeightStore::upload_scales(const PackedWeight& weight,
                                std::vector<float> scales,
                                std::byte* dst) {
  if (scales.empty()) return;
  const int64_t columns = weight.stored_columns();
  if (weight.num_columns != 0) {
    std::vector<float> cut(
        static_cast<size_t>(weight.n * matrix_row_scales(weight.format, columns)));
    cut_row_scales(weight.format,
                   weight.k,
                   {weight.first_column, weight.num_columns},
                   weight.n,
                   scales.data(),
                   cut.data());
    scales = std::move(cut);
  }
  upload_->values(std::as_bytes(std::span(scales)),
                  dst + matrix_scales_offset(weight.format, weight.n, columns));
}

Expected<std::vector<float>> WeightStore::vector(const std::string& name,
                                                 int64_t n,
                                                 RowSlice slice) {
  const bool is_first = vectors_.insert(name + " " + std::to_string(slice.first)).second;
  if (checkpoint_.is_dummy()) {
    if (is_first) num_random_ += n;
    return random_vector(name, n);
  }
  SLUICE_TRY(const CheckpointTensor* tensor, take(name));
  const int64_t wanted = slice.total == 0 ? n : slice.total * n;
  const int64_t found = num_rows(*tensor) * static_cast<int64_t>(tensor->dims[0]);
  const bool is_row = (slice.total != 0 || tensor->num_dims == 1) && !tensor->coded;
  if (!is_row || found != wanted || static_cast<int64_t>(tensor->dims[0]) != n) {
    return make_error(
        ErrorCode::kDataLoss,
        checkpoint_.place_of(name) + ": found " + std::to_string(found) + " elements in " +
            std::to_string(tensor->num_dims) + " dimensions, expected [" +
            (slice.total == 0 ? "" : std::to_string(slice.total) + ", ") + std::to_string(n) + "]");
  }
  SLUICE_TRY(DecodedRow row,
             decode_checked(checkpoint_.place_of(name),
                            tensor->format,
                            tensor->data.data() + slice.first * row_bytes(tensor->format, n),
                            n));
  if (is_first) note_content(name, slice, row.hash);
  return std::move(row.values);
}

Expected<std::vector<float>> WeightStore::bias(const std::string& name, int64_t n, RowSlice slice) {
  const CheckpointTensor* const tensor = checkpoint_.find(name);
  if (slice.total == 0 || tensor == nullptr || tensor->num_dims > 1) {
    return vector(name, n, slice.in_rows_of(n));
  }
  SLUICE_TRY(const std::vector<float> whole, vector(name, slice.total));
  const auto begin = whole.begin() + slice.first;
  return std::vector<float>(begin, begin + n);
}

Expected<std::vector<float>> WeightStore::flat(const std::string& name, int64_t n) {
  const CheckpointTensor* const tensor = checkpoint_.find(name);
  const bool is_flat = tensor == nullptr || tensor->num_dims == 1 || tensor->coded;
  const auto width = is_flat ? n : static_cast<int64_t>(tensor->dims[0]);
  if (width < 1 || n % width != 0 || n == width) return vector(name, n);
  std::vector<float> values;
  for (int64_t row = 0; row < n / width; ++row) {
    SLUICE_TRY(const std::vector<float> part, vector(name, width, {row, n / width}));
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

void WeightStore::note_layout(std::string_view name,
                              const PackedWeight& weight,
                              RowSlice slice,
                              const MatrixShare& share) {
  const int64_t numbers[] = {static_cast<int64_t>(weight.format),
                             weight.n,
                             weight.k,
                             slice.first,
                             slice.total,
                             share.first_row,
                             weight.first_column,
                             weight.num_columns};
  layout_hash_ = XXH3_64bits_withSeed(name.data(), name.size(), layout_hash_);
  layout_hash_ = XXH3_64bits_withSeed(numbers, sizeof(numbers), layout_hash_);
  ++num_matrices_;
}

ArenaLayout WeightStore::layout() const {
  return {.hash = layout_hash_,
          .num_matrices = num_matrices_,
          .bytes = static_cast<uint64_t>(packed_bytes_)};
}

void WeightStore::note_content(const std::string& name, RowSlice slice, uint64_t hash) {
  if (!counts_content_) return;
  const std::string place = name + " " + std::to_string(slice.first);
  content_hash_ += XXH3_64bits_withSeed(place.data(), place.size(), hash);
}

// Reports to the watcher; without one, logs every tenth of a large model.
void WeightStore::report_progress() {
  const auto total = static_cast<int64_t>(arena_.span().size());
  if (tell_loading(packed_bytes_, total)) return;
  if (total < kLarge || packed_bytes_ < next_report_) return;
  next_report_ = packed_bytes_ + total / 10;
  log_event(LogLevel::kInfo, "repacking", "done_bytes", packed_bytes_, "of_bytes", total);
}

std::vector<std::string> WeightStore::unused() const {
  std::vector<std::string> names;
  std::string_view left_out;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (taken_.contains(tensor.name)) continue;
    if (is_zero_bias(tensor)) {
      left_out = tensor.name;
    } else {
      names.push_back(tensor.name);
    }
  }
  if (!left_out.empty()) {
    warn_of_file(checkpoint_.path(), left_out, "a bias of zeros where there is none", "not given");
  }
  return names;
}

int64_t WeightStore::num_parameters() const {
  int64_t total = num_random_;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    int64_t count = 1;
    for (const uint64_t dim : tensor.dims) count *= static_cast<int64_t>(dim);
    total += count;
  }
  return total;
}

}  // namespace sluice
