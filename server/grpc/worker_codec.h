// SPDX-License-Identifier: Apache-2.0
// Converts requests and their outputs to messages of sluice.worker.v1, and back. Each structure is
// taken apart whole, so that a field that is added to it and not to its message does not compile.
#pragma once

#include <chrono>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace sluice {

namespace worker::v1 {
class Description;
class Refusal;
class Request;
class TokenOutput;
}  // namespace worker::v1

using WorkerClock = std::chrono::steady_clock;

// `now`: a request's age is sent instead of its arrival, because clocks of machines differ.
void encode(const ValidRequest& from, WorkerClock::time_point now, worker::v1::Request& to);
// kInvalidArgument: encode() cannot have made the message. Its values may still be out of range for
// the model: see check_request() (worker_check.h).
Expected<ValidRequest> decode(const worker::v1::Request& from, WorkerClock::time_point now);

// Leaves out the request's id, which is the worker's own.
void encode(const TokenOutput& from, worker::v1::TokenOutput& to);
// kInvalidArgument: encode() cannot have made the message.
Expected<TokenOutput> decode(const worker::v1::TokenOutput& from);

void encode(const Error& from, worker::v1::Refusal& to);
Error decode(const worker::v1::Refusal& from);

void encode(const ModelInfo& from, worker::v1::Description& to);
Expected<ModelInfo> decode(const worker::v1::Description& from);

}  // namespace sluice
