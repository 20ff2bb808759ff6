// SPDX-License-Identifier: Apache-2.0
// The one table from an error to its HTTP and gRPC status, and the JSON form of an error.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "server/http/http_message.h"

namespace sluice {

// The machine_code of an error about a model that is not served.
inline constexpr std::string_view kModelNotFound = "model_not_found";

int http_status(ErrorCode code);
int grpc_status(ErrorCode code);    // a grpc::StatusCode
int retry_after_s(ErrorCode code);  // 0: none
int retry_after_s(const Error& error);

// The API whose clients read an error.
enum class ErrorForm : unsigned char {
  kOpenAi,     // {"error":{"message","type","param","code"}}, all four always there
  kAnthropic,  // {"type":"error","error":{"type","message"},"request_id"}
  kCohere,     // {"message","error"}: with OpenAI's, which other servers have at these paths
  kTei,        // {"error","error_type"}, texts, and our "param" where there is one
};

// The name of the API in log lines: "openai".
std::string_view api_name(ErrorForm form);

// `request_id`: in Anthropic's form, unless it is empty.
std::string error_json(const Error& error,
                       ErrorForm form = ErrorForm::kOpenAi,
                       const std::string& request_id = {});

// Returns the whole response; errors of scarcity carry Retry-After.
HttpResponse error_response(const Error& error,
                            ErrorForm form = ErrorForm::kOpenAi,
                            const std::string& request_id = {});

// Returns the response to a failure of HTTP itself (404, 405, 408, 413, 431, ...), which has no
// ErrorCode.
HttpResponse http_error_response(int status,
                                 const std::string& message,
                                 ErrorForm form = ErrorForm::kOpenAi,
                                 const std::string& request_id = {});

}  // namespace sluice
