// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "engine/tokenizer/text/unicode_classes.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kMaxShownBytes = 200;
constexpr size_t kBaseMatchLimit = 1'000'000;
constexpr size_t kMatchesPerByte = 64;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

using Code = std::unique_ptr<pcre2_code, FreeCode>;

// Returns nullptr and sets `problem` for a bad pattern.
Code compile_plain(std::string_view pattern, std::string& problem) {
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t error_offset = 0;
  // ^ and $ match at every line's ends, as in Oniguruma.
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                          pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                          &error,
                          &error_offset,
                          context.get()));
  if (code == nullptr) {
    char text[128] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
    problem = text;
    return code;
  }
  // Without JIT, which a build of PCRE2 may lack, the interpreter finds the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

tl::unexpected<Error> bad_pattern(std::string_view pattern, const std::string& what) {
  return make_error(
      ErrorCode::kUnsupported,
      "regular expression \"" + std::string(pattern.substr(0, kMaxShownBytes)) + "\": " + what);
}

}  // namespace

struct Regex::Impl {
  Code code;
};

struct Regex::Scanner::Impl {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context{
      pcre2_match_context_create(nullptr)};
};

Regex::Scanner::Scanner() : impl_(std::make_unique<Impl>()) {
  CHECK(impl_->match != nullptr && impl_->context != nullptr);
}

Regex::Scanner::~Scanner() = default;
Regex::Scanner::Scanner(Scanner&&) noexcept = default;
Regex::Scanner& Regex::Scanner::operator=(Scanner&&) noexcept = default;

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Expected<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) return bad_pattern(pattern, "it is too long");
  if (find_invalid_utf8(pattern, 0) != pattern.size()) return bad_pattern(pattern, "no UTF-8");
  SLUICE_TRY(const std::string expanded, expand_unicode_classes(pattern));
  auto impl = std::make_unique<Impl>();
  std::string problem;
  impl->code = compile_plain(expanded, problem);
  if (impl->code == nullptr) return bad_pattern(pattern, problem);
  return Regex(std::move(impl));
}

Regex Regex::grapheme() {
  auto impl = std::make_unique<Impl>();
  std::string problem;
  impl->code = compile_plain("\\X", problem);
  CHECK(impl->code != nullptr);
  return Regex(std::move(impl));
}

bool Regex::find(std::string_view text, size_t from, Scanner& scanner, Range& found) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* match = scanner.impl_->match.get();
  pcre2_match_context* context = scanner.impl_->context.get();
  // A class that backtracks counts one match per character, so the limit grows with the text: it
  // stops expressions of superlinear time, but no run of characters.
  const size_t limit = kBaseMatchLimit + kMatchesPerByte * text.size();
  pcre2_set_match_limit(
      context,
      static_cast<uint32_t>(std::min<size_t>(limit, std::numeric_limits<uint32_t>::max())));
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int count = pcre2_match(impl_->code.get(), subject, text.size(), from, kOptions, match, context);
  // The JIT's stack is small; the interpreter uses the heap.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(
        impl_->code.get(), subject, text.size(), from, kOptions | PCRE2_NO_JIT, match, context);
  }
  // Any other failure is an expression that outgrew a limit and counts as no match.
  if (count < 0) return false;
  const size_t* bounds = pcre2_get_ovector_pointer(match);
  found = {bounds[0], bounds[1]};
  return true;
}

std::string Regex::replaced(std::string_view text,
                            std::string_view content,
                            bool keeps_match,
                            Scanner& scanner) const {
  std::string out;
  change_valid_utf8(text, out, [&](std::string_view part, std::string& result) {
    Range found;
    size_t position = 0;
    while (position < part.size() && find(part, position, scanner, found)) {
      result += part.substr(position, found.begin - position);
      result += content;
      if (keeps_match) {
        result += part.substr(found.begin, found.end - found.begin);
        result += content;
      }
      position = found.end;
    }
    result += part.substr(position);
  });
  return out;
}

}  // namespace sluice
