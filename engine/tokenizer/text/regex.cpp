// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
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
// Bytes in which a match may begin, between looks at a clock; twice as many after each quick look,
// since each search of a window may go through all that follows.
constexpr size_t kFirstWindow = 64;
constexpr int64_t kQuickNs = 1'000'000;
constexpr int kFindsPerLook = 16;
constexpr int64_t kBaseNs = 100'000'000;
constexpr int64_t kNsPerByte = 2'000;

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

bool continues_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

int64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

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
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                              PCRE2_USE_OFFSET_LIMIT,
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
  std::string shown;        // the beginning of the expression
  bool in_windows = false;  // a search may be continued where one of a part has ended
};

struct Regex::Scanner::Impl {
  // Whether the searches may take more time; a clock of the machine is read sooner than a thread's.
  [[nodiscard]] bool has_time() {
    if (limit_ns < 0) return true;
    const int64_t now = now_ns(CLOCK_MONOTONIC);
    was_quick = now - looked_ns < kQuickNs;
    looked_ns = now;
    return now - begin_ns < limit_ns ||
           now_ns(CLOCK_THREAD_CPUTIME_ID) - thread_begin_ns < limit_ns;
  }

  int64_t limit_ns = -1;  // below 0: none
  int64_t begin_ns = 0;
  int64_t thread_begin_ns = 0;
  int64_t looked_ns = 0;  // at the clock
  bool was_quick = false;
  int finds = 0;          // since the last look at the clock
  std::string ended_by;
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

void Regex::Scanner::limit_time(size_t bytes) {
  impl_->limit_ns = kBaseNs + kNsPerByte * static_cast<int64_t>(bytes);
  impl_->begin_ns = impl_->looked_ns = now_ns(CLOCK_MONOTONIC);
  impl_->thread_begin_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
  impl_->finds = 0;
  impl_->ended_by.clear();
}

std::string_view Regex::Scanner::ended_by() const { return impl_->ended_by; }

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
  impl->shown = pattern.empty() ? "(empty)" : pattern.substr(0, kMaxShownBytes);
  // \G is where a search begins.
  impl->in_windows = pattern.find("\\G") == std::string_view::npos;
  return Regex(std::move(impl));
}

Regex Regex::grapheme() {
  auto impl = std::make_unique<Impl>();
  std::string problem;
  impl->code = compile_plain("\\X", problem);
  CHECK(impl->code != nullptr);
  impl->shown = "\\X";
  return Regex(std::move(impl));
}

bool Regex::find(std::string_view text, size_t from, Scanner& scanner, Range& found) const {
  Scanner::Impl& state = *scanner.impl_;
  if (!state.ended_by.empty()) return false;
  const bool in_windows = impl_->in_windows && state.limit_ns >= 0;
  for (size_t window = kFirstWindow;; window *= state.was_quick ? 2 : 1) {
    const size_t last = in_windows && text.size() - from > window ? from + window : text.size();
    const Search search = find_until(text, from, last, scanner, found);
    const bool looks = search != Search::kFound || ++state.finds == kFindsPerLook;
    if (looks) state.finds = 0;
    if (search == Search::kOutgrown || (looks && !state.has_time())) {
      if (state.limit_ns >= 0) state.ended_by = impl_->shown;
      return false;
    }
    if (search == Search::kFound) return true;
    if (last == text.size()) return false;
    from = last + 1;
    while (from < text.size() && continues_character(text[from])) ++from;
  }
}

Regex::Search Regex::find_until(
    std::string_view text, size_t from, size_t last, Scanner& scanner, Range& found) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* match = scanner.impl_->match.get();
  pcre2_match_context* context = scanner.impl_->context.get();
  // A class that backtracks counts one match per character, so the limit grows with the text. It
  // ends what takes exponential time from one beginning; for each beginning it counts anew.
  const size_t limit = kBaseMatchLimit + kMatchesPerByte * text.size();
  pcre2_set_match_limit(
      context,
      static_cast<uint32_t>(std::min<size_t>(limit, std::numeric_limits<uint32_t>::max())));
  pcre2_set_offset_limit(context, last);
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int count = pcre2_match(impl_->code.get(), subject, text.size(), from, kOptions, match, context);
  // The JIT's stack is small; the interpreter uses the heap.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(
        impl_->code.get(), subject, text.size(), from, kOptions | PCRE2_NO_JIT, match, context);
  }
  if (count < 0) return count == PCRE2_ERROR_NOMATCH ? Search::kNone : Search::kOutgrown;
  const size_t* bounds = pcre2_get_ovector_pointer(match);
  found = {bounds[0], bounds[1]};
  return Search::kFound;
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
