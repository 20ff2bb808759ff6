// SPDX-License-Identifier: Apache-2.0
// A protobuf message as the validator's JSON: set fields under their names, so that the table of
// request parameters governs both front ends.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"

namespace google::protobuf {
class Message;
}

namespace sluice {

class IgnoredArguments;

// A field whose number the message type does not know goes to `ignored`, as "SamplingParams.28".
// kInvalidArgument: `ignored` refuses it, or a list is out of bounds.
Expected<nlohmann::ordered_json> message_json(const google::protobuf::Message& message,
                                              IgnoredArguments& ignored);

}  // namespace sluice
