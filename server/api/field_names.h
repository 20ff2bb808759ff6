// SPDX-License-Identifier: Apache-2.0
// Another API's names for the fields of a chat. The codecs of Responses and Messages make chats of
// their requests; errors of the chat's validator must name the client's fields. Called on the I/O
// thread of the request.
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

// Returns `error` with the client's names: `param`, and the path that its text begins with. `names`
// are tried in order, longer paths before shorter ones.
Error with_names(Error error, std::span<const FieldName> names);

// Gives the grammars of `request` the client's names, for errors that the engine finds later.
void name_grammars(GenerationRequest& request, std::span<const FieldName> names);

}  // namespace sluice
