// SPDX-License-Identifier: Apache-2.0
// The actions that a transition wants, in order. Both machines of a handoff answer an event with a
// handful of them, so a list does not allocate.
#pragma once

#include <array>
#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

template <typename Action>
class ActionList {
 public:
  static constexpr size_t kCapacity = 8;  // tests/engine/handoff_model_test.cpp reaches them all

  void push(const Action& action) {
    CHECK_LT(size_, kCapacity);
    actions_[size_++] = action;
  }

  [[nodiscard]] const Action* begin() const { return actions_.data(); }

  [[nodiscard]] const Action* end() const { return actions_.data() + size_; }

  [[nodiscard]] size_t size() const { return size_; }

 private:
  std::array<Action, kCapacity> actions_{};
  size_t size_ = 0;
};

}  // namespace sluice
