// SPDX-License-Identifier: Apache-2.0
// A checkpoint's tensors in the form that kernels read: matrices repacked once into one arena or
// taken from a file of packed weights, norms as floats. Built at load, immutable afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/device_upload.h"
#include "engine/weights/input_tap.h"
#include "engine/weights/pack.h"
#include "engine/weights/packed_cache.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "quant/repack.h"

namespace sluice {

// A range of rows in a tensor that holds several matrices: fused q, k and v, or the experts of a
// layer.
struct RowSlice {
  int64_t first = 0;
  int64_t total = 0;  // rows of the tensor; 0: exactly the requested rows

  // Returns this slice for a tensor that has one row per `n` rows of this one.
  [[nodiscard]] RowSlice in_rows_of(int64_t n) const { return {first / n, total / n}; }
};

// One rank's part of a matrix.
struct MatrixShare {
  int64_t first_row = 0;  // a multiple of kRowTile
  int64_t num_rows = 0;   // 0: all
  int64_t first_column = 0;
  int64_t end_column = 0;  // 0: all
};

// Values in operators' memory.
template <typename T>
class DeviceValues {
 public:
  DeviceValues() = default;

  explicit DeviceValues(std::vector<T> host) : host_(std::move(host)), size_(host_.size()) {}

  DeviceValues(const T* on_device, size_t size) : on_device_(on_device), size_(size) {}

  [[nodiscard]] const T* data() const { return host_.empty() ? on_device_ : host_.data(); }

  [[nodiscard]] size_t size() const { return size_; }

  [[nodiscard]] bool empty() const { return size_ == 0; }

  [[nodiscard]] std::span<const T> span() const { return {data(), size_}; }

 private:
  std::vector<T> host_;
  const T* on_device_ = nullptr;  // set on a device with memory of its own
  size_t size_ = 0;
};

using DeviceFloats = DeviceValues<float>;  // such as a norm or a bias
using DeviceInts = DeviceValues<int32_t>;  // such as a list of columns

// A checkpoint's hints on the rows that a matrix is multiplied with.
struct WeightInputs {
  bool are_floats = false;  // inputs stay floats although codes could take quantized ones
  float scale = 0;          // common to all rows; 0: one per row
};

class WeightStore {
 public:
  // What is kept of a matrix of which a rank uses a part: on a CPU, the ranks of one process read
  // the same whole matrices, while one alone has its share. A device has only its share.
  enum class Kept : uint8_t { kAll, kShare };
  // The subject of content_hash(). Ranks of one process above 0 need not read others' shares for
  // it.
  enum class Hashed : uint8_t { kTensors, kShares };

  // `device`: the type whose operators read the weights.
  explicit WeightStore(const Checkpoint& checkpoint,
                       DeviceType device = DeviceType::kCpu,
                       Kept kept = Kept::kAll,
                       Hashed hashed = Hashed::kTensors)
      : checkpoint_(checkpoint),
        device_(device),
        kept_(device == DeviceType::kCpu ? kept : Kept::kShare),
        hashed_(hashed) {}

  [[nodiscard]] DeviceType device() const { return device_; }

  // Whether matrices are only the share that they are asked for with.
  [[nodiscard]] bool keeps_shares() const { return kept_ == Kept::kShare; }

  // Observes the inputs of matrices taken from now on, on a CPU and where they are floats. Null: no
  // observer. It must outlive all users of these matrices.
  void set_tap(InputTap* tap) { tap_ = tap; }

  [[nodiscard]] InputTap* tap() const { return tap_; }

  // Maxima over the matrices taken so far.
  [[nodiscard]] const kernels::LargestMatrices& largest() const { return largest_; }

  // Bytes of the matrices taken so far. A store that never allocated returns weights without data:
  // taking everything from it once plans memory and checks names and shapes.
  [[nodiscard]] int64_t packed_bytes() const { return packed_bytes_; }

  // Their types, by descending bytes: "FP8, BF16".
  [[nodiscard]] std::string types_text() const;

  // Layout of the matrices taken so far; a dummy checkpoint has none.
  [[nodiscard]] ArenaLayout layout() const;

  // Allocates the arena for matrices taken from now on: zeros that nothing has touched.
  Expected<std::span<std::byte>> allocate(int64_t bytes,
                                          AlignedBuffer::Pages pages = AlignedBuffer::Pages::kHuge);
  // Allocates in a device's memory, for matrices and for place(); `memory` must outlive the store.
  Expected<void> allocate_on(kernels::DeviceMemory& memory, int64_t bytes);

  // Releases what only loading needs; all taken weights are on the device after it.
  void end_uploads() { upload_.reset(); }

  // Used instead of allocate(): the matrices taken from now on are already packed in `cache`.
  void use(PackedCache cache) { cache_ = std::move(cache); }

  // The matrices taken so far; empty without allocate().
  [[nodiscard]] std::span<const std::byte> arena() const { return arena_.span(); }

  // The checkpoint's hashes of the matrices taken so far.
  [[nodiscard]] const std::vector<uint64_t>& matrix_hashes() const { return matrix_hashes_; }

  [[nodiscard]] const std::string& path() const { return checkpoint_.path(); }

  // See Checkpoint::place_of().
  [[nodiscard]] std::string place_of(std::string_view name) const {
    return checkpoint_.place_of(name);
  }

  [[nodiscard]] bool has(std::string_view name) const { return checkpoint_.has(name); }

  // Returns how many rows a tensor has: all dimensions but the fastest. 0: there is none.
  [[nodiscard]] int64_t rows_in(std::string_view name) const;

  // Counts a tensor, if there is one, as used although the model has no need of it.
  void leave_out(std::string_view name) {
    if (const CheckpointTensor* tensor = checkpoint_.find(name)) taken_.insert(tensor->name);
  }

  [[nodiscard]] WeightInputs inputs_of(std::string_view name) const;

  // Returns W[n, k], repacked; repeated requests, as by the ranks of one process, return the same.
  // With a share, for a store that keeps shares, only those rows and columns. kDataLoss: missing,
  // or another shape; the message has both.
  Expected<PackedWeight> matrix(const std::string& name,
                                int64_t n,
                                int64_t k,
                                RowSlice slice = {},
                                const MatrixShare& share = {});
  // Returns n decoded floats of a one-dimensional tensor, or of a slice of one of several
  // dimensions.
  Expected<std::vector<float>> vector(const std::string& name, int64_t n, RowSlice slice = {});

  // Returns those of a bias that belong to n rows of a matrix: of a tensor in one dimension, or of
  // one with a row for each n.
  Expected<std::vector<float>> bias(const std::string& name, int64_t n, RowSlice slice);

  // Returns n decoded floats of a tensor of any shape with as many elements, in their order.
  Expected<std::vector<float>> flat(const std::string& name, int64_t n);

  // Puts the values where operators read them.
  DeviceFloats place(std::vector<float> values);
  DeviceInts place(std::vector<int32_t> values);

  // A store of the same checkpoint that never allocates.
  [[nodiscard]] WeightStore without_data() const {
    return WeightStore(checkpoint_, device_, kept_, hashed_);
  }

  // Whether tensors taken from now on count in content_hash().
  void count_content(bool counts) { counts_content_ = counts; }

  // Hash of the names and bytes of all tensors taken so far, independent of shares and of their
  // order: the sum of those of parts without a tensor in common is that of all.
  [[nodiscard]] uint64_t content_hash() const { return content_hash_; }

  // Tensors of the file that were never requested: a sign of an unsupported variant. A bias of
  // zeros is not listed but warned of.
  [[nodiscard]] std::vector<std::string> unused() const;
  [[nodiscard]] int64_t num_parameters() const;

 private:
  Expected<PackedWeight> take_matrix(
      const std::string& name, int64_t n, int64_t k, RowSlice slice, const MatrixShare& share);
  Expected<const CheckpointTensor*> take(const std::string& name);
  [[nodiscard]] MatrixForm form_of(WeightFormat format) const;
  // Bytes of a matrix where operators read it.
  [[nodiscard]] int64_t bytes_of(const PackedWeight& weight) const;
  // A matrix of which `share` is kept, without data.
  [[nodiscard]] PackedWeight shared_out(WeightFormat format,
                                        int64_t n,
                                        int64_t k,
                                        const MatrixShare& share) const;
  template <typename T>
  DeviceValues<T> place_values(std::vector<T> values);
  // Counts the matrix and returns its address; null without allocate().
  std::byte* add(const PackedWeight& weight);
  Expected<PackedWeight> random_matrix(const std::string& name,
                                       int64_t n,
                                       int64_t k,
                                       const MatrixShare& share);
  void fill_random(const std::string& name,
                   const PackedWeight& weight,
                   const MatrixShare& share,
                   std::byte* dst);
  // Packs and checks rows of a tensor from `first` on.
  Expected<uint64_t> pack_rows(const CheckpointTensor& tensor,
                               int64_t first,
                               int64_t n,
                               std::byte* dst,
                               const MatrixPart& part = {}) const;
  // Packs or uploads the weight's `share` of the `n` rows from `first` on.
  Expected<uint64_t> store_share(const CheckpointTensor& tensor,
                                 const PackedWeight& weight,
                                 int64_t first,
                                 int64_t n,
                                 const MatrixShare& share,
                                 std::byte* dst);
  // Calls fill(first, count, bytes) for pieces of the weight's rows, `first` being a multiple of
  // kRowTile, and moves what it wrote to `dst`.
  template <typename Fill>
  Expected<void> fill_rows(const std::string& where,
                           const PackedWeight& weight,
                           std::byte* dst,
                           const Fill& fill);
  void upload_scales(const PackedWeight& weight, std::vector<float> scales, std::byte* dst);
  Expected<uint64_t> hash_others(const CheckpointTensor& tensor,
                                 int64_t first,
                                 int64_t n,
                                 const MatrixShare& share,
                                 Magnitude& magnitude) const;
  static std::vector<float> random_vector(const std::string& name, int64_t n);
  void note_layout(std::string_view name,
                   const PackedWeight& weight,
                   RowSlice slice,
                   const MatrixShare& share);
  // `n`: rows of the slice.
  Expected<uint64_t> pack(const CheckpointTensor& tensor,
                          const PackedWeight& weight,
                          int64_t n,
                          RowSlice slice,
                          const MatrixShare& share,
                          std::byte* dst);
  void note_content(const std::string& name, RowSlice slice, uint64_t hash);
  void report_progress();

  const Checkpoint& checkpoint_;
  const DeviceType device_;
  InputTap* tap_ = nullptr;
  const Kept kept_;
  const Hashed hashed_;
  kernels::LargestMatrices largest_;
  int64_t packed_bytes_ = 0;
  std::array<int64_t, kNumWeightFormats> bytes_of_types_{};
  uint64_t content_hash_ = 0;
  bool counts_content_ = true;
  uint64_t layout_hash_ = 0;
  uint64_t num_matrices_ = 0;
  std::vector<uint64_t> matrix_hashes_;
  int64_t next_report_ = 0;  // packed bytes
  int64_t num_random_ = 0;   // random parameters of a dummy checkpoint
  kernels::DeviceBuffer arena_;
  std::optional<DeviceUpload> upload_;  // set if arena_ is device memory
  std::optional<PackedCache> cache_;
  std::unordered_set<std::string_view> taken_;
  std::unordered_map<std::string, PackedWeight> matrices_;  // by name and first row
  std::unordered_set<std::string> vectors_;                 // by name and first row
};

}  // namespace sluice
