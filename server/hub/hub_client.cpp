// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

namespace sluice::hub {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxRedirects = 8;
constexpr int kMaxAttempts = 5;  // in a row without one byte of progress
constexpr milliseconds kFirstPause{250};
constexpr int64_t kMaxRetryAfter = 30;  // seconds
constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxShownBytes = 160;

bool may_help_to_retry(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kResourceExhausted;
}

std::optional<int64_t> parse_size(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

// Path characters stay; a slash only where it separates.
std::string url_encoded(std::string_view text, bool keep_slash) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += '%';
      encoded += "0123456789ABCDEF"[byte >> 4];
      encoded += "0123456789ABCDEF"[byte & 15];
    }
  }
  return encoded;
}

// A header's text in one line of ours.
std::string shown(std::string_view text) {
  std::string line(text.substr(0, kMaxShownBytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  return line;
}

// W/"abc" as abc; empty if it cannot be a file's name.
std::string plain_etag(std::string_view text) {
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  const bool is_name = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  const bool usable = is_name && !text.empty() && text.size() <= 128 && text.front() != '.';
  return usable ? std::string(text) : std::string();
}

// Seconds; nullopt: not said, or a date.
std::optional<int64_t> retry_after(const client::ResponseHead& head) {
  return parse_size(head.field("retry-after"));
}

class TextSink final : public client::ResponseSink {
 public:
  Expected<void> on_head(const client::ResponseHead&) override {
    text.clear();  // of a redirect before it
    return {};
  }

  Expected<void> on_body(std::string_view bytes) override {
    if (text.size() + bytes.size() > kMaxTextBytes) {
      return make_error(ErrorCode::kDataLoss, "an answer of more than 64 MiB");
    }
    text += bytes;
    return {};
  }

  std::string text;
};

// Appends the answer to a partial file if it begins where that ends.
class FileSink final : public client::ResponseSink {
 public:
  FileSink(PartialFile& partial, const std::function<void(int64_t)>& on_bytes)
      : partial_(partial), on_bytes_(on_bytes) {}

  Expected<void> on_head(const client::ResponseHead& head) override {
    keeps_ = head.status == 200 || head.status == 206;
    if (head.status == 200 && partial_.size() > 0) return start_over();  // the range was not heeded
    if (head.status == 206) {
      const std::string_view range = head.field("content-range");
      const std::string begin = "bytes " + std::to_string(partial_.size()) + "-";
      if (!range.starts_with(begin)) {
        keeps_ = false;
        SLUICE_TRY_VOID(start_over());
        return make_error(
            ErrorCode::kUnavailable,
            "content-range: found \"" + shown(range) + "\", expected \"" + begin + "...\"");
      }
    }
    if (head.status == 416) return start_over();
    return {};
  }

  Expected<void> on_body(std::string_view bytes) override {
    if (!keeps_) return {};
    SLUICE_TRY_VOID(partial_.append(bytes));
    on_bytes_(static_cast<int64_t>(bytes.size()));
    return {};
  }

 private:
  Expected<void> start_over() {
    on_bytes_(-partial_.size());
    return partial_.restart();
  }

  PartialFile& partial_;
  const std::function<void(int64_t)>& on_bytes_;
  bool keeps_ = false;
};

// Calls `attempt` until it succeeds, fails for good, or fails too often without `has_progress`. It
// may set the seconds to wait before the next one.
template <typename Attempt, typename HasProgress>
auto with_retries(Attempt attempt, HasProgress has_progress, int max_attempts = kMaxAttempts) {
  milliseconds pause = kFirstPause;
  for (int failures = 1;; ++failures) {
    std::optional<int64_t> asked;
    auto result = attempt(asked);
    if (result || !may_help_to_retry(result.error())) return result;
    if (asked.value_or(0) > kMaxRetryAfter) {
      result.error().message += "; try again in " + std::to_string(*asked) + " s";
      return result;
    }
    if (has_progress()) {
      failures = 1;
      pause = kFirstPause;
    }
    if (failures == max_attempts) {
      if (failures == 1) return result;
      result.error().message += " (tried " + std::to_string(failures) + " times)";
      return result;
    }
    client::pause_for(asked ? std::chrono::seconds(*asked) : pause);
    pause *= 2;
  }
}

}  // namespace

std::string HubClient::file_url(const std::string& commit, const std::string& path) const {
  return options_.url + "/" + repo_ + "/resolve/" + commit + "/" + url_encoded(path, true);
}

Expected<client::ResponseHead> HubClient::ask(client::FetchRequest request,
                                              client::ResponseSink& sink) const {
  const std::string hub = client::origin_of(options_.url);
  const auto headers = request.headers;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    request.headers = headers;
    const std::string origin = client::origin_of(request.url);
    if (origin == hub && !options_.token.empty()) {
      request.headers.emplace_back("Authorization", "Bearer " + options_.token);
    }
    SLUICE_TRY(client::ResponseHead head, client::fetch(request, sink));
    if (head.status < 300 || head.status > 399 || head.status == 304) return head;
    if (request.method == "HEAD" && !head.field("x-linked-etag").empty()) return head;
    const std::string_view location = head.field("location");
    const std::string next = client::resolve_location(request.url, location);
    if (next.empty() || (origin.starts_with("https:") && !next.starts_with("https:"))) {
      return make_error(ErrorCode::kDataLoss,
                        request.url + ": location: found \"" + shown(location) +
                            "\", expected a URL" +
                            (origin.starts_with("https:") ? " of https" : ""));
    }
    request.url = next;
  }
  return make_error(ErrorCode::kDataLoss,
                    request.url + ": more than " + std::to_string(kMaxRedirects) + " redirects");
}

tl::unexpected<Error> HubClient::refused(const std::string& url,
                                         const client::ResponseHead& head) const {
  const int status = head.status;
  const std::string_view code = head.field("x-error-code");
  std::string text = url + ": status " + std::to_string(status);
  if (!code.empty()) text += " " + shown(code);
  if (!head.field("x-error-message").empty()) text += ": " + shown(head.field("x-error-message"));
  if (status == 401 || status == 403) {
    text += options_.token.empty()
                ? "; there is no such model, or it needs a token (--hf-token or HF_TOKEN)"
                : "; there is no such model, or this token may not read it";
    return make_error(ErrorCode::kPermissionDenied, text);
  }
  if (status == 404) {
    text += code == "RevisionNotFound" ? "; there is no revision " + options_.revision
            : code == "EntryNotFound"  ? "; there is no such file"
                                       : "; there is no model " + repo_ + ", or no revision " +
                                            options_.revision + " of it";
    return make_error(ErrorCode::kNotFound, text);
  }
  if (status == 429 || status == 408 || status >= 500) {
    return make_error(status == 429 ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
                      text);
  }
  return make_error(ErrorCode::kDataLoss, text);
}

Expected<RepoInfo> HubClient::repo_info(const std::string& revision, bool patient) const {
  const std::string url =
      options_.url + "/api/models/" + repo_ + "/revision/" + url_encoded(revision, false);
  TextSink sink;
  const auto attempt = [&](std::optional<int64_t>& wait) -> Expected<RepoInfo> {
    SLUICE_TRY(const client::ResponseHead head,
               ask({.method = "GET", .url = url, .headers = {}}, sink));
    wait = retry_after(head);
    if (head.status != 200) return refused(url, head);
    auto info = parse_repo_info(sink.text);
    if (!info) return make_error(info.error().code, url + ": " + info.error().message);
    return info;
  };
  return with_retries(attempt, [] { return false; }, patient ? kMaxAttempts : 1);
}

Expected<RemoteFile> HubClient::describe(const std::string& commit, const std::string& path) const {
  const std::string url = file_url(commit, path);
  TextSink sink;
  const auto attempt = [&](std::optional<int64_t>& wait) -> Expected<RemoteFile> {
    SLUICE_TRY(const client::ResponseHead head,
               ask({.method = "HEAD", .url = url, .headers = {}}, sink));
    wait = retry_after(head);
    const std::string_view linked = head.field("x-linked-etag");
    if (head.status != 200 && linked.empty()) return refused(url, head);
    const std::string_view length =
        head.field(head.fields.contains("x-linked-size") ? "x-linked-size" : "content-length");
    const auto size = parse_size(length);
    RemoteFile file{.path = path,
                    .etag = plain_etag(linked.empty() ? head.field("etag") : linked),
                    .size = size.value_or(0)};
    if (!size || file.etag.empty()) {
      return make_error(ErrorCode::kDataLoss,
                        url + ": headers: found etag \"" + shown(head.field("etag")) +
                            "\" and length \"" + shown(length) + "\", expected both");
    }
    return file;
  };
  return with_retries(attempt, [] { return false; });
}

Expected<void> HubClient::download(const std::string& commit,
                                   const RemoteFile& file,
                                   PartialFile& partial,
                                   const std::function<void(int64_t)>& on_bytes) const {
  const std::string url = file_url(commit, file.path);
  int64_t farthest = partial.size();
  FileSink sink(partial, on_bytes);
  const auto attempt = [&](std::optional<int64_t>& wait) -> Expected<void> {
    const int64_t begin = partial.size();
    if (begin == file.size) return {};
    client::FetchRequest request{.method = "GET", .url = url, .headers = {}};
    if (begin > 0) {
      request.headers.emplace_back("Range", "bytes=" + std::to_string(begin) + "-");
    }
    SLUICE_TRY(const client::ResponseHead head, ask(std::move(request), sink));
    wait = retry_after(head);
    if (head.status == 416) return make_error(ErrorCode::kUnavailable, url + ": status 416");
    if (head.status != 200 && head.status != 206) return refused(url, head);
    if (partial.size() == file.size) return {};
    return make_error(ErrorCode::kUnavailable,
                      url + ": size: found " + std::to_string(partial.size()) +
                          " bytes, expected " + std::to_string(file.size));
  };
  // Further than ever: a server that sends the same part again and again is given up on.
  return with_retries(attempt, [&] {
    const bool has_progress = partial.size() > farthest;
    farthest = std::max(farthest, partial.size());
    return has_progress;
  });
}

}  // namespace sluice::hub
