// SPDX-License-Identifier: Apache-2.0
// Names of tensors in Hugging Face's layout and in GGUF.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// GGUF's name of a stored tensor, as "blk.0.attn_q.weight"; an expert's own has its number:
// "blk.0.ffn_up_exps.3.weight". The stored name where GGUF has none, so that messages name it.
// The norm behind attention is "post_attention_norm", also where it is the only one before the
// feed-forward half.
std::string gguf_name(std::string_view stored);

// Whether it is of a module that guesses further tokens (MTP), as published checkpoints have them
// behind the model's layers: transformers leaves them out as well.
bool is_next_token_name(std::string_view stored, uint64_t num_layers);

// Its name in the first of those modules, as a model of one layer has it: "model.layers.0.…",
// "model.enorm.weight", "model.hnorm.weight", "model.eh_proj.weight" or "model.he_proj.weight",
// "model.norm.weight" or "model.shared_head.norm.weight"; none: another module's, or a copy of what
// the model has.
std::optional<std::string> next_token_name(std::string_view stored, uint64_t num_layers);

// The name that a checkpoint of this model_type has for such a tensor; none: it has none.
std::optional<std::string> hf_name(std::string_view gguf, std::string_view model_type);

// A stored name without what multimodal models put before that of the text model.
std::string_view without_prefix(std::string_view name);

// A number at the start of `text`, which loses it and the dot that follows; none: it has none.
std::optional<std::string> take_number(std::string_view& text);

}  // namespace sluice
