// SPDX-License-Identifier: Apache-2.0
#include "server/http/api_errors.h"

#include <array>
#include <string_view>

#include "server/json/json_writer.h"

namespace sluice {
namespace {

// Clients of Anthropic's threads send whole conversations after this code.
constexpr std::string_view kThreadUnsupported = "thread_unsupported_request";

struct Row {
  ErrorCode code;
  int http;
  int grpc;           // grpc::StatusCode
  int retry_after_s;  // 0: trying again does not help
};

constexpr std::array kRows = {
    Row{ErrorCode::kInvalidArgument, 400, 3, 0},
    // A parameter that is not offered; 5xx and UNIMPLEMENTED would be the whole method.
    Row{ErrorCode::kUnsupported, 400, 3, 0},
    Row{ErrorCode::kNotFound, 404, 5, 0},
    Row{ErrorCode::kUnauthenticated, 401, 16, 0},
    Row{ErrorCode::kPermissionDenied, 403, 7, 0},
    Row{ErrorCode::kResourceExhausted, 429, 8, 1},
    Row{ErrorCode::kUnavailable, 503, 14, 5},
    // Waited too long in the queue: like those whose wait was foreseen.
    Row{ErrorCode::kDeadlineExceeded, 429, 4, 1},
    Row{ErrorCode::kDataLoss, 500, 15, 0},
    Row{ErrorCode::kInternal, 500, 13, 0},
};

const Row& row_of(ErrorCode code) {
  for (const Row& row : kRows) {
    if (row.code == code) return row;
  }
  return kRows.back();
}

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
    default:
      return "invalid_request_error";
  }
}

void write_error(JsonWriter& json, int status, const Error& error) {
  json.key("error").open_object();
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
  json.close_object();
}

// TEI's vocabulary.
std::string_view tei_type(int status) {
  switch (status) {
    case 429:
      return "Overloaded";
    case 500:
      return "Backend";
    case 503:
      return "Unhealthy";
    default:
      return "Validation";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 413:
      return "request_too_large";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return error_type(status);
  }
}

std::string anthropic_json(int status, const Error& error, const std::string& request_id) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("type").string("error").key("error").open_object();
  json.key("type").string(anthropic_type(status)).key("message").string(error.message);
  if (error.machine_code == kThreadUnsupported) {
    json.key("details").open_object().key("error_code").string(kThreadUnsupported);
    json.key("unsupported").open_array().string(error.param).close_array().close_object();
  }
  json.close_object();
  if (!request_id.empty()) json.key("request_id").string(request_id);
  json.close_object();
  return out;
}

std::string body_json(int status,
                      const Error& error,
                      ErrorForm form,
                      const std::string& request_id) {
  if (form == ErrorForm::kAnthropic) return anthropic_json(status, error, request_id);
  std::string out;
  JsonWriter json(out);
  json.open_object();
  if (form == ErrorForm::kTei) {
    json.key("error").string(error.message).key("error_type").string(tei_type(status));
    if (!error.param.empty()) json.key("param").string(error.param);
  } else {
    if (form == ErrorForm::kCohere) json.key("message").string(error.message);
    write_error(json, status, error);
  }
  json.close_object();
  return out;
}

}  // namespace

std::string_view api_name(ErrorForm form) {
  switch (form) {
    case ErrorForm::kAnthropic:
      return "anthropic";
    case ErrorForm::kCohere:
      return "cohere";
    case ErrorForm::kTei:
      return "tei";
    default:
      return "openai";
  }
}

int http_status(ErrorCode code) { return row_of(code).http; }

int grpc_status(ErrorCode code) { return row_of(code).grpc; }

int retry_after_s(ErrorCode code) { return row_of(code).retry_after_s; }

int retry_after_s(const Error& error) {
  return error.retry_after_s > 0 ? error.retry_after_s : retry_after_s(error.code);
}

std::string error_json(const Error& error, ErrorForm form, const std::string& request_id) {
  return body_json(http_status(error.code), error, form, request_id);
}

HttpResponse error_response(const Error& error, ErrorForm form, const std::string& request_id) {
  HttpResponse response;
  response.status = http_status(error.code);
  response.body = error_json(error, form, request_id);
  if (const int seconds = retry_after_s(error); seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  if (response.status == 503) response.close = true;  // another replica answers the next request
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse http_error_response(int status,
                                 const std::string& message,
                                 ErrorForm form,
                                 const std::string& request_id) {
  HttpResponse response;
  response.status = status;
  const Error error{ErrorCode::kInvalidArgument, message, {}, {}};
  response.body = body_json(status, error, form, request_id);
  return response;
}

}  // namespace sluice
