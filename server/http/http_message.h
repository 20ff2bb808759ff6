// SPDX-License-Identifier: Apache-2.0
// A handler's view of HTTP: a parsed request and the means to answer it, free of the library that
// parses and writes. Everything here belongs to the I/O thread of its connection.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/trace_context.h"

namespace sluice {

class IoWorker;

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // without the query, and without a slash at its end
  std::string query;   // after the question mark, as it was sent
  std::string body;
  std::string authorization;  // header values; empty when absent
  std::string api_key;        // x-api-key
  std::string accept;         // the first such header
  std::string request_id;     // x-request-id where it is safe to echo, else a random name
  bool names_itself = false;  // the client sent the request_id
  bool is_anthropic = false;  // has the header anthropic-version: errors have Anthropic's form
  std::string client;         // the peer's host:port; empty: a Unix socket
  std::string host;
  std::string origin;
  std::string fetch_site;      // sec-fetch-site
  std::string wanted_headers;  // access-control-request-headers
  TraceContext trace;          // parsed from traceparent and tracestate
  bool is_reserved = false;    // came over a connection that is kept for probes
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers = {};
  bool close = false;  // end the connection after this response
};

// Answers one request, either whole (send) or as a stream (start_stream, write, flush, finish).
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void send(HttpResponse response) = 0;

  // Begins a response with status 200 and these headers; nothing leaves before flush().
  virtual void start_stream(const HttpHeaders& headers) = 0;
  virtual void write(std::string_view bytes) = 0;
  // Sends everything pending as one chunk with one write; while an earlier write is under way the
  // bytes wait and join the next one. False: the reader is too slow, the connection is closed.
  virtual bool flush() = 0;
  virtual void finish_stream() = 0;

  // `on_disconnect` runs once if the client disconnects before the answer is complete; `on_quiet`
  // when nothing was sent for the ping interval. Both are dropped when the answer is complete.
  virtual void set_callbacks(std::function<void()> on_disconnect,
                             std::function<void()> on_quiet) = 0;

  // Answers so where no answer has begun, else ends the connection: the handler has failed.
  virtual void give_up(HttpResponse response) = 0;

  // Gives the request another name, before the answer begins: x-request-id of the answer.
  virtual void name_request(const std::string& request_id) = 0;

  [[nodiscard]] virtual IoWorker& worker() = 0;
};

}  // namespace sluice
