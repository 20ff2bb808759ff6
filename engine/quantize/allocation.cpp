// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/allocation.h"

#include <iterator>

namespace sluice {

std::vector<size_t> allocate_bytes(const std::vector<std::vector<Choice>>& matrices,
                                   double max_bytes) {
  std::vector<size_t> chosen(matrices.size(), 0);
  double bytes = 0;
  for (const std::vector<Choice>& choices : matrices) bytes += choices.front().bytes;
  while (true) {
    double best_gain = 0;
    size_t best_matrix = 0;
    size_t best_choice = 0;
    for (size_t m = 0; m < matrices.size(); ++m) {
      const Choice& now = matrices[m][chosen[m]];
      for (size_t c = chosen[m] + 1; c < matrices[m].size(); ++c) {
        const Choice& other = matrices[m][c];
        const double more = other.bytes - now.bytes;
        if (bytes + more > max_bytes || other.error >= now.error) continue;
        const double gain = more > 0 ? (now.error - other.error) / more : now.error - other.error;
        if (gain <= best_gain) continue;
        best_gain = gain;
        best_matrix = m;
        best_choice = c;
      }
    }
    if (best_gain <= 0) return chosen;
    bytes +=
        matrices[best_matrix][best_choice].bytes - matrices[best_matrix][chosen[best_matrix]].bytes;
    chosen[best_matrix] = best_choice;
  }
}

Expected<std::vector<TargetScheme>> schemes_of_more_bits(const TargetScheme& scheme) {
  constexpr const char* kGguf[] = {"Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K", "Q8_0", "f16"};
  std::vector<TargetScheme> schemes = {scheme};
  if (scheme.spelling == Spelling::kGguf) {
    const FormatInfo& info = format_info(scheme.format);
    for (const char* name : kGguf) {
      SLUICE_TRY(const TargetScheme other, parse_target(name));
      const FormatInfo& more = format_info(other.format);
      const bool is_larger = int64_t{more.block_bytes} * info.block_elements >
                             int64_t{info.block_bytes} * more.block_elements;
      if (is_larger) schemes.push_back(other);
    }
    return schemes;
  }
  if (scheme.kind != TargetKind::kCodes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--target-bits: found scheme " + scheme.name + ", expected one of codes",
                      "target-bits");
  }
  if (code_bits(scheme_info(scheme.code).code) == 4 &&
      scheme.spelling == Spelling::kCompressedTensors) {
    SLUICE_TRY(TargetScheme eight, parse_target("fp8"));
    schemes.push_back(std::move(eight));
  }
  schemes.push_back({.name = "kept"});
  return schemes;
}

}  // namespace sluice
