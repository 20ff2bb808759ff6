// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/file_tensor.h"

#include <algorithm>

#include "engine/weights/gguf_parse.h"

namespace sluice {

std::optional<Error> why_unreadable(std::string_view dtype,
                                    std::span<const uint64_t> shape,
                                    const std::string& file,
                                    const std::string& field) {
  constexpr size_t kMaxDims = 4;
  const std::optional<ElementType> type = element_type(dtype);
  const bool is_scalar_code = type && !float_format(*type) && shape.empty();
  if (!type || is_scalar_code) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = file + ": " + field + ": dtype: found " + in_quotes(dtype) +
                            ", expected F32, F16, BF16, or of codes F8_E4M3, F8_E8M0, I8, U8 or "
                            "I32 beside a quantization_config",
                 .param = {}};
  }
  if (shape.empty() || shape.size() > kMaxDims) {
    return damaged_file(
               file, field + ": shape", std::to_string(shape.size()) + " dimensions", "1 to 4")
        .value();
  }
  if (std::ranges::find(shape, uint64_t{0}) != shape.end()) {
    return damaged_file(file, field + ": shape", "0 elements", "1 or more").value();
  }
  return std::nullopt;
}

tl::unexpected<Error> damaged_file(const std::string& file,
                                   const std::string& field,
                                   const std::string& found,
                                   const std::string& expected) {
  return make_error(ErrorCode::kDataLoss,
                    file + ": " + field + ": found " + found + ", expected " + expected);
}

}  // namespace sluice
