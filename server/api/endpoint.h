// SPDX-License-Identifier: Apache-2.0
// What a request asks: sets of endpoints, as bits. Plain values, of any thread.
#pragma once

#include <cstdint>

namespace sluice {

enum class Endpoint : uint16_t {
  kChat = 1,
  kCompletion = 2,
  kBoth = 3,  // kChat, kCompletion
  kTokenize = 4,
  kChatOrTokenize = 5,
  kBothOrTokenize = 7,
  kDetokenize = 8,
  kMessages = 16,   // Anthropic's Messages and its token count
  kResponses = 32,  // OpenAI's Responses
  kMessagesOrResponses = 48,
  kOpenAi = 35,  // kBoth, kResponses
  kAny = 63,
  // Those of vectors and scores, whose rows are in pooling_parameters.cpp.
  kEmbeddings = 64,  // OpenAI's, vLLM's /pooling
  kRerank = 128,     // Jina's, Cohere's and TEI's
  kScore = 256,
  kClassify = 512,
  kTei = 1024,        // TEI's other endpoints
  kCohereEmbed = 2048,  // Cohere's /v2/embed
  kTeiDecode = 4096,    // TEI's /decode
};

}  // namespace sluice
