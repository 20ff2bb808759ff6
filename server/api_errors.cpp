// SPDX-License-Identifier: Apache-2.0
#include "server/api_errors.h"

#include <string_view>

#include "server/json_writer.h"

namespace sluice {
namespace {

// `type` speaks OpenAI's vocabulary; its clients choose their exception by the status.
std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

std::string body_json(int status, const Error& error) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("error").open_object();
  json.key("message").string(error.message);
  json.key("type").string(error_type(status));
  json.key("param");
  if (error.param.empty()) {
    json.null();
  } else {
    json.string(error.param);
  }
  json.key("code");
  if (error.machine_code.empty()) {
    json.integer(status);
  } else {
    json.string(error.machine_code);
  }
  json.close_object().close_object();
  return out;
}

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kUnsupported:
      return 400;  // a parameter not offered; 5xx would be retried
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kUnauthenticated:
      return 401;
    case ErrorCode::kPermissionDenied:
      return 403;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kDataLoss:
      return 500;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string error_json(const Error& error) { return body_json(http_status(error.code), error); }

HttpResponse error_response(const Error& error) {
  HttpResponse response;
  response.status = http_status(error.code);
  response.body = body_json(response.status, error);
  if (response.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (response.status == 503) {
    response.headers.emplace_back("Retry-After", "5");
    response.close = true;  // another replica answers the next request
  }
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse http_error_response(int status, const std::string& message) {
  HttpResponse response;
  response.status = status;
  response.body = body_json(status, Error{ErrorCode::kInvalidArgument, message, {}, {}});
  return response;
}

}  // namespace sluice
