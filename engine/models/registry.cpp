// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/refusal.h"
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
extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
extern const ModelSpec kPhi3Spec;
extern const ModelSpec kQwen2Spec;
extern const ModelSpec kQwen3Spec;
extern const ModelSpec kQwen3MoeSpec;
extern const ModelSpec kSmolLm3Spec;

namespace {

constexpr std::array kSpecs = {
                               &kGemma2Spec,
                               &kGemma3Spec,
                               &kGptOssSpec,
                               &kGraniteSpec,
                               &kLlamaSpec,
                               &kMimoSpec,
                               &kMistralSpec,
                               &kMixtralSpec,
                               &kOlmo2Spec,
                               &kOlmo3Spec,
                               &kPhi3Spec,
                               &kQwen2Spec,
                               &kQwen3Spec,
                               &kQwen3MoeSpec,
                               &kSmolLm3Spec,
                               &kSolarOpenSpec};

template <typename Is>
const ModelSpec* find(Is&& is_it) {
  const auto found =
      std::ranges::find_if(kSpecs, [&](const ModelSpec* s) { return is_it(s->files); });
  return found == kSpecs.end() ? nullptr : *found;
}

const ModelSpec* find(CheckpointKind kind, std::string_view name) {
  if (name.empty()) return nullptr;
  if (kind == CheckpointKind::kHuggingFace) {
    return find([name](const FileSpec& files) { return files.model_type == name; });
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
    const std::string_view name = !gguf ? files.model_type : files.reads_gguf ? files.gguf : "";
    if (!name.empty()) supported.push_back(name);
  }
  return make_error(ErrorCode::kUnsupported, refusal_of_family(checkpoint, supported));
}

}  // namespace sluice
