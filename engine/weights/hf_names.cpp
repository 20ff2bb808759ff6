// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_names.h"

#include <algorithm>

namespace sluice {
namespace {

struct NamePair {
  std::string_view hf;
  std::string_view gguf;
  std::string_view only = {};  // the model_type that uses this name when writing
};

constexpr NamePair kModelNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.fc.weight", "fc.weight"},  // belongs to a draft head on hidden states
    // These belong to a module that guesses a further token (next_token_name()).
    {"model.enorm.weight", "enorm.weight"},
    {"model.hnorm.weight", "hnorm.weight"},
    {"model.eh_proj.weight", "eh_proj.weight"},
    {"model.he_proj.weight", "he_proj.weight"},
    {"model.shared_head.norm.weight", "shared_head_norm.weight"},
};

constexpr std::string_view kTargets = "target";  // a copy of the target's tensor

// Names of such a module beside its layer; it reads the next token's embedding followed by a state,
// or the state followed by the embedding.
constexpr NamePair kNextTokenNames[] = {
    {"enorm.weight", "enorm.weight"},
    {"hnorm.weight", "hnorm.weight"},
    {"eh_proj.weight", "eh_proj.weight"},
    {"shared_head.norm.weight", "shared_head.norm.weight"},
    {"shared_head.head.weight", kTargets},
    {"embed_tokens.weight", kTargets},
    {"token_layernorm.weight", "enorm.weight"},
    {"hidden_layernorm.weight", "hnorm.weight"},
    {"input_proj.weight", "he_proj.weight"},
    {"final_layernorm.weight", "norm.weight"},
    {"pre_fc_norm_embedding.weight", "enorm.weight"},
    {"pre_fc_norm_hidden.weight", "hnorm.weight"},
    {"fc.weight", "eh_proj.weight"},
};

// Names inside "model.layers.N.", without ".weight" and ".bias".
constexpr NamePair kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"hidden_norm", "hidden_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up", "phi3"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp", "gpt_oss"},
    {"block_sparse_moe.gate", "ffn_gate_inp", "mixtral"},
};

constexpr NamePair kExpertNames[] = {
    {"gate_proj", "ffn_gate_exps"},
    {"up_proj", "ffn_up_exps"},
    {"down_proj", "ffn_down_exps"},
    {"w1", "ffn_gate_exps", "mixtral"},
    {"w3", "ffn_up_exps", "mixtral"},
    {"w2", "ffn_down_exps", "mixtral"},
};

constexpr std::string_view kExperts = "mlp.experts.";
constexpr std::string_view kMixtralExperts = "block_sparse_moe.experts.";

template <size_t N>
std::string_view translate(const NamePair (&names)[N], std::string_view hf) {
  for (const NamePair& pair : names) {
    if (pair.hf == hf) return pair.gguf;
  }
  return {};
}

// Returns the name for this type only, otherwise the first for all types.
template <size_t N>
std::string_view translate_back(const NamePair (&names)[N],
                                std::string_view gguf,
                                std::string_view model_type) {
  std::string_view usual;
  for (const NamePair& pair : names) {
    if (pair.gguf != gguf) continue;
    if (pair.only == model_type) return pair.hf;
    if (pair.only.empty() && usual.empty()) usual = pair.hf;
  }
  return usual;
}

}  // namespace

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix :
       {std::string_view("language_model."), std::string_view("model.language_model.")}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

std::optional<std::string> take_number(std::string_view& text) {
  const size_t dot = text.find('.');
  const std::string_view digits = text.substr(0, dot);
  const bool number =
      dot != std::string_view::npos && !digits.empty() && digits.size() < 6 &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!number) return std::nullopt;
  text.remove_prefix(dot + 1);
  return std::string(digits);
}

bool is_next_token_name(std::string_view stored, uint64_t num_layers) {
  std::string_view name = without_prefix(stored);
  if (name.starts_with("model.")) name.remove_prefix(6);
  if (name.starts_with("mtp.") || name.starts_with("mtp_")) return true;
  if (!name.starts_with("layers.")) return false;
  name.remove_prefix(7);
  const std::optional<std::string> layer = take_number(name);
  return layer && std::stoull(*layer) >= num_layers;
}

// Modules are layers behind the last one (DeepSeek-V3, GLM-4.5), "mtp_layers" (MiMo) or "mtp"
// (Qwen3-Next).
std::optional<std::string> next_token_name(std::string_view stored, uint64_t num_layers) {
  if (!is_next_token_name(stored, num_layers)) return std::nullopt;
  std::string_view name = without_prefix(stored);
  if (name.starts_with("model.")) name.remove_prefix(6);
  const auto take = [&](std::string_view prefix) {
    const bool found = name.starts_with(prefix);
    if (found) name.remove_prefix(prefix.size());
    return found;
  };
  const auto of_module = [&](const char* otherwise) -> std::optional<std::string> {
    const std::string_view found = translate(kNextTokenNames, name);
    if (found.empty()) return otherwise + std::string(name);
    return found == kTargets ? std::nullopt : std::optional("model." + std::string(found));
  };
  const auto of_layer = [&](uint64_t own) -> std::optional<std::string> {
    const std::optional<std::string> number = take_number(name);
    if (!number || std::stoull(*number) != own) return std::nullopt;
    return of_module("model.layers.0.");
  };
  if (take("layers.")) return of_layer(num_layers);
  if (take("mtp_layers.")) return of_layer(0);
  if (!take("mtp.")) return std::nullopt;
  return take("layers.") ? of_layer(0) : of_module("model.");
}

std::string gguf_name(std::string_view stored) {
  std::string name(without_prefix(stored));
  if (!name.starts_with("model.") && name != "lm_head.weight") name = "model." + name;
  constexpr std::string_view kOnlyLayer = "model.midlayer.";  // a draft head's layer
  if (name.starts_with(kOnlyLayer)) name.replace(0, kOnlyLayer.size(), "model.layers.0.");
  if (const std::string_view found = translate(kModelNames, name); !found.empty()) {
    return std::string(found);
  }
  std::string_view rest = name;
  constexpr std::string_view kLayers = "model.layers.";
  if (!rest.starts_with(kLayers)) return std::string(stored);
  rest.remove_prefix(kLayers.size());
  const std::optional<std::string> layer = take_number(rest);
  if (!layer) return std::string(stored);
  const std::string prefix = "blk." + *layer + ".";
  if (rest == "self_attn.sinks") return prefix + "attn_sinks.weight";
  const size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return std::string(stored);
  const std::string suffix(rest.substr(dot));
  rest = rest.substr(0, dot);
  for (const std::string_view experts : {kExperts, kMixtralExperts}) {
    if (!rest.starts_with(experts)) continue;
    rest.remove_prefix(experts.size());
    const std::optional<std::string> expert = take_number(rest);
    const std::string_view found = translate(kExpertNames, rest);
    if (!expert || found.empty()) return std::string(stored);
    return prefix + std::string(found) + "." + *expert + suffix;
  }
  const std::string_view found = translate(kLayerNames, rest);
  return found.empty() ? std::string(stored) : prefix + std::string(found) + suffix;
}

std::optional<std::string> hf_name(std::string_view gguf, std::string_view model_type) {
  if (const std::string_view found = translate_back(kModelNames, gguf, model_type);
      !found.empty()) {
    return std::string(found);
  }
  constexpr std::string_view kLayers = "blk.";
  if (!gguf.starts_with(kLayers)) return std::nullopt;
  std::string_view rest = gguf.substr(kLayers.size());
  const std::optional<std::string> layer = take_number(rest);
  if (!layer) return std::nullopt;
  const std::string prefix = "model.layers." + *layer + ".";
  if (rest == "attn_sinks.weight") return prefix + "self_attn.sinks";
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view stem = rest.substr(0, dot);
  std::string_view suffix = rest.substr(dot + 1);
  if (const std::string_view found = translate_back(kExpertNames, stem, model_type);
      !found.empty()) {
    const std::optional<std::string> expert = take_number(suffix);
    if (!expert) return std::nullopt;
    const bool is_mixtral = model_type == "mixtral";
    return prefix + std::string(is_mixtral ? kMixtralExperts : kExperts) + *expert + "." +
           std::string(found) + "." + std::string(suffix);
  }
  // Without a norm on attention's output, that name means the norm behind attention.
  const bool is_around = model_type.starts_with("gemma");
  const std::string_view found = stem == "ffn_norm" && !is_around
                                     ? std::string_view("post_attention_layernorm")
                                     : translate_back(kLayerNames, stem, model_type);
  if (found.empty()) return std::nullopt;
  return prefix + std::string(found) + "." + std::string(suffix);
}

}  // namespace sluice
