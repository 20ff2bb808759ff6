// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

extern const ModelSpec kGemma2Spec;
extern const ModelSpec kGemma3Spec;
extern const ModelSpec kGptOssSpec;
extern const ModelSpec kGraniteSpec;
extern const ModelSpec kLlamaSpec;
extern const ModelSpec kMimoSpec;
extern const ModelSpec kMistralSpec;
extern const ModelSpec kMixtralSpec;
extern const ModelSpec kOlmo2GgufSpec;
extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
extern const ModelSpec kPhi3Spec;
extern const ModelSpec kQwen2Spec;
extern const ModelSpec kQwen3Spec;
extern const ModelSpec kQwen3MoeSpec;
extern const ModelSpec kSmolLm3Spec;

namespace {

constexpr std::array kSpecs = {&kGemma2Spec,
                               &kGemma3Spec,
                               &kGptOssSpec,
                               &kGraniteSpec,
                               &kLlamaSpec,
                               &kMimoSpec,
                               &kMistralSpec,
                               &kMixtralSpec,
                               &kOlmo2GgufSpec,
                               &kOlmo2Spec,
                               &kOlmo3Spec,
                               &kPhi3Spec,
                               &kQwen2Spec,
                               &kQwen3Spec,
                               &kQwen3MoeSpec,
                               &kSmolLm3Spec};

}  // namespace

Expected<const ModelSpec*> find_model_spec(const Checkpoint& checkpoint) {
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  std::string supported;
  for (const ModelSpec* spec : kSpecs) {
    const std::string_view name = gguf ? spec->architecture : spec->hf_model_type;
    if (name == checkpoint.architecture()) return spec;
    if (!name.empty()) supported += (supported.empty() ? "" : ", ") + std::string(name);
  }
  return make_error(ErrorCode::kUnsupported,
                    checkpoint.path() + ": architecture " + checkpoint.architecture() +
                        " is not supported; supported: " + supported);
}

}  // namespace sluice
