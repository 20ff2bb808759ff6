// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a quantization_config and as modelopt's own file: an error has its line, and
// whatever is accepted answers for any layer.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/quant_methods.h"
#include "engine/weights/quantization.h"
#include "tests/fuzz/target.h"

namespace {

void check(const sluice::Expected<sluice::Quantization>& found) {
  if (!found) {
    CHECK(found.error().message.starts_with("fuzz"));
    CHECK(found.error().message.find(": found ") != std::string::npos);
    CHECK(found.error().message.find('\n') == std::string::npos);
    return;
  }
  for (const char* layer : {"", "lm_head", "model.layers.0.mlp.gate", "language_model.model.a.b"}) {
    const sluice::LayerScheme* scheme = found->scheme_of(layer);
    CHECK(scheme == nullptr || !scheme->names.codes.empty());
    CHECK(scheme == nullptr || !found->empty());
  }
  CHECK(!found->empty() || found->usual_format() == sluice::WeightFormat::kBF16);
}

}  // namespace

static int quantization_input(const uint8_t* data, size_t size) {
  const nlohmann::json json = nlohmann::json::parse(data, data + size, nullptr, false);
  if (json.is_discarded()) return 0;
  check(sluice::read_quantization(json, "fuzz"));
  check(sluice::read_quantization(json, "fuzz", "modelopt"));
  return 0;
}

const sluice::fuzz::Target quantization_target("quantization_fuzz", quantization_input);
