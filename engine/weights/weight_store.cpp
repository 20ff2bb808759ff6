// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/weight_store.h"

#include "engine/weights/pack.h"

namespace sluice {
namespace {

// A tensor that kernels read as a matrix; the rest (norms, rope factors) are decoded to floats.
bool is_matrix(const GgufTensor& tensor) { return tensor.num_dims == 2 && tensor.dims[1] > 1; }

std::string shape_text(int64_t n, int64_t k) {
  return "[" + std::to_string(n) + ", " + std::to_string(k) + "]";
}

}  // namespace

WeightStore::WeightStore(const GgufFile& file) : file_(file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (!is_matrix(tensor)) continue;
    packed_total_bytes_ += align_up(packed_bytes(tensor.format,
                                                 static_cast<int64_t>(tensor.dims[1]),
                                                 static_cast<int64_t>(tensor.dims[0])),
                                    64);
  }
}

Expected<void> WeightStore::allocate() {
  SLUICE_TRY(arena_, AlignedBuffer::allocate(packed_total_bytes_, "packed weights"));
  return {};
}

bool WeightStore::has(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

Expected<const GgufTensor*> WeightStore::take(const std::string& name) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    return make_error(ErrorCode::kDataLoss, file_.path() + ": tensor " + name + " is missing");
  }
  taken_.insert(tensor->name);
  return tensor;
}

Expected<PackedWeight> WeightStore::matrix(const std::string& name, int64_t n, int64_t k) {
  SLUICE_TRY(const GgufTensor* tensor, take(name));
  if (!is_matrix(*tensor) || static_cast<int64_t>(tensor->dims[1]) != n ||
      static_cast<int64_t>(tensor->dims[0]) != k) {
    return make_error(ErrorCode::kDataLoss,
                      file_.path() + ": tensor " + name + ": found shape " +
                          shape_text(static_cast<int64_t>(tensor->dims[1]),
                                     static_cast<int64_t>(tensor->dims[0])) +
                          " in " + std::to_string(tensor->num_dims) + " dimensions, expected " +
                          shape_text(n, k));
  }
  PackedWeight weight{tensor->format, static_cast<int32_t>(n), static_cast<int32_t>(k), nullptr};
  if (arena_.data() == nullptr) return weight;
  std::byte* dst = arena_.data() + packed_used_bytes_;
  packed_used_bytes_ += align_up(packed_bytes(tensor->format, n, k), 64);
  CHECK_LE(packed_used_bytes_, packed_total_bytes_);
  SLUICE_TRY_VOID(pack_checked(
      file_.path() + ": tensor " + name, tensor->format, tensor->data.data(), n, k, dst));
  weight.data = dst;
  return weight;
}

Expected<std::vector<float>> WeightStore::vector(const std::string& name, int64_t n) {
  SLUICE_TRY(const GgufTensor* tensor, take(name));
  if (tensor->num_dims != 1 || static_cast<int64_t>(tensor->dims[0]) != n) {
    return make_error(ErrorCode::kDataLoss,
                      file_.path() + ": tensor " + name + ": found " +
                          std::to_string(tensor->dims[0]) + " elements in " +
                          std::to_string(tensor->num_dims) + " dimensions, expected [" +
                          std::to_string(n) + "]");
  }
  return decode_checked(
      file_.path() + ": tensor " + name, tensor->format, tensor->data.data(), n);
}

std::vector<std::string> WeightStore::unused() const {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : file_.tensors()) {
    if (!taken_.contains(tensor.name)) names.emplace_back(tensor.name);
  }
  return names;
}

int64_t WeightStore::num_parameters() const {
  int64_t total = 0;
  for (const GgufTensor& tensor : file_.tensors()) {
    int64_t count = 1;
    for (const uint64_t dim : tensor.dims) count *= static_cast<int64_t>(dim);
    total += count;
  }
  return total;
}

}  // namespace sluice
