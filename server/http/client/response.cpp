// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/response.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

namespace sluice::client {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

class ResponseParser::Impl final : public http::basic_parser<false> {
 public:
  Impl(ResponseSink& sink, bool has_no_body) : sink_(sink) {
    eager(true);
    skip(has_no_body);
    body_limit(boost::none);
    header_limit(kMaxUnparsedBytes);
  }

  ResponseHead head;
  error_code last_error;
  std::optional<Error> refusal;
  bool has_begun = false;

 private:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}

  void on_response_impl(int status, string_view reason, int, error_code&) override {
    head.status = status;
    head.reason.assign(reason.data(), reason.size());
  }

  void on_field_impl(http::field, string_view name, string_view value, error_code&) override {
    std::string lower(name.data(), name.size());
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    head.fields.emplace(std::move(lower), std::string(value.data(), value.size()));
  }

  void on_header_impl(error_code& error) override { take(sink_.on_head(head), error); }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}

  std::size_t on_body_impl(string_view body, error_code& error) override {
    take(sink_.on_body({body.data(), body.size()}), error);
    return body.size();
  }

  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}

  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, error_code& error) override {
    return on_body_impl(body, error);
  }

  void on_finish_impl(error_code&) override {}

  void take(Expected<void> result, error_code& error) {
    if (result) return;
    refusal = std::move(result).error();
    error = http::error::end_of_stream;
  }

  ResponseSink& sink_;
};

std::string_view ResponseHead::field(std::string_view name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? std::string_view() : found->second;
}

ResponseParser::ResponseParser(ResponseSink& sink, bool has_no_body)
    : impl_(std::make_unique<Impl>(sink, has_no_body)) {}

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

const std::optional<Error>& ResponseParser::refusal() const { return impl_->refusal; }

const ResponseHead& ResponseParser::head() const { return impl_->head; }

}  // namespace sluice::client
