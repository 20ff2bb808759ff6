// SPDX-License-Identifier: Apache-2.0
// Fields of a chat by the names that another API has for them. The codecs of Responses and Messages
// make chats of their requests; what the chat's validator says must name what the client sent.
// Called on the I/O thread of the request.
#pragma once

#include <span>
#include <string_view>

#include "engine/core/status.h"
#include "server/api/request_validator.h"

namespace sluice {

struct FieldName {
  std::string_view ours;    // a path in the chat, or the end of one that begins with a dot
  std::string_view theirs;  // a path in the client's request; its first name is `param` of an error
};

// `error` with the client's names: `param`, and the path that its text begins with. Of `names` each
// is tried in turn, longer paths before shorter ones.
Error with_names(Error error, std::span<const FieldName> names);

// The grammars of `request`, whose errors the engine finds later, with the client's name.
void name_grammars(GenerationRequest& request, std::span<const FieldName> names);

}  // namespace sluice
