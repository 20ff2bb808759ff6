// SPDX-License-Identifier: Apache-2.0
#include "server/load/http_response.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>

namespace sluice::load {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

class ResponseParser::Impl final : public http::basic_parser<false> {
 public:
  explicit Impl(ResponseSink& sink) : sink_(sink) {
    eager(true);
    body_limit(boost::none);
    header_limit(64 << 10);
  }

  error_code last_error;
  bool has_begun = false;

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}

  void on_response_impl(int status, string_view, int, error_code&) override {
    head_.status = status;
  }

  void on_field_impl(http::field name, string_view, string_view value, error_code&) override {
    if (name == http::field::content_type) {
      head_.is_event_stream = value.starts_with("text/event-stream");
    } else if (name == http::field::retry_after) {
      double seconds = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
      if (error == std::errc() && end == value.data() + value.size() && seconds >= 0) {
        head_.retry_after = seconds;
      }
    }
  }

  void on_header_impl(error_code&) override { sink_.on_head(head_); }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}

  std::size_t on_body_impl(string_view body, error_code&) override {
    sink_.on_body({body.data(), body.size()});
    return body.size();
  }

  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}

  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code&) override {
    sink_.on_body({body.data(), body.size()});
    return body.size();
  }

  void on_finish_impl(error_code&) override {}

  ResponseSink& sink_;
  ResponseHead head_;
};

ResponseParser::ResponseParser(ResponseSink& sink) : impl_(std::make_unique<Impl>(sink)) {}

ResponseParser::~ResponseParser() = default;

ResponseParser::Status ResponseParser::feed(std::string_view bytes, size_t& consumed) {
  consumed = 0;
  impl_->has_begun = impl_->has_begun || !bytes.empty();
  while (!impl_->is_done() && consumed < bytes.size()) {
    error_code error;
    const size_t taken = impl_->put(
        boost::asio::const_buffer(bytes.data() + consumed, bytes.size() - consumed), error);
    consumed += taken;
    if (error == http::error::need_more) {
      // The rest is the beginning of a header or of a chunk's head.
      if (bytes.size() - consumed <= kMaxUnparsedBytes) return Status::kMore;
      error = http::error::header_limit;
    }
    if (error) {
      impl_->last_error = error;
      return Status::kBad;
    }
    if (taken == 0) break;
  }
  return impl_->is_done() ? Status::kDone : Status::kMore;
}

ResponseParser::Status ResponseParser::end_of_file() {
  if (impl_->is_done()) return Status::kDone;
  error_code error;
  if (impl_->is_header_done()) impl_->put_eof(error);
  return !error && impl_->is_done() ? Status::kDone : Status::kMore;
}

bool ResponseParser::has_begun() const { return impl_->has_begun; }

bool ResponseParser::keeps_alive() const { return impl_->is_done() && impl_->keep_alive(); }

std::string ResponseParser::error() const { return impl_->last_error.message(); }

}  // namespace sluice::load
