// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/string_format.h"

#include <algorithm>
#include <array>

namespace sluice {
namespace {

constexpr int64_t kEndless = StringSize::kEndless;

// RFC 5321 without what is quoted or an address in brackets; XGrammar's own lets a backslash stand
// before any character inside of quotes, which is no JSON. A text has one derivation.
std::string email() {
  const std::string word = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string label = "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*";
  return "^" + word + "(?:\\." + word + ")*@" + label + "(?:\\." + label + ")*$";
}

// RFC 3986 without addresses in brackets.
std::string uri() {
  const auto one = [](const std::string& more) {
    return "(?:[A-Za-z0-9._~!$&'()*+,;=" + more + "-]|%[0-9A-Fa-f]{2})";
  };
  const std::string authority = "(?:" + one(":") + "*@)?" + one("") + "*(?::[0-9]*)?";
  const std::string segments = "(?:/" + one(":@") + "*)*";
  const std::string rootless = one(":@") + "+" + segments;
  const std::string behind = one(":@/?") + "*";
  return "^[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority + segments + "|/(?:" + rootless + ")?|" +
         rootless + ")?(?:\\?" + behind + ")?(?:#" + behind + ")?$";
}

// RFC 9562, of one version.
std::string uuid(char version) {
  const auto digits = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "[0-9A-Fa-f]";
    return text;
  };
  return "^" + digits(8) + "-" + digits(4) + "-" + version + digits(3) + "-[89ABab]" + digits(3) +
         "-" + digits(12) + "$";
}

}  // namespace

const StringFormat* find_string_format(std::string_view name) {
  static const auto formats = std::to_array<StringFormat>({
      {"date", "", {10, 10}},
      {"time", "", {9, kEndless}},
      {"date-time", "", {20, kEndless}},
      {"duration", "", {3, kEndless}},
      {"ipv4", "", {7, 15}},
      {"ipv6", "", {2, 45}},
      {"hostname", "", {1, kEndless}},
      {"uuid", "", {36, 36}},
      {"uuid1", uuid('1'), {36, 36}},
      {"uuid3", uuid('3'), {36, 36}},
      {"uuid4", uuid('4'), {36, 36}},
      {"uuid5", uuid('5'), {36, 36}},
      {"uuid6", uuid('6'), {36, 36}},
      {"uuid7", uuid('7'), {36, 36}},
      {"uuid8", uuid('8'), {36, 36}},
      {"email", email(), {3, kEndless}},
      {"uri", uri(), {2, kEndless}},
  });
  const auto found = std::ranges::find(formats, name, &StringFormat::name);
  return found == formats.end() ? nullptr : &*found;
}

bool is_remark_on_strings(std::string_view format) {
  static constexpr std::array<std::string_view, 6> kRemarks = {
      "", "binary", "directory-path", "file-path", "password", "path"};
  return std::ranges::find(kRemarks, format) != kRemarks.end();
}

}  // namespace sluice
