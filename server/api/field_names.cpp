// SPDX-License-Identifier: Apache-2.0
#include "server/api/field_names.h"

#include <algorithm>
#include <string>

namespace sluice {
namespace {

bool ends_name(const std::string& path, size_t at) {
  return at >= path.size() || path[at] == '.' || path[at] == '`';
}

// Past a quote that the path may begin with.
std::string renamed_path(std::string path, std::span<const FieldName> names) {
  const size_t first = path.starts_with('`') ? 1 : 0;
  for (const FieldName& name : names) {
    const bool is_member = name.ours.starts_with('.');
    const size_t at = is_member ? path.find(name.ours) : first;
    if (at == std::string::npos || path.compare(at, name.ours.size(), name.ours) != 0) continue;
    if (ends_name(path, at + name.ours.size())) {
      path.replace(at, name.ours.size(), name.theirs);
      break;
    }
  }
  return path;
}

std::string renamed_param(const std::string& param, std::span<const FieldName> names) {
  const auto name = std::ranges::find(names, param, &FieldName::ours);
  if (name == names.end()) return param;
  return std::string(name->theirs.substr(0, name->theirs.find('.')));
}

}  // namespace

Error with_names(Error error, std::span<const FieldName> names) {
  const size_t end = std::min(error.message.find(' '), error.message.size());
  error.message = renamed_path(error.message.substr(0, end), names) + error.message.substr(end);
  error.param = renamed_param(error.param, names);
  return error;
}

void name_grammars(GenerationRequest& request, std::span<const FieldName> names) {
  if (request.requests.empty() || request.requests.front().grammar == nullptr) return;
  auto named = std::make_shared<GrammarSpec>(*request.requests.front().grammar);  // all share it
  named->param = renamed_param(named->param, names);
  for (ValidRequest& part : request.requests) part.grammar = named;
}

}  // namespace sluice
