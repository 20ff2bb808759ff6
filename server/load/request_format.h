// SPDX-License-Identifier: Apache-2.0
// Turns samples into HTTP requests; their common part is written once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/http/client/stream.h"
#include "server/load/dataset.h"

namespace sluice::load {

enum class Api : uint8_t { kCompletions, kChat, kEmbeddings };

struct RequestOptions {
  Api api = Api::kCompletions;
  std::string endpoint = "/v1/completions";
  std::string model;
  std::vector<std::string> headers;  // "Name: value"
  std::string api_key;               // empty: none
  bool ignore_eos = false;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int64_t> logprobs;
  std::string extra_body;  // JSON object whose members are added, or replace ours; empty: none
};

// An earlier turn of a conversation; its texts are JSON-escaped, without quotes.
struct SpokenTurn {
  std::string question;
  std::string answer;
};

class RequestFormat {
 public:
  // kInvalidArgument: extra_body is no JSON object, or a header is no "Name: value".
  static Expected<RequestFormat> create(const RequestOptions& options,
                                        const client::ServerAddress& address);

  [[nodiscard]] std::string post(const Turn& turn, const std::vector<SpokenTurn>& history) const;
  [[nodiscard]] std::string get(const std::string& path) const;
  [[nodiscard]] std::string post_json(const std::string& path, const std::string& body) const;

 private:
  RequestFormat() = default;

  Api api_ = Api::kCompletions;
  std::string prefix_;  // the base URL's path
  std::string endpoint_;
  std::string headers_;  // each with its CRLF
  std::string tail_;     // members after the prompt and max_tokens, each with a comma before it
};

// Escapes `text` for the inside of a JSON string.
std::string json_escaped(std::string_view text);

}  // namespace sluice::load
