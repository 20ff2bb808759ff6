// SPDX-License-Identifier: Apache-2.0
// The one table from what went wrong to what HTTP and gRPC say about it, and the JSON form of an
// error.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "server/http/http_message.h"

namespace sluice {

int http_status(ErrorCode code);
int grpc_status(ErrorCode code);    // a grpc::StatusCode
int retry_after_s(ErrorCode code);  // 0: none
int retry_after_s(const Error& error);

// Whose clients read an error.
enum class ErrorForm : unsigned char {
  kOpenAi,     // {"error":{"message","type","param","code"}}, all four always there
  kAnthropic,  // {"type":"error","error":{"type","message"}}
};

std::string error_json(const Error& error, ErrorForm form = ErrorForm::kOpenAi);

// The whole response; scarcity carries Retry-After.
HttpResponse error_response(const Error& error, ErrorForm form = ErrorForm::kOpenAi);

// For failures of HTTP itself (404, 405, 408, 413, 431, ...), which have no ErrorCode.
HttpResponse http_error_response(int status, const std::string& message);

}  // namespace sluice
