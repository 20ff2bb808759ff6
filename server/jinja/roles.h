// SPDX-License-Identifier: Apache-2.0
// What the source of a chat template says about messages, without rendering it.
#pragma once

#include <string>
#include <vector>

#include "server/jinja/ast.h"

namespace sluice::jinja {

inline constexpr size_t kMaxNamedRoles = 32;

struct NamedRoles {
  // String literals that something called a role is compared with, in order, at most
  // kMaxNamedRoles of them.
  std::vector<std::string> compared;
  // Names that end in `_token` and that it reads, at most kMaxNamedRoles of them.
  std::vector<std::string> tokens;
  bool has_developer = false;   // the literal "developer" is anywhere in an expression
  bool reads_messages = false;  // the name `messages` is
};

NamedRoles find_named_roles(const Block& block);

}  // namespace sluice::jinja
