// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/fingerprint.h"

#include <xxhash.h>

#include <cstdio>

#include "engine/core/version.h"

namespace sluice {
namespace {

// The choice between LongRoPE's two sets of factors, or the length that frequencies were stretched
// for, changes what the model computes.
std::string rope_variant(const ModelConfig& model, const MemoryPlan& plan) {
  const DynamicRope& dynamic = model.dynamic_rope;
  if (dynamic.trained_context > 0 && plan.max_model_len > dynamic.trained_context) {
    return "|rope for " + std::to_string(plan.max_model_len);
  }
  const int32_t original = model.long_rope.original_context;
  if (original == 0) return "";
  return plan.max_model_len > original ? "|long rope" : "|short rope";
}

// Tokens that are never chosen may be listed beside the files that are hashed.
std::string suppressed_tokens(const ModelConfig& model) {
  std::string text;
  for (const TokenId token : model.suppressed) {
    text += (text.empty() ? "|without " : ",") + std::to_string(token);
  }
  return text;
}

// Joins the hash of the tensors with that of the headers.
uint64_t with_headers(const Checkpoint& checkpoint, uint64_t content) {
  uint64_t hash = content;
  for (const CheckpointFile& file : checkpoint.files()) {
    hash = XXH3_64bits_withSeed(file.header.data(), file.header.size(), hash);
  }
  return hash;
}

std::string name_of(const std::string& key) {
  char text[24];
  std::snprintf(text,
                sizeof text,
                "fp_%016llx",
                static_cast<unsigned long long>(XXH3_64bits(key.data(), key.size())));
  return text;
}

}  // namespace

std::string fingerprint_of(const Checkpoint& checkpoint,
                           uint64_t content,
                           const Config& config,
                           const ModelConfig& model,
                           const MemoryPlan& plan) {
  const std::string key =
      std::string(version()) + "|" + build_id() + "|" + plan.processor + "|" +
      std::to_string(config.activation_bits) + "|" + std::string(to_string(plan.kv_dtype)) + "|" +
      std::to_string(with_headers(checkpoint, content)) + rope_variant(model, plan) +
      (model.is_encoder ? "|both ways" : "") + suppressed_tokens(model) +
      (checkpoint.overrides().empty() ? "" : "|with " + checkpoint.overrides());
  return name_of(key);
}

std::string pooled_fingerprint(const std::string& fingerprint, const Pooling& pooling) {
  const PoolingInfo& info = pooling.info;
  std::string key = fingerprint + (info.is_classifier ? "|scores|" : "|vectors|");
  key += to_string(info.type);
  key += info.normalizes ? "|normalized|" : "|as they are|";
  key += to_string(info.function);
  key += "|" + std::to_string(info.width) + "|" + std::to_string(info.max_tokens);
  for (const TokenId token : info.label_tokens) key += "|" + std::to_string(token);
  key += "|" + std::to_string(pooling.padding);
  for (const PooledLayer& layer : pooling.layers) {
    auto hash = static_cast<uint64_t>(layer.function) + (layer.adds_input ? 256 : 0);
    for (const std::vector<float>* values :
         {&layer.weight, &layer.bias, &layer.norm_weight, &layer.norm_bias, &layer.residual}) {
      hash = XXH3_64bits_withSeed(values->data(), values->size() * sizeof(float), hash);
    }
    key += "|" + std::to_string(hash);
  }
  return name_of(key);
}

}  // namespace sluice
