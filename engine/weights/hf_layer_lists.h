// SPDX-License-Identifier: Apache-2.0
// Reads what config.json says of single layers, into arrays by layer. Called by hf_config.cpp when
// the keys of all layers are read.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Determines the windowed layers from their types, or from where windows begin. `may_go_on`: types
// of modules after the layers may follow.
void take_layer_types(const nlohmann::json& config, bool may_go_on, Metadata& metadata);

// Determines the layers with experts from their types, or from their numbers.
void take_ffn_types(const nlohmann::json& config, Metadata& metadata);

// Determines what layers of one half each are, and how many there are if nothing else says it:
// layer_kinds has 0 for attention, 1 for a recurrent layer, 2 for a dense half, 3 for experts and
// -1 for what is none of them.
void take_layer_kinds(const nlohmann::json& config, Metadata& metadata);

// Reads Kimi-Linear's list of layers that are not recurrent, counted from 1.
void take_counted_layers(const nlohmann::json& config, Metadata& metadata);

// Reads the limits of recurrent layers' steps, of which the larger one may be infinite: no number
// of JSON, it is spelled as null, a text or an object.
void take_step_limits(const nlohmann::json& config, Metadata& metadata);

// Determines the layers with an indexer of their own, from their types or from a rule: 1, or 0 for
// one that reads an earlier one's choice; -1 for what neither is.
void take_indexer_types(const nlohmann::json& config, Metadata& metadata);

// Makes arrays by layer of what single layers say beside the keys of all. transformers writes it
// whatever keys it has read. kDataLoss: layers or keys that it cannot mean.
Expected<void> take_layer_overrides(const nlohmann::json& config, Metadata& metadata);

// Reads Nemotron-NAS's list of what its search has left of each layer: KV heads of attention and
// columns of the dense half, 0 where there is no such half. kDataLoss: what a layer is instead.
Expected<void> take_block_configs(const nlohmann::json& config, Metadata& metadata);

}  // namespace sluice
