// SPDX-License-Identifier: Apache-2.0
// What the command line asks for when a model is to be written in other number formats: a directory
// in Hugging Face's layout or a GGUF file, as other engines read them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct QuantizeProgress {
  size_t num_done;
  size_t num_tensors;
  int64_t done_bytes;  // of the input
  int64_t all_bytes;
  std::string_view tensor;  // empty: what comes before or behind tensors
};

struct QuantizeOptions {
  std::string input;    // GGUF file or directory
  std::string output;   // must not exist
  std::string to = {};  // a scheme's name; empty: the recipe says all
  std::string recipe =
      {};  // JSON object of {expression: scheme or "keep"}, the first that matches wins
  std::vector<std::string> include = {};  // expressions for matrices that would be left
  std::vector<std::string> exclude = {};  // expressions for tensors to leave
  bool search = true;                     // scales of least error, not of the largest magnitude
  double target_bits = 0;      // of the matrices in mean, with `to` the fewest; 0: as `to`
  std::string calibrate = {};  // a text: errors count by what inputs are on it
  bool gptq = true;            // with it: see engine/quantize/gptq.h
  std::string evaluate = {};   // a text: predictions on it are compared with the input's
  bool verify = false;         // read back, and compare with what was meant
  int32_t threads = 0;         // does not change a byte; 0: as many as the engine would have
  int64_t max_shard_bytes = 5'000'000'000;
  // Before each tensor and once behind the last; may be empty.
  std::function<void(const QuantizeProgress&)> on_progress = {};
};

struct QuantizeResult {
  std::string table;  // lines for people
  std::string json;   // the same and each tensor, one line
};

// Memory: what one tensor has in the output, and some rows of the input in each thread; with a text
// to calibrate by the model and (gptq) the squares of all inputs' widths, with one to evaluate on
// both models. The output
// has another name until it is whole, and is gone after an error. One line of text where the input
// cannot be read (kDataLoss, kNotFound, kUnsupported), an option is wrong (kInvalidArgument), the
// output cannot be written (kPermissionDenied, kResourceExhausted), or what is read back is not
// what was written (kInternal).
[[nodiscard]] Expected<QuantizeResult> quantize_model(const QuantizeOptions& options);

}  // namespace sluice
