// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include <array>

namespace sluice {

extern const ModelSpec kLlamaSpec;

namespace {

constexpr std::array kSpecs = {&kLlamaSpec};

}  // namespace

Expected<const ModelSpec*> find_model_spec(std::string_view architecture) {
  std::string supported;
  for (const ModelSpec* spec : kSpecs) {
    if (spec->architecture == architecture) return spec;
    supported += (supported.empty() ? "" : ", ") + std::string(spec->architecture);
  }
  return make_error(ErrorCode::kUnsupported,
                    "architecture " + std::string(architecture) +
                        " is not supported; supported: " + supported);
}

}  // namespace sluice
