// SPDX-License-Identifier: Apache-2.0
// An OutputReceiver gets the engine's outputs for the requests that it has asked an IoWorker to
// watch, on that worker's thread.
#pragma once

#include <cstddef>

namespace sluice {

struct Error;
struct TokenOutput;

class OutputReceiver {
 public:
  virtual ~OutputReceiver() = default;

  // Takes one output for `choice_idx`; flush() follows after the step's last output.
  virtual void accept(size_t choice_idx, const TokenOutput& output) = 0;
  virtual void flush() = 0;

  // Ends the client's answer with an error.
  virtual void fail(const Error& error) = 0;
};

}  // namespace sluice
