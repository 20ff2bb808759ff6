// SPDX-License-Identifier: Apache-2.0
#include "kernels/for_each.h"

#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels {

void for_each(const ExecContext& host, int64_t count, const std::function<void(int64_t)>& work) {
  if (count > 0) host.pool->parallel_for(count, [&work](int64_t i, int32_t) { work(i); });
}

}  // namespace sluice::kernels
