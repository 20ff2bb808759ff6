// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_order.h"

#include "engine/sampling/sampler.h"

namespace sluice {

bool reads_history(const RequestRecord& request) {
  return request.grammar != nullptr || reads_tokens(request.sampling);
}

}  // namespace sluice
