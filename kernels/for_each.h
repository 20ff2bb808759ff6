// SPDX-License-Identifier: Apache-2.0
// Work of the host that is no operator, on the compute threads.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/device.h"

namespace sluice::kernels {

// Calls work(i) once for each i in [0, count) on the threads of a host context, side by side, and
// returns when all are done. Called like an operator.
void for_each(const ExecContext& host, int64_t count, const std::function<void(int64_t)>& work);

}  // namespace sluice::kernels
