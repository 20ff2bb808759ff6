// SPDX-License-Identifier: Apache-2.0
#include "bench/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kOffers = 8;
constexpr int kTried = 4;

void must(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: cuBLAS status %d\n", what, static_cast<int>(status));
  std::exit(1);
}

}  // namespace

#define SLUICE_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoCheck)

struct CublasLt::Library {
#define SLUICE_DECLARE(name) decltype(&::name) name = nullptr;
  SLUICE_CUBLASLT_FUNCTIONS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
  cublasLtHandle_t handle = nullptr;
};

// Row-major y = x w^T is column-major y^T = (w^T)^T x^T: both inputs have k along their columns.
struct CublasLt::Layouts {
  Layouts(const Library& functions, const Shape& shape) : library(functions) {
    const bool int8 = shape.type == Type::kInt8;
    const cudaDataType_t in = int8 ? CUDA_R_8I : CUDA_R_16BF;
    const cudaDataType_t out = int8 ? CUDA_R_32I : CUDA_R_32F;
    must(library.cublasLtMatmulDescCreate(
             &operation, int8 ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, out),
         "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    must(library.cublasLtMatmulDescSetAttribute(
             operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
         "cublasLtMatmulDescSetAttribute");
    const auto n = static_cast<uint64_t>(shape.n);
    const auto m = static_cast<uint64_t>(shape.m);
    const auto k = static_cast<uint64_t>(shape.k);
    must(library.cublasLtMatrixLayoutCreate(&w, in, k, n, shape.k), "cublasLtMatrixLayoutCreate");
    must(library.cublasLtMatrixLayoutCreate(&x, in, k, m, shape.k), "cublasLtMatrixLayoutCreate");
    must(library.cublasLtMatrixLayoutCreate(&y, out, n, m, shape.n), "cublasLtMatrixLayoutCreate");
  }

  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;

  ~Layouts() {
    library.cublasLtMatrixLayoutDestroy(y);
    library.cublasLtMatrixLayoutDestroy(x);
    library.cublasLtMatrixLayoutDestroy(w);
    library.cublasLtMatmulDescDestroy(operation);
  }

  const Library& library;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
};

CublasLt::CublasLt(GpuRig& rig, std::unique_ptr<Library> library)
    : rig_(rig), library_(std::move(library)), workspace_(rig.zeros(kWorkspaceBytes)) {
  must(library_->cublasLtCreate(&library_->handle), "cublasLtCreate");
}

CublasLt::~CublasLt() = default;

std::unique_ptr<CublasLt> CublasLt::open(GpuRig& rig) {
  void* file = nullptr;
  // The major version of the headers that this was compiled with; struct layouts depend on it.
  for (const char* name : {"libcublasLt.so." SLUICE_CUBLAS_MAJOR, "libcublasLt.so"}) {
    if (file == nullptr) file = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (file == nullptr) {
    std::fprintf(stderr, "no cuBLASLt: %s\n", ::dlerror());
    return nullptr;
  }
  auto library = std::make_unique<Library>();
#define SLUICE_FIND(name)                                                          \
  library->name = reinterpret_cast<decltype(library->name)>(::dlsym(file, #name)); \
  if (library->name == nullptr) {                                                  \
    std::fprintf(stderr, "no cuBLASLt: it lacks %s\n", #name);                     \
    return nullptr;                                                                \
  }
  SLUICE_CUBLASLT_FUNCTIONS(SLUICE_FIND)
#undef SLUICE_FIND
  return std::unique_ptr<CublasLt>(new CublasLt(rig, std::move(library)));
}

std::vector<CublasLt::Algorithm> CublasLt::algorithms(const Shape& shape) {
  const Layouts layouts(*library_, shape);
  cublasLtMatmulPreference_t preference = nullptr;
  must(library_->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  must(library_->cublasLtMatmulPreferenceSetAttribute(preference,
                                                      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &kWorkspaceBytes,
                                                      sizeof kWorkspaceBytes),
       "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t offers[kOffers];
  int count = 0;
  const cublasStatus_t status = library_->cublasLtMatmulAlgoGetHeuristic(library_->handle,
                                                                         layouts.operation,
                                                                         layouts.w,
                                                                         layouts.x,
                                                                         layouts.y,
                                                                         layouts.y,
                                                                         preference,
                                                                         kOffers,
                                                                         offers,
                                                                         &count);
  library_->cublasLtMatmulPreferenceDestroy(preference);
  std::vector<Algorithm> found;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const auto* const data = reinterpret_cast<const std::byte*>(&offers[i].algo);
    found.push_back({.data = {data, data + sizeof offers[i].algo}});
  }
  return found;
}

bool CublasLt::multiply(
    const Shape& shape, const Algorithm& algorithm, const void* x, const void* w, void* y) {
  const Layouts layouts(*library_, shape);
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, algorithm.data.data(), sizeof algo);
  cublasLtMatmulHeuristicResult_t result;
  if (library_->cublasLtMatmulAlgoCheck(library_->handle,
                                        layouts.operation,
                                        layouts.w,
                                        layouts.x,
                                        layouts.y,
                                        layouts.y,
                                        &algo,
                                        &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > kWorkspaceBytes) {
    return false;
  }
  const float float_one = 1;
  const float float_zero = 0;
  const int32_t int_one = 1;
  const int32_t int_zero = 0;
  const bool int8 = shape.type == Type::kInt8;
  return library_->cublasLtMatmul(library_->handle,
                                  layouts.operation,
                                  int8 ? static_cast<const void*>(&int_one) : &float_one,
                                  w,
                                  layouts.w,
                                  x,
                                  layouts.x,
                                  int8 ? static_cast<const void*>(&int_zero) : &float_zero,
                                  y,
                                  layouts.y,
                                  y,
                                  layouts.y,
                                  &algo,
                                  workspace_.data(),
                                  kWorkspaceBytes,
                                  rig_.stream()) == CUBLAS_STATUS_SUCCESS;
}

double CublasLt::best_seconds(
    const Shape& shape, const void* x, const std::byte* w, int32_t copies, void* y) {
  const int64_t bytes = int64_t{shape.n} * shape.k * (shape.type == Type::kInt8 ? 1 : 2);
  double best = 0;
  int tried = 0;
  for (const Algorithm& algorithm : algorithms(shape)) {
    if (tried == kTried) break;
    if (!multiply(shape, algorithm, x, w, y)) continue;
    ++tried;
    const double time =
        rig_.seconds(copies, [&](int32_t i) { multiply(shape, algorithm, x, w + i * bytes, y); });
    best = best == 0 ? time : std::min(best, time);
  }
  return best;
}

}  // namespace sluice::bench
