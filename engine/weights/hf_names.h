// SPDX-License-Identifier: Apache-2.0
// Maps names of tensors between Hugging Face's layout and GGUF.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Returns GGUF's name of a stored tensor, as "blk.0.attn_q.weight"; for a single expert with its
// number: "blk.0.ffn_up_exps.3.weight". Without a GGUF name the stored name is returned, for
// messages. The norm behind attention is "post_attention_norm", also where it is the only one
// before the feed-forward half.
std::string gguf_name(std::string_view stored);

// Whether the tensor belongs to a module that guesses further tokens (MTP), stored behind the
// model's layers in published checkpoints; transformers leaves these out as well.
bool is_next_token_name(std::string_view stored, uint64_t num_layers);

// Returns the tensor's name in the first of those modules seen as a model of one layer:
// "model.layers.0.…", "model.enorm.weight", "model.hnorm.weight", "model.eh_proj.weight" or
// "model.he_proj.weight", "model.norm.weight" or "model.shared_head.norm.weight"; none: it belongs
// to another module or copies a tensor of the model.
std::optional<std::string> next_token_name(std::string_view stored, uint64_t num_layers);

// Returns the name of such a tensor in checkpoints of this model_type; none: they lack it.
std::optional<std::string> hf_name(std::string_view gguf, std::string_view model_type);

// Returns a stored name without a multimodal model's prefix for its text model.
std::string_view without_prefix(std::string_view name);

// Takes a number and the dot behind it off the start of `text`; none: it starts with no number.
std::optional<std::string> take_number(std::string_view& text);

}  // namespace sluice
