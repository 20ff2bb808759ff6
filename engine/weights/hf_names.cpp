// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/hf_names.h"

#include <algorithm>
#include <iterator>

namespace sluice {
namespace {

constexpr std::string_view kLayersPlace = FileSpec().layers_place;

constexpr TensorName kModelNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"model.norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
    {"lm_head.bias", "output.bias"},
    {"score.weight", "cls.output.weight"},  // of a class ...ForSequenceClassification
    {"model.fc.weight", "fc.weight"},  // belongs to a draft head on hidden states
    // These belong to a module that guesses a further token (next_token_name()).
    {"model.enorm.weight", "enorm.weight"},
    {"model.hnorm.weight", "hnorm.weight"},
    {"model.eh_proj.weight", "eh_proj.weight"},
    {"model.he_proj.weight", "he_proj.weight"},
    {"model.shared_head.norm.weight", "shared_head_norm.weight"},
    {"model.shared_head.output.weight", "output.weight"},
};

constexpr std::string_view kTargets = "target";  // a copy of the target's tensor

// Names of such a module beside its layer; it reads the next token's embedding followed by a state,
// or the state followed by the embedding.
constexpr TensorName kNextTokenNames[] = {
    {"enorm.weight", "enorm.weight"},
    {"hnorm.weight", "hnorm.weight"},
    {"eh_proj.weight", "eh_proj.weight"},
    {"shared_head.norm.weight", "shared_head.norm.weight"},
    {"shared_head.head.weight", kTargets},
    {"embed_tokens.weight", kTargets},
    {"transformer.shared_head.norm.weight", "shared_head.norm.weight"},
    {"transformer.shared_head.output.weight", "shared_head.output.weight"},
    {"pre_mlp_layernorm.weight", "layers.0.post_attention_layernorm.weight"},
    {"token_layernorm.weight", "enorm.weight"},
    {"hidden_layernorm.weight", "hnorm.weight"},
    {"input_proj.weight", "he_proj.weight"},
    {"final_layernorm.weight", "norm.weight"},
    {"pre_fc_norm_embedding.weight", "enorm.weight"},
    {"pre_fc_norm_hidden.weight", "hnorm.weight"},
    {"fc.weight", "eh_proj.weight"},
};

// Names of most families, inside "model.layers.N.".
constexpr TensorName kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"hidden_norm", "hidden_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mamba.in_proj", "mamba_in"},
    {"mamba.conv1d", "mamba_conv"},
    {"mamba.A_log", "mamba_log_rate.weight"},
    {"mamba.D", "mamba_skip.weight"},
    {"mamba.dt_bias", "mamba_dt.bias"},
    {"mamba.norm", "mamba_norm"},
    {"mamba.out_proj", "mamba_out"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"mlp.experts.#.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.#.up_proj", "ffn_up_exps"},
    {"mlp.experts.#.down_proj", "ffn_down_exps"},
};

constexpr TensorName kNothing;

const TensorName& find_stored(std::span<const TensorName> names, std::string_view stored) {
  const auto found = std::ranges::find(names, stored, &TensorName::stored);
  return found == names.end() ? kNothing : *found;
}

const TensorName& find_ours(std::span<const TensorName> names, std::string_view ours) {
  const auto found = std::ranges::find(names, ours, &TensorName::ours);
  return found == names.end() ? kNothing : *found;
}

// Looks a name inside a layer up: in the family's list, then in everyone's. A name of everyone's
// whose counterpart the family's list takes means something else there.
const TensorName& layer_name(const FileSpec* spec, std::string_view stored) {
  const std::span<const TensorName> own =
      spec != nullptr ? spec->names : std::span<const TensorName>();
  const TensorName& found = find_stored(own, stored);
  return found.ours.empty() ? find_stored(kLayerNames, stored) : found;
}

const TensorName& layer_name_of_ours(const FileSpec& spec, std::string_view ours) {
  const TensorName& found = find_ours(spec.names, ours);
  if (!found.ours.empty()) return found;
  const TensorName& usual = find_ours(kLayerNames, ours);
  return find_stored(spec.names, usual.stored).ours.empty() ? usual : kNothing;
}

// Cuts the first number between dots out of a name that ends with one, leaving '#'.
std::string take_expert(std::string_view name, std::string& expert) {
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    std::string_view rest = name.substr(dot + 1);
    const std::optional<std::string> number = take_number(rest);
    if (!number) continue;
    expert = *number;
    return std::string(name.substr(0, dot + 1)) + "#." + std::string(rest);
  }
  return std::string(name);
}

// Our name inside a layer of one whose last part is ".weight" or another; empty: none.
std::string ours_in_layer(const FileSpec* spec, std::string_view stored) {
  const std::string_view whole = layer_name(spec, stored).ours;
  if (whole.find('.') != std::string_view::npos) return std::string(whole);
  const size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return {};
  std::string expert;
  std::string stem = take_expert(stored.substr(0, dot + 1), expert);
  stem.pop_back();
  const TensorName& found = layer_name(spec, stem);
  if (found.ours.empty()) return {};
  return std::string(found.ours) + (expert.empty() ? "" : "." + expert) +
         std::string(stored.substr(dot));
}

// The inverse.
std::string stored_in_layer(const FileSpec& spec, std::string_view ours) {
  if (const TensorName& whole = layer_name_of_ours(spec, ours); !whole.stored.empty()) {
    return std::string(whole.stored);
  }
  const size_t dot = ours.find('.');
  if (dot == std::string_view::npos) return {};
  const TensorName& found = layer_name_of_ours(spec, ours.substr(0, dot));
  std::string name(found.stored);
  std::string_view suffix = ours.substr(dot + 1);
  if (const size_t at = name.find('#'); at != std::string::npos) {
    const std::optional<std::string> expert = take_number(suffix);
    if (!expert) return {};
    name.replace(at, 1, *expert);
  }
  return name.empty() ? name : name + "." + std::string(suffix);
}

}  // namespace

// A wrapper may hold a text model that has a prefix of its own: "language_model.backbone.".
std::string_view without_prefix(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {
      "language_model.", "model.language_model.", "model.text_model.", "llm.", "backbone."};
  for (;;) {
    const auto found = std::ranges::find_if(
        kPrefixes, [name](std::string_view prefix) { return name.starts_with(prefix); });
    if (found == std::end(kPrefixes)) return name;
    name.remove_prefix(found->size());
  }
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

// Modules are layers after the last one (DeepSeek-V3, GLM-4.5, Step-3.5), "mtp_layers" (MiMo),
// "mtp.layers" (MiMo-V2-Flash) or "mtp" (Qwen3-Next).
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
    const std::string_view found = find_stored(kNextTokenNames, name).ours;
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

namespace {

// Spells a name of an encoder's file as decoders' files do: "bert.encoder.layer.0.x.gamma" is
// "layers.0.x.weight".
std::string as_of_decoder(std::string_view stored) {
  for (const std::string_view prefix :
       {"bert.", "roberta.", "distilbert.", "mpnet.", "new.", "gte."}) {
    if (stored.starts_with(prefix)) stored.remove_prefix(prefix.size());
  }
  std::string name(stored);
  for (const std::string_view layers : {"encoder.layer.", "encoder.layers.", "transformer.layer."}) {
    if (name.starts_with(layers)) name.replace(0, layers.size(), "layers.");
  }
  for (const auto& [old_end, end] : {std::pair<std::string_view, std::string_view>
                                         {".gamma", ".weight"}, {".beta", ".bias"}}) {
    if (name.ends_with(old_end)) name.replace(name.size() - old_end.size(), old_end.size(), end);
  }
  return name;
}

}  // namespace

bool is_beside_encoder(std::string_view stored) {
  const std::string name = as_of_decoder(stored);
  for (const std::string_view start : {"embeddings.position_ids",
                                       "embeddings.token_type_ids",
                                       "cls.predictions.",
                                       "cls.seq_relationship.",
                                       "lm_head.",
                                       "vocab_transform.",
                                       "vocab_layer_norm.",
                                       "vocab_projector.",
                                       "decoder."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

namespace {

// Parts of a multimodal model beside its text model, by the start of their tensors' names, or, with
// a dot in front, by another part of them.
struct OtherPart {
  std::string_view name_part;
  std::string_view name;
  bool in_wrappers_alone = false;
};

constexpr bool kInWrappers = true;

constexpr OtherPart kOtherParts[] = {
    {"vision_tower.", "the vision tower"},
    {"vision_model.", "the vision tower"},
    {"vision_encoder.", "the vision tower"},  // LightOnOCR's
    {"visual.", "the vision tower"},
    {"visual_tokenizer.", "the vision tower"},  // Ovis's
    {"vision_embedder.", "the vision tower"},
    {"vision_embedding.", "the vision tower"},  // Isaac's
    {"embed_vision.", "the vision tower"},
    {"multi_modal_projector.", "the projector of images"},
    {"mm_projector.", "the projector of images"},         // Kimi-K2.5's
    {"vision_projection.", "the projector of images"},    // LightOnOCR's
    {"merger.", "the projector of images", kInWrappers},  // MiniCPM-V 4.6's
    {"mlp1.", "the projector of images"},                 // InternVL's
    {"connector.", "the projector of images"},            // SmolVLM's
    {"vit_large_projector.", "the projector of images"},
    {"vit_downsampler", "the projector of images"},
    {"image_newline", "embeddings of images"},  // LLaVA-NeXT's
    {"vte.", "embeddings of images"},           // Ovis's
    {"embed_tokens_extend.", "the towers of images and sound"},
    {"audio_tower.", "the audio tower"},
    {"embed_audio.", "the audio tower"},
    {"sound_encoder.", "the audio tower"},  // Nemotron's
    {"sound_projection.", "the projector of sound"},
    {"encoder.", "the audio tower", kInWrappers},  // Granite-Speech's
    {"projector.", "the projector of sound", kInWrappers},
    {"time_series.", "the tower of time series"},  // Intern-S1's
    {".lora_A.vision.", "adapters of images"},     // Phi-4's
    {".lora_B.vision.", "adapters of images"},
    {".lora_A.speech.", "adapters of sound"},
    {".lora_B.speech.", "adapters of sound"},
};

}  // namespace

std::string_view part_beside_text(std::string_view stored, const FileSpec* spec, bool is_wrapper) {
  constexpr std::string_view kModel = "model.";
  constexpr std::string_view kEncoder = "encoder.";
  // An encoder's own layers have that name.
  const bool is_encoder = spec != nullptr && spec->is_encoder;
  if (stored.starts_with(kModel)) stored.remove_prefix(kModel.size());
  const auto found = std::find_if(
      std::begin(kOtherParts), std::end(kOtherParts), [&](const OtherPart& part) {
        if (is_encoder && part.name_part == kEncoder) return false;
        if (part.in_wrappers_alone && !is_wrapper) return false;
        return part.name_part.starts_with('.') ? stored.find(part.name_part) != stored.npos
                                               : stored.starts_with(part.name_part);
      });
  return found == std::end(kOtherParts) ? std::string_view() : found->name;
}

std::string gguf_name(std::string_view stored, const FileSpec* spec) {
  std::string name(without_prefix(stored));
  if (spec != nullptr && spec->is_encoder) name = as_of_decoder(name);
  const std::span<const TensorName> own_names =
      spec == nullptr ? std::span<const TensorName>() : spec->names;
  if (const std::string_view own = find_stored(own_names, name).ours; !own.empty()) {
    return std::string(own);
  }
  const std::string_view layers =
      spec == nullptr ? std::string_view(kLayersPlace) : spec->layers_place;
  const bool is_placed = name.starts_with("model.") || name.starts_with(layers);
  // Some files of "transformer.h.0." say "h.0.".
  const size_t place = layers.find('.') + 1;
  if (!is_placed && name.starts_with(layers.substr(place))) {
    name.insert(0, layers.substr(0, place));
  } else if (!is_placed && !name.starts_with("lm_head.") && !name.starts_with("score.")) {
    name = "model." + name;
  }
  constexpr std::string_view kOnlyLayer = "model.midlayer.";  // a draft head's layer
  if (name.starts_with(kOnlyLayer)) name.replace(0, kOnlyLayer.size(), "model.layers.0.");
  if (const std::string_view own = find_stored(own_names, name).ours; !own.empty()) {
    return std::string(own);
  }
  if (const std::string_view found = find_stored(kModelNames, name).ours; !found.empty()) {
    return std::string(found);
  }
  std::string_view rest = name;
  if (!rest.starts_with(layers) && !rest.starts_with(kLayersPlace)) return std::string(stored);
  rest.remove_prefix(rest.starts_with(layers) ? layers.size() : kLayersPlace.size());
  const std::optional<std::string> layer = take_number(rest);
  const std::string found = layer ? ours_in_layer(spec, rest) : "";
  return found.empty() ? std::string(stored) : "blk." + *layer + "." + found;
}

std::optional<std::string> hf_name(std::string_view ours, const FileSpec& spec) {
  constexpr std::string_view kLayers = "blk.";
  const std::string_view own = ours.starts_with(kLayers) ? "" : find_ours(spec.names, ours).stored;
  if (!own.empty()) return std::string(own);
  if (const std::string_view found = find_ours(kModelNames, ours).stored; !found.empty()) {
    return std::string(found);
  }
  if (!ours.starts_with(kLayers)) return std::nullopt;
  std::string_view rest = ours.substr(kLayers.size());
  const std::optional<std::string> layer = take_number(rest);
  const std::string found = layer ? stored_in_layer(spec, rest) : "";
  return found.empty() ? std::nullopt : std::optional(std::string(spec.layers_place) + *layer + "." + found);
}

namespace {

std::string renamed(std::string_view name,
                    const FileSpec* spec,
                    const TensorName& (*find)(std::span<const TensorName>, std::string_view),
                    std::string_view TensorName::*to) {
  constexpr std::string_view kLayers = "blk.";
  std::string_view rest = name;
  if (spec == nullptr || spec->gguf_names.empty()) return std::string(name);
  if (!name.starts_with(kLayers)) {
    const std::string_view whole = find(spec->gguf_names, name).*to;
    return std::string(whole.empty() ? name : whole);
  }
  rest.remove_prefix(kLayers.size());
  if (!take_number(rest)) return std::string(name);
  // "shortconv.conv" of "shortconv.conv.weight", or "ffn_up_exps" of "ffn_up_exps.7.weight".
  for (const size_t end : {rest.rfind('.'), rest.find('.')}) {
    const std::string_view stem = rest.substr(0, end);
    const std::string_view found = find(spec->gguf_names, stem).*to;
    if (found.empty()) continue;
    return std::string(name.substr(0, name.size() - rest.size())) + std::string(found) +
           std::string(rest.substr(stem.size()));
  }
  return std::string(name);
}

}  // namespace

std::string name_of_gguf(std::string_view stored, const FileSpec* spec) {
  return renamed(stored, spec, find_stored, &TensorName::ours);
}

std::string name_in_gguf(std::string_view ours, const FileSpec* spec) {
  return renamed(ours, spec, find_ours, &TensorName::stored);
}

}  // namespace sluice
