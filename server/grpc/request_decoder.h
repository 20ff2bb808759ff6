// SPDX-License-Identifier: Apache-2.0
// Turns the messages of both gRPC services into the one validator's parameters.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "server/api/request_validator.h"

namespace vllm::grpc::engine {
class GenerateRequest;
}

namespace sluice {

namespace v1 {
class ChatRequest;
class CompletionRequest;
}  // namespace v1

// An error's `param` is the field of the message if that has another name. `ignored`: gets the
// fields that are known neither by name nor by number; a field known by name is never left out.
Expected<GenerationRequest> decode(ValidationContext context,
                                   const vllm::grpc::engine::GenerateRequest& request,
                                   IgnoredArguments& ignored);
// `stream`: tells which method was called, because the messages do not.
Expected<GenerationRequest> decode(const ValidationContext& context,
                                   const v1::CompletionRequest& request,
                                   IgnoredArguments& ignored,
                                   bool stream);
Expected<GenerationRequest> decode(const ValidationContext& context,
                                   const v1::ChatRequest& request,
                                   IgnoredArguments& ignored,
                                   bool stream);

}  // namespace sluice
