// SPDX-License-Identifier: Apache-2.0
#include "server/front/ignored_arguments.h"

#include <algorithm>

#include "engine/core/config.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

constexpr size_t kMaxNames = 16;
constexpr size_t kMaxNameBytes = 64;
constexpr std::string_view kMore = "...";

// A character of a token (RFC 9110, 5.6.2), but for the percent sign that begins an escape here.
bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c != '\0' && std::string_view("!#$&'*+-.^_`|~").find(c) != std::string_view::npos);
}

std::string escaped(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (name.empty()) name = "\"\"";
  std::string text;
  for (const char c : name.substr(0, kMaxNameBytes)) {
    if (is_plain(c)) {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += '%';
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  if (name.size() > kMaxNameBytes) text += kMore;
  return text;
}

}  // namespace

UnknownArguments unknown_arguments_rule(const Config& config) {
  return config.unknown_arguments == "refuse" ? UnknownArguments::kRefuse
                                              : UnknownArguments::kIgnore;
}

Expected<void> IgnoredArguments::add(std::string_view name) {
  if (rule_ == UnknownArguments::kRefuse) {
    return make_error(ErrorCode::kInvalidArgument,
                      "Unrecognized request argument: `" + show_text(name) + "`.",
                      std::string(name.substr(0, kMaxNameBytes)));
  }
  note(name);
  return {};
}

void IgnoredArguments::note(std::string_view name) {
  ++size_;
  std::string text = escaped(name);
  if (std::ranges::find(names_, text) != names_.end()) return;
  if (names_.size() == kMaxNames) {
    lacks_names_ = true;
  } else {
    names_.push_back(std::move(text));
  }
}

std::string IgnoredArguments::header_value() const {
  std::string value;
  for (const std::string& name : names_) value += (value.empty() ? "" : ", ") + name;
  if (lacks_names_) value += ", " + std::string(kMore);
  return value;
}

}  // namespace sluice
