// SPDX-License-Identifier: Apache-2.0
// What libFuzzer gives, taken value by value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::fuzz {

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  // Returns the next bytes as a value; zeros follow the last one.
  template <typename T>
  T take() {
    T value{};
    const size_t count = std::min(sizeof(value), bytes_.size());
    std::memcpy(&value, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return value;
  }

  [[nodiscard]] bool is_over() const { return bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace sluice::fuzz
