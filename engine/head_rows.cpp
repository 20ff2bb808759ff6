// SPDX-License-Identifier: Apache-2.0
#include "engine/head_rows.h"

namespace sluice {

HeadRows::HeadRows(const Model& target, const HeadConfig& head, int32_t max_rows)
    : target_(target), width_(width_of(head)) {
  rows_.reserve(static_cast<size_t>(width_ * max_rows));
}

}  // namespace sluice
