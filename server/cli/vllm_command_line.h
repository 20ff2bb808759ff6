// SPDX-License-Identifier: Apache-2.0
// Command lines written for vLLM, so that manifests of KServe, llm-d and production-stack run with
// only the image's name changed: `vllm serve MODEL ...` becomes the `sluice serve` of the same
// meaning. One row for each flag says how it is treated.
#pragma once

#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct TranslatedCommandLine {
  std::vector<std::string> arguments;  // those of sluice, command word first
  std::vector<std::string> warnings;   // flags accepted although they mean nothing here
};

// `arguments` are those after the word `vllm`, underscores already dashes. A flag that means
// nothing here is a warning if leaving it out cannot change an answer, else an error that names it.
Expected<TranslatedCommandLine> translate_vllm(const std::vector<std::string>& arguments);

}  // namespace sluice
