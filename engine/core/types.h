// SPDX-License-Identifier: Apache-2.0
// The vocabulary of ids, enums and small arithmetic that every layer shares.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string_view>

namespace sluice {

// A distinct integer type per meaning, so that a block id cannot be passed for a slot id.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value; }
};

using RequestId = StrongId<struct RequestIdTag, uint64_t>;  // unique for the life of a process
using BlockId = StrongId<struct BlockIdTag, int32_t>;       // index into one KV group's storage
using TenantId = StrongId<struct TenantIdTag, uint64_t>;    // shares the engine; 0: unnamed
using TokenId = int32_t;                                    // index into the vocabulary

inline constexpr TokenId kInvalidToken = -1;
inline constexpr BlockId kNullBlock{-1};  // a slot whose contents are not kept (window groups)

enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kI32, kF8E4M3 };
constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI8:
    case DType::kF8E4M3:
      return 1;
  }
  return 0;
}
constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kI8: return "int8";
    case DType::kI32: return "int32";
    case DType::kF8E4M3:
      return "fp8_e4m3";
  }
  return "unknown";
}

enum class DeviceType : uint8_t { kCpu, kCuda };

// The reason why a request ended; kNone while it runs.
enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };
constexpr std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "";
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace sluice

template <typename Tag, typename Rep>
struct std::hash<sluice::StrongId<Tag, Rep>> {
  size_t operator()(sluice::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
