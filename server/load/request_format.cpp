// SPDX-License-Identifier: Apache-2.0
#include "server/load/request_format.h"

#include <nlohmann/json.hpp>

#include "server/json/json_writer.h"

namespace sluice::load {
namespace {

void add_members(const RequestOptions& options, nlohmann::ordered_json& body) {
  body["model"] = options.model;
  if (options.api == Api::kEmbeddings) {
    body["encoding_format"] = "base64";
    return;
  }
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (options.temperature) body["temperature"] = *options.temperature;
  if (options.top_p) body["top_p"] = *options.top_p;
  if (options.top_k) body["top_k"] = *options.top_k;
  if (options.min_p) body["min_p"] = *options.min_p;
  if (options.repetition_penalty) body["repetition_penalty"] = *options.repetition_penalty;
  if (options.presence_penalty) body["presence_penalty"] = *options.presence_penalty;
  if (options.frequency_penalty) body["frequency_penalty"] = *options.frequency_penalty;
  if (!options.logprobs) return;
  if (options.api == Api::kChat) {
    body["logprobs"] = true;
    body["top_logprobs"] = *options.logprobs;
  } else {
    body["logprobs"] = *options.logprobs;
  }
}

bool is_header(const std::string& line) {
  const size_t colon = line.find(':');
  return colon != std::string::npos && colon > 0 && line.find_first_of("\r\n") == std::string::npos;
}

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return quoted.substr(1, quoted.size() - 2);
}

Expected<RequestFormat> RequestFormat::create(const RequestOptions& options,
                                              const client::ServerAddress& address) {
  RequestFormat format;
  format.api_ = options.api;
  format.prefix_ = address.path;
  format.endpoint_ = options.endpoint;
  format.headers_ = "Host: " + address.authority() + "\r\nUser-Agent: sluice-bench\r\n";
  if (!options.api_key.empty()) {
    format.headers_ += "Authorization: Bearer " + options.api_key + "\r\n";
  }
  for (const std::string& header : options.headers) {
    if (!is_header(header)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--header must be NAME=VALUE, got \"" + header + "\"");
    }
    format.headers_ += header + "\r\n";
  }
  nlohmann::ordered_json body = nlohmann::ordered_json::object();
  add_members(options, body);
  if (!options.extra_body.empty()) {
    const auto extra =
        nlohmann::ordered_json::parse(options.extra_body, nullptr, /*allow_exceptions=*/false);
    if (!extra.is_object()) {
      return make_error(ErrorCode::kInvalidArgument, "--extra-body must be a JSON object");
    }
    for (const auto& [name, value] : extra.items()) body[name] = value;
  }
  for (const auto& [name, value] : body.items()) {
    format.tail_ += ",\"" + json_escaped(name) +
                    "\":" + value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  return format;
}

std::string RequestFormat::post(const Turn& turn, const std::vector<SpokenTurn>& history) const {
  std::string body;
  const std::string text = json_escaped(turn.text);
  const std::string_view prompt = api_ == Api::kEmbeddings ? "input" : "prompt";
  if (api_ == Api::kChat) {
    body = R"({"messages":[)";
    for (const SpokenTurn& spoken : history) {
      body += R"({"role":"user","content":")" + spoken.question +
              R"("},{"role":"assistant","content":")" + spoken.answer + R"("},)";
    }
    body += R"({"role":"user","content":")" + text + R"("}])";
  } else if (!turn.token_ids.empty()) {
    body = "{\"" + std::string(prompt) + "\":[";
    for (size_t i = 0; i < turn.token_ids.size(); ++i) {
      if (i > 0) body += ',';
      body += std::to_string(turn.token_ids[i]);
    }
    body += ']';
  } else {
    body = "{\"" + std::string(prompt) + "\":\"";
    for (const SpokenTurn& spoken : history) body += spoken.question + spoken.answer + R"(\n)";
    body += text + '"';
  }
  if (api_ == Api::kEmbeddings) return post_json(endpoint_, body + tail_ + "}");
  // Servers accept both names of the chat API's limit; more of them the older name.
  body += R"(,"max_tokens":)" + std::to_string(turn.output_len) + tail_ + "}";
  return post_json(endpoint_, body);
}

std::string RequestFormat::get(const std::string& path) const {
  return "GET " + prefix_ + path + " HTTP/1.1\r\n" + headers_ + "\r\n";
}

std::string RequestFormat::post_json(const std::string& path, const std::string& body) const {
  return "POST " + prefix_ + path + " HTTP/1.1\r\n" + headers_ +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace sluice::load
