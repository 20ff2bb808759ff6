// SPDX-License-Identifier: Apache-2.0
// Bytes of an HTTP client through the validator. The first byte picks the endpoint.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/request_oracle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto endpoint =
      (data[0] & 1) != 0 ? sluice::Endpoint::kChat : sluice::Endpoint::kCompletion;
  sluice::IgnoredArguments ignored(sluice::UnknownArguments::kIgnore);
  sluice::judge(sluice::validate_generation(sluice::fuzz_context(), body, endpoint, ignored));
  sluice::check_header_value(ignored);
  return 0;
}
