// SPDX-License-Identifier: Apache-2.0
// Maps names of tensors in Hugging Face's layout and in GGUF to ours, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/weights/file_spec.h"

namespace sluice {

// Whether a tensor in an encoder's file is not part of the encoder: used in training only, or a
// constant.
bool is_beside_encoder(std::string_view stored);

// Returns our name, GGUF's of most families, of a tensor that a directory of this family stores, as
// "blk.0.attn_q.weight"; for a single expert with its number: "blk.0.ffn_up_exps.3.weight". A
// stored name that has none is returned, for messages. `spec` may be null.
std::string gguf_name(std::string_view stored, const FileSpec* spec);

// The inverse; none: directories of the family have no name for it.
std::optional<std::string> hf_name(std::string_view ours, const FileSpec& spec);

// Return our name of a tensor in a GGUF file, and the inverse. `spec` may be null.
std::string name_of_gguf(std::string_view stored, const FileSpec* spec);
std::string name_in_gguf(std::string_view ours, const FileSpec* spec);

// Whether the tensor belongs to a module that guesses further tokens (MTP), stored after the
// model's layers in published checkpoints; transformers leaves these out as well.
bool is_next_token_name(std::string_view stored, uint64_t num_layers);

// Returns the tensor's name in the first of those modules seen as a model of one layer:
// "model.layers.0.…", "model.enorm.weight", "model.hnorm.weight", "model.eh_proj.weight" or
// "model.he_proj.weight", "model.norm.weight" or "model.shared_head.norm.weight",
// "model.shared_head.output.weight"; none: it belongs to another module or copies a tensor of the
// model.
std::optional<std::string> next_token_name(std::string_view stored, uint64_t num_layers);

// Returns what the tensor belongs to in a multimodal model beside its text model, for people: "the
// vision tower"; empty: it is part of the text model. `spec`: as in gguf_name(). `is_wrapper`: the
// text model has a configuration of its own, inside another one; elsewhere "projector." may be a
// part of the text model.
std::string_view part_beside_text(std::string_view stored, const FileSpec* spec, bool is_wrapper);

// Returns a stored name without the prefixes of a multimodal model's text model.
std::string_view without_prefix(std::string_view name);

// Removes a number and the dot after it from the start of `text`; nullopt: it starts with no
// number.
std::optional<std::string> take_number(std::string_view& text);

}  // namespace sluice
