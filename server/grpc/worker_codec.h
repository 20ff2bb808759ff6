// SPDX-License-Identifier: Apache-2.0
// Requests and their outputs as messages of sluice.worker.v1, and back. Each structure is taken
// apart whole, so that a field that is added to it and not to its message does not compile.
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

// `now`: a request's age travels instead of its arrival, as clocks of machines differ.
void encode(const ValidRequest& from, WorkerClock::time_point now, worker::v1::Request& to);
// kInvalidArgument: the message cannot be of encode(). What it holds may still be out of range for
// the model: check_request() (worker_check.h).
Expected<ValidRequest> decode(const worker::v1::Request& from, WorkerClock::time_point now);

// Without the request's id, which is the worker's own.
void encode(const TokenOutput& from, worker::v1::TokenOutput& to);
// kInvalidArgument: the message cannot be of encode().
Expected<TokenOutput> decode(const worker::v1::TokenOutput& from);

void encode(const Error& from, worker::v1::Refusal& to);
Error decode(const worker::v1::Refusal& from);

void encode(const ModelInfo& from, worker::v1::Description& to);
Expected<ModelInfo> decode(const worker::v1::Description& from);

}  // namespace sluice
