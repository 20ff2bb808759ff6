// SPDX-License-Identifier: Apache-2.0
// The bytes that the mock server sends, chunk framing included.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::mock {

enum class MockApi : uint8_t { kCompletions, kChat };

// Returns one chunk of a chunked body.
std::string http_chunk(std::string_view body);
// Returns a whole answer that is not streamed.
std::string http_answer(std::string_view status, std::string_view headers, std::string_view body);
std::string stream_head();
std::string token_event(MockApi api);  // without chunk framing
// Returns finish_reason, usage if wanted, [DONE] and the end of the body.
std::string stream_end(MockApi api, int64_t prompt_tokens, int64_t completion_tokens, bool usage);

}  // namespace sluice::mock
