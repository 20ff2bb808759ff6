// SPDX-License-Identifier: Apache-2.0
// Strings at fixed addresses for the life of the arena, so that views of them stay valid.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace sluice {

class TextArena {
 public:
  // Stores a copy of `head` followed by `tail`.
  std::string_view store(std::string_view head, std::string_view tail = {}) {
    const size_t size = head.size() + tail.size();
    if (size > left_) grow(size);
    char* const begin = next_;
    if (!head.empty()) std::memcpy(begin, head.data(), head.size());
    if (!tail.empty()) std::memcpy(begin + head.size(), tail.data(), tail.size());
    next_ += size;
    left_ -= size;
    return {begin, size};
  }

 private:
  static constexpr size_t kBlockBytes = 16 * 1024;

  void grow(size_t size) {
    left_ = std::max(size, kBlockBytes);
    blocks_.push_back(std::make_unique<char[]>(left_));
    next_ = blocks_.back().get();
  }

  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace sluice
