// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "engine/models/model_spec.h"
#include "engine/models/refusal.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

extern const ModelSpec kAfmoeSpec;
extern const ModelSpec kApertusSpec;
extern const ModelSpec kArceeSpec;
extern const ModelSpec kBaichuanSpec;
extern const ModelSpec kBailingSpec;
extern const ModelSpec kBambaSpec;
extern const ModelSpec kBertSpec;
extern const ModelSpec kBigCodeSpec;
extern const ModelSpec kBloomSpec;
extern const ModelSpec kCamembertSpec;
extern const ModelSpec kCohere2Spec;
extern const ModelSpec kCohereSpec;
extern const ModelSpec kDbrxSpec;
extern const ModelSpec kDeepseekV2Spec;
extern const ModelSpec kDeepseekV32Spec;
extern const ModelSpec kDeepseekV3Spec;
extern const ModelSpec kDistilBertSpec;
extern const ModelSpec kDots1Spec;
extern const ModelSpec kErnie45Spec;
extern const ModelSpec kErnie45MoeSpec;
extern const ModelSpec kExaone4Spec;
extern const ModelSpec kExaoneSpec;
extern const ModelSpec kFalconH1Spec;
extern const ModelSpec kFalconSpec;
extern const ModelSpec kGemma2Spec;
extern const ModelSpec kGemma3Spec;
extern const ModelSpec kGemma4Spec;
extern const ModelSpec kGemma4UnifiedSpec;
extern const ModelSpec kGemmaEmbeddingSpec;
extern const ModelSpec kGemmaSpec;
extern const ModelSpec kGlm4Spec;
extern const ModelSpec kGlm4MoeSpec;
extern const ModelSpec kGlm4MoeLiteSpec;
extern const ModelSpec kGlm4vMoeSpec;
extern const ModelSpec kGlm4vSpec;
extern const ModelSpec kGlmMoeDsaSpec;
extern const ModelSpec kGlmSpec;
extern const ModelSpec kGpt2Spec;
extern const ModelSpec kGptJSpec;
extern const ModelSpec kGptOssSpec;
extern const ModelSpec kGraniteSpec;
extern const ModelSpec kGranite4Spec;
extern const ModelSpec kGraniteHybridSpec;
extern const ModelSpec kGraniteMoeSpec;
extern const ModelSpec kGraniteMoeSharedSpec;
extern const ModelSpec kGteSpec;
extern const ModelSpec kHeliumSpec;
extern const ModelSpec kHunyuanDenseSpec;
extern const ModelSpec kHunyuanMoeSpec;
extern const ModelSpec kHyV3Spec;
extern const ModelSpec kHyperClovaSpec;
extern const ModelSpec kIquestSpec;
extern const ModelSpec kInternLm2FileSpec;
extern const ModelSpec kInternLm2Spec;
extern const ModelSpec kInternLm3Spec;
extern const ModelSpec kJais2Spec;
extern const ModelSpec kJinaBertSpec;
extern const ModelSpec kJoyAiSpec;
extern const ModelSpec kKimiK2Spec;
extern const ModelSpec kLfm2Spec;
extern const ModelSpec kKimiLinearSpec;
extern const ModelSpec kLfm2MoeSpec;
extern const ModelSpec kLlama4Spec;
extern const ModelSpec kLlamaBidirecSpec;
extern const ModelSpec kLlamaSpec;
extern const ModelSpec kMimoSpec;
extern const ModelSpec kMimoV2Spec;
extern const ModelSpec kMiniCpm3Spec;
extern const ModelSpec kMiniCpmSpec;
extern const ModelSpec kMinimaxM2Spec;
extern const ModelSpec kMinistral3Spec;
extern const ModelSpec kMinistralSpec;
extern const ModelSpec kMistralSpec;
extern const ModelSpec kMistral4Spec;
extern const ModelSpec kMixtralSpec;
extern const ModelSpec kModernBertSpec;
extern const ModelSpec kMpnetSpec;
extern const ModelSpec kNemotronHMoeSpec;
extern const ModelSpec kNemotronHSpec;
extern const ModelSpec kNemotronNasSpec;
extern const ModelSpec kNemotronSpec;
extern const ModelSpec kNeoxSpec;
extern const ModelSpec kNewSpec;
extern const ModelSpec kNomicBertMoeSpec;
extern const ModelSpec kNomicBertSpec;
extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
extern const ModelSpec kOlmoHybridSpec;
extern const ModelSpec kOlmoeSpec;
extern const ModelSpec kOptSpec;
extern const ModelSpec kPhi3Spec;
extern const ModelSpec kPhi4MmSpec;
extern const ModelSpec kPhiMoeSpec;
extern const ModelSpec kPhiSpec;
extern const ModelSpec kQwen2Spec;
extern const ModelSpec kQwen2VlFileSpec;
extern const ModelSpec kQwen2VlSpec;
extern const ModelSpec kQwen25VlSpec;
extern const ModelSpec kQwen2MoeSpec;
extern const ModelSpec kQwen3Spec;
extern const ModelSpec kQwen35Spec;
extern const ModelSpec kQwen35MoeSpec;
extern const ModelSpec kQwen3MoeSpec;
extern const ModelSpec kQwen3NextSpec;
extern const ModelSpec kQwen3VlFileSpec;
extern const ModelSpec kQwen3VlMoeFileSpec;
extern const ModelSpec kQwen3VlMoeSpec;
extern const ModelSpec kQwen3VlSpec;
extern const ModelSpec kRobertaSpec;
extern const ModelSpec kSarvamMlaSpec;
extern const ModelSpec kSarvamMoeSpec;
extern const ModelSpec kSeedOssSpec;
extern const ModelSpec kSmolLm3Spec;
extern const ModelSpec kSolarOpenSpec;
extern const ModelSpec kStableLmSpec;
extern const ModelSpec kStarCoder2Spec;
extern const ModelSpec kStep3p5Spec;
extern const ModelSpec kXlmRobertaSpec;
extern const ModelSpec kYoutuLlmSpec;
extern const ModelSpec kYoutuSpec;

namespace {

constexpr std::array kSpecs = {
    &kAfmoeSpec, &kApertusSpec, &kArceeSpec, &kBaichuanSpec, &kBailingSpec, &kBambaSpec, &kBertSpec,
    &kBigCodeSpec, &kBloomSpec, &kCamembertSpec, &kCohere2Spec, &kCohereSpec, &kDbrxSpec,
    &kDeepseekV2Spec, &kDeepseekV32Spec, &kDeepseekV3Spec, &kDistilBertSpec, &kDots1Spec,
    &kErnie45MoeSpec, &kErnie45Spec, &kExaone4Spec, &kExaoneSpec, &kFalconH1Spec, &kFalconSpec,
    &kGemma2Spec, &kGemma3Spec, &kGemma4Spec, &kGemma4UnifiedSpec, &kGemmaEmbeddingSpec,
    &kGemmaSpec,
    &kGlm4MoeLiteSpec, &kGlm4MoeSpec, &kGlm4Spec, &kGlm4vMoeSpec, &kGlm4vSpec, &kGlmMoeDsaSpec,
    &kGlmSpec, &kGpt2Spec, &kGptJSpec, &kGptOssSpec, &kGranite4Spec, &kGraniteHybridSpec,
    &kGraniteMoeSharedSpec, &kGraniteMoeSpec, &kGraniteSpec, &kGteSpec, &kHeliumSpec,
    &kHunyuanDenseSpec, &kHunyuanMoeSpec, &kHyV3Spec, &kHyperClovaSpec, &kIquestSpec,
    &kInternLm2FileSpec, &kInternLm2Spec,
    &kInternLm3Spec, &kJais2Spec, &kJinaBertSpec, &kJoyAiSpec, &kKimiK2Spec, &kKimiLinearSpec,
    &kLfm2MoeSpec, &kLfm2Spec, &kLlama4Spec, &kLlamaBidirecSpec, &kLlamaSpec, &kMimoSpec,
    &kMimoV2Spec, &kMiniCpm3Spec, &kMiniCpmSpec,
    &kMinimaxM2Spec, &kMinistral3Spec, &kMinistralSpec, &kMistral4Spec, &kMistralSpec,
    &kMixtralSpec, &kModernBertSpec, &kMpnetSpec, &kNemotronHMoeSpec, &kNemotronHSpec,
    &kNemotronNasSpec,
    &kNemotronSpec, &kNeoxSpec, &kNewSpec, &kNomicBertMoeSpec, &kNomicBertSpec, &kOlmo2Spec,
    &kOlmo3Spec,
    &kOlmoHybridSpec, &kOlmoeSpec, &kOptSpec, &kPhi3Spec, &kPhi4MmSpec, &kPhiMoeSpec, &kPhiSpec,
    &kQwen25VlSpec, &kQwen2MoeSpec, &kQwen2Spec, &kQwen2VlFileSpec, &kQwen2VlSpec, &kQwen35MoeSpec,
    &kQwen35Spec, &kQwen3MoeSpec, &kQwen3NextSpec, &kQwen3Spec, &kQwen3VlFileSpec,
    &kQwen3VlMoeFileSpec, &kQwen3VlMoeSpec, &kQwen3VlSpec, &kRobertaSpec, &kSarvamMlaSpec,
    &kSarvamMoeSpec, &kSeedOssSpec,
    &kSmolLm3Spec, &kSolarOpenSpec, &kStableLmSpec, &kStarCoder2Spec, &kStep3p5Spec,
    &kXlmRobertaSpec, &kYoutuLlmSpec, &kYoutuSpec,
};

template <typename Is>
const ModelSpec* find(Is&& is_it) {
  const auto found =
      std::ranges::find_if(kSpecs, [&](const ModelSpec* s) { return is_it(s->files); });
  return found == kSpecs.end() ? nullptr : *found;
}

const ModelSpec* find(CheckpointKind kind, std::string_view name) {
  if (name.empty()) return nullptr;
  if (kind == CheckpointKind::kHuggingFace) {
    return find([name](const FileSpec& files) {
      return files.reads_directories && files.model_type == name;
    });
  }
  return find([name](const FileSpec& files) { return files.reads_gguf && files.gguf == name; });
}

}  // namespace

std::span<const ModelSpec* const> model_specs() { return kSpecs; }

const FileSpec* find_file_spec(std::string_view model_type) {
  const ModelSpec* const spec = find(CheckpointKind::kHuggingFace, model_type);
  return spec == nullptr ? nullptr : &spec->files;
}

const FileSpec* find_gguf_spec(std::string_view architecture) {
  const ModelSpec* const spec = find(CheckpointKind::kGguf, architecture);
  return spec == nullptr ? nullptr : &spec->files;
}

Expected<const ModelSpec*> find_model_spec(const Checkpoint& checkpoint) {
  if (const ModelSpec* spec = find(checkpoint.kind(), checkpoint.architecture())) return spec;
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  std::vector<std::string_view> supported;
  for (const ModelSpec* spec : kSpecs) {
    const FileSpec& files = spec->files;
    const bool is_read = gguf ? files.reads_gguf : files.reads_directories;
    const std::string_view name = gguf ? files.gguf : files.model_type;
    if (is_read && !name.empty()) supported.push_back(name);
  }
  return make_error(ErrorCode::kUnsupported, refusal_of_family(checkpoint, supported));
}

}  // namespace sluice
