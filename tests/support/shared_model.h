// SPDX-License-Identifier: Apache-2.0
// Models whose layers several ranks can share.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing {

inline nlohmann::json read_config(const std::string& folder) {
  return nlohmann::json::parse(std::ifstream(golden_folder() + "/" + folder + "/config.json"));
}

// Writes the configuration of `folder`, merged with `changes`, with 8 heads of 32 over 2 KV heads
// and 288 feed-forward columns, which ranks share unequally; weights are random.
inline void write_model(const TemporaryFolder& to,
                        const std::string& folder,
                        const nlohmann::json& changes) {
  nlohmann::json config = read_config(folder);
  config["hidden_size"] = 64;
  config["intermediate_size"] = 288;
  config["head_dim"] = 32;
  config["num_attention_heads"] = 8;
  config["num_key_value_heads"] = 2;
  config["vocab_size"] = 451;
  config["max_position_embeddings"] = 512;
  if (changes.is_object()) config.merge_patch(changes);
  std::ofstream(to.at("config.json")) << config;
  std::filesystem::copy_file(golden_folder() + "/tokenizer/json/qwen.json",
                             to.at("tokenizer.json"));
}

}  // namespace sluice::testing
