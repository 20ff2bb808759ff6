// SPDX-License-Identifier: Apache-2.0
#include "server/mock/mock_frames.h"

#include <charconv>

namespace sluice::mock {
namespace {

constexpr std::string_view kChatHead =
    R"({"id":"chatcmpl-mock","object":"chat.completion.chunk","created":0,"model":"mock",)";
constexpr std::string_view kTextHead =
    R"({"id":"cmpl-mock","object":"text_completion","created":0,"model":"mock",)";

std::string event(MockApi api, std::string_view members) {
  std::string text = "data: ";
  text += api == MockApi::kChat ? kChatHead : kTextHead;
  text += members;
  return text + "}\n\n";
}

}  // namespace

std::string http_chunk(std::string_view body) {
  char size[16];
  const auto [end, error] = std::to_chars(size, size + sizeof size, body.size(), 16);
  return std::string(size, end) + "\r\n" + std::string(body) + "\r\n";
}

std::string http_answer(std::string_view status, std::string_view headers, std::string_view body) {
  std::string text = "HTTP/1.1 ";
  text += status;
  text += "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  text += headers;
  text += "\r\n";
  return text += body;
}

std::string stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
         "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
}

std::string token_event(MockApi api) {
  return event(api,
               api == MockApi::kChat
                   ? R"("choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}])"
                   : R"("choices":[{"index":0,"text":" word","finish_reason":null}])");
}

std::string stream_end(MockApi api, int64_t prompt_tokens, int64_t completion_tokens, bool usage) {
  std::string body = event(api,
                           api == MockApi::kChat
                               ? R"("choices":[{"index":0,"delta":{},"finish_reason":"length"}])"
                               : R"("choices":[{"index":0,"text":"","finish_reason":"length"}])");
  if (usage) {
    body +=
        event(api,
              R"("choices":[],"usage":{"prompt_tokens":)" + std::to_string(prompt_tokens) +
                  R"(,"completion_tokens":)" + std::to_string(completion_tokens) +
                  R"(,"total_tokens":)" + std::to_string(prompt_tokens + completion_tokens) + "}");
  }
  return http_chunk(body + "data: [DONE]\n\n") + "0\r\n\r\n";
}

}  // namespace sluice::mock
