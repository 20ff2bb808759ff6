// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/weight_store.h"

#include "engine/weights/pack.h"

namespace sluice {
namespace {

// Rows of the last dimension, whatever dimensions are above it.
int64_t num_rows(const CheckpointTensor& tensor) {
  return static_cast<int64_t>(tensor.dims[1] * tensor.dims[2] * tensor.dims[3]);
}

std::string shape_text(int64_t n, int64_t k) {
  return "[" + std::to_string(n) + ", " + std::to_string(k) + "]";
}

}  // namespace

Expected<void> WeightStore::allocate(int64_t bytes) {
  SLUICE_TRY(arena_, AlignedBuffer::allocate(bytes, "packed weights"));
  return {};
}

Expected<const CheckpointTensor*> WeightStore::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint_.path() + ": tensor " + name + " is missing");
  }
  taken_.insert(tensor->name);
  return tensor;
}

Expected<PackedWeight> WeightStore::matrix(const std::string& name,
                                           int64_t n,
                                           int64_t k,
                                           RowSlice slice) {
  SLUICE_TRY(const CheckpointTensor* tensor, take(name));
  const int64_t rows = slice.total == 0 ? n : slice.total;
  if (tensor->num_dims < 2 || num_rows(*tensor) != rows ||
      static_cast<int64_t>(tensor->dims[0]) != k) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint_.path() + ": tensor " + name + ": found shape " +
                          shape_text(num_rows(*tensor), static_cast<int64_t>(tensor->dims[0])) +
                          " in " + std::to_string(tensor->num_dims) + " dimensions, expected " +
                          shape_text(rows, k));
  }
  CHECK_LE(slice.first + n, rows);
  PackedWeight weight{tensor->format, static_cast<int32_t>(n), static_cast<int32_t>(k), nullptr};
  const int64_t begin = packed_bytes_;
  packed_bytes_ += align_up(sluice::packed_bytes(tensor->format, n, k), 64);
  if (arena_.data() == nullptr) return weight;
  CHECK_LE(packed_bytes_, static_cast<int64_t>(arena_.span().size()));
  std::byte* dst = arena_.data() + begin;
  SLUICE_TRY_VOID(pack_checked(checkpoint_.path() + ": tensor " + name,
                               tensor->format,
                               tensor->data.data() + slice.first * row_bytes(tensor->format, k),
                               n,
                               k,
                               dst));
  weight.data = dst;
  return weight;
}

Expected<std::vector<float>> WeightStore::vector(const std::string& name,
                                                 int64_t n,
                                                 RowSlice slice) {
  SLUICE_TRY(const CheckpointTensor* tensor, take(name));
  const int64_t wanted = slice.total == 0 ? n : slice.total * n;
  const int64_t found = num_rows(*tensor) * static_cast<int64_t>(tensor->dims[0]);
  const bool is_row = slice.total != 0 || tensor->num_dims == 1;
  if (!is_row || found != wanted || static_cast<int64_t>(tensor->dims[0]) != n) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint_.path() + ": tensor " + name + ": found " +
                          std::to_string(found) + " elements in " +
                          std::to_string(tensor->num_dims) + " dimensions, expected [" +
                          (slice.total == 0 ? "" : std::to_string(slice.total) + ", ") +
                          std::to_string(n) + "]");
  }
  return decode_checked(checkpoint_.path() + ": tensor " + name,
                        tensor->format,
                        tensor->data.data() + slice.first * row_bytes(tensor->format, n),
                        n);
}

std::vector<std::string> WeightStore::unused() const {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (!taken_.contains(tensor.name)) names.push_back(tensor.name);
  }
  return names;
}

int64_t WeightStore::num_parameters() const {
  int64_t total = 0;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    int64_t count = 1;
    for (const uint64_t dim : tensor.dims) count *= static_cast<int64_t>(dim);
    total += count;
  }
  return total;
}

}  // namespace sluice
