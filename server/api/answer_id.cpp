// SPDX-License-Identifier: Apache-2.0
#include "server/api/answer_id.h"

#include "server/http/random_id.h"

namespace sluice {

std::string answer_id(Endpoint endpoint) {
  return random_id(endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-");
}

}  // namespace sluice
