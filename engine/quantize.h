// SPDX-License-Identifier: Apache-2.0
// Writes a model in other number formats for the command line: a directory in Hugging Face's layout
// or a GGUF file, readable by other engines.
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
  int64_t done_bytes;  // input bytes
  int64_t all_bytes;
  std::string_view tensor;  // empty: work before or after the tensors
};

struct QuantizeOptions {
  std::string input;    // GGUF file or directory
  std::string output;   // must not exist
  std::string to = {};  // a scheme's name; empty: the recipe decides everything
  std::string recipe =
      {};  // JSON object of {expression: scheme or "keep"}, the first that matches wins
  std::vector<std::string> include = {};  // expressions for matrices that are skipped by default
  std::vector<std::string> exclude = {};  // expressions for tensors to skip
  bool search = true;          // choose scales of least error, not of the largest magnitude
  double target_bits = 0;      // mean bits over matrices, `to` the smallest format; 0: only `to`
  std::string calibrate = {};  // a text; errors are weighted by the inputs it produces
  // Without `calibrate`: schemes of 4 bits that are no GGUF types are calibrated by a shipped text
  // where the model and the memory allow it; the result says whether.
  bool calibrate_by_default = false;
  bool gptq = true;            // with `calibrate`: see engine/quantize/gptq.h
  std::string evaluate = {};   // a text on which predictions are compared with the input model's
  bool verify = false;         // read back and compare with what was meant
  int32_t threads = 0;         // does not change any byte; 0: the engine's default
  int64_t max_shard_bytes = 5'000'000'000;
  // Called before each tensor and once after the last; may be empty.
  std::function<void(const QuantizeProgress&)> on_progress = {};
  // Called with the output's temporary name before anything has it; may be empty.
  std::function<void(const std::string&)> on_unfinished = {};
};

struct QuantizeResult {
  std::string table;  // for people
  std::string json;   // one line: the table and each tensor
};

// Memory: one output tensor plus some input rows per thread; with `calibrate` also the model and
// (gptq) the squares of all inputs' widths; with `evaluate` both models. The output has a temporary
// name until it is whole and is removed after an error. Errors are one line: unreadable input
// (kDataLoss, kNotFound, kUnsupported), a wrong option (kInvalidArgument), unwritable output
// (kPermissionDenied, kResourceExhausted), or a difference on reading back (kInternal).
[[nodiscard]] Expected<QuantizeResult> quantize_model(const QuantizeOptions& options);

// Removes the output that on_unfinished() named, on any thread, before the process ends in the
// middle of quantize_model().
void remove_unfinished(const std::string& path);

}  // namespace sluice
