// SPDX-License-Identifier: Apache-2.0
#include "engine/run/rank_processes.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/core/version.h"
#include "engine/parallel/rank_transport.h"
#include "engine/plan/model_plan.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {
namespace {

using nlohmann::json;

// What a step's arrays and its bits depend on.
constexpr std::array kEqualKnobs = {"activation-bits",
                                    "block-size",
                                    "cuda-graph-sizes",
                                    "device",
                                    "enforce-eager",
                                    "kv-cache-dtype",
                                    "kv-transport",
                                    "load-format",
                                    "max-num-batched-tokens",
                                    "max-num-seqs",
                                    "pipeline-parallel-size",
                                    "speculative-config",
                                    "tensor-parallel-size"};

constexpr uint64_t kMostBytes = 1 << 20;

// In front of a message's bytes.
struct TextHeader {
  uint64_t size = 0;
  uint64_t hash = 0;
};

tl::unexpected<Error> unreadable(const char* what) {
  return make_error(ErrorCode::kDataLoss, std::string("node 0 sent no ") + what, "master-addr");
}

json values_of(const Config& config) {
  json values = json::object();
  for (const char* const name : kEqualKnobs) values[name] = find_knob(name)->get(config);
  if (config.device == "cuda") return values;
  // On CPUs, which auto means for several processes, no step is recorded.
  values["device"] = "cpu";
  for (const char* const recorded : {"cuda-graph-sizes", "enforce-eager"}) values[recorded] = "";
  return values;
}

}  // namespace

bool send_text(RankGroup& group, int32_t rank, const std::string& text) {
  const TextHeader header = {.size = text.size(), .hash = XXH3_64bits(text.data(), text.size())};
  return group.send(rank, std::as_bytes(std::span(&header, 1))) &&
         group.send(rank, std::as_bytes(std::span(text)));
}

Expected<std::string> receive_text(RankGroup& group, int32_t rank, std::chrono::seconds within) {
  TextHeader header;
  if (!group.receive(rank, std::as_writable_bytes(std::span(&header, 1)), within)) {
    return make_error(ErrorCode::kUnavailable, group.why());
  }
  std::string text;
  bool is_whole = header.size <= kMostBytes;
  if (is_whole) {
    text.resize(static_cast<size_t>(header.size));
    is_whole = group.receive(rank, std::as_writable_bytes(std::span(text))) &&
               header.hash == XXH3_64bits(text.data(), text.size());
  }
  if (is_whole) return text;
  group.fail("rank " + std::to_string(rank) + ": its message is not what it sent");
  return make_error(ErrorCode::kUnavailable, group.why());
}

Expected<std::string> read_settings(const std::string& text, const Config& config) {
  const json found = json::parse(text, nullptr, false);
  if (!found.is_object() || !found.contains("knobs") || !found.contains("plan")) {
    return unreadable("settings");
  }
  const json& knobs = found["knobs"];
  if (!knobs.is_object() || !found["plan"].is_string()) return unreadable("settings");
  const json own = values_of(config);
  for (const char* const name : kEqualKnobs) {
    const json there = knobs.value(name, json(""));
    if (own[name] == there) continue;
    std::string shown = there.dump(-1, ' ', /*ensure_ascii=*/true);
    if (there.is_string()) shown = shown.substr(1, shown.size() - 2);
    return make_error(ErrorCode::kInvalidArgument,
                      "--" + std::string(name) + ": found " + own[name].get<std::string>() +
                          " on node " + std::to_string(config.node_rank) + ", node 0 has " + shown,
                      name);
  }
  return found["plan"].get<std::string>();
}

Expected<SharedPlan> read_shared_plan(const std::string& text) {
  const json found = json::parse(text, nullptr, false);
  const bool has_all = found.is_object() && found.contains("num_blocks") &&
                       found.contains("max_model_len") && found.contains("on_device") &&
                       found["on_device"].is_boolean();
  if (!has_all) return unreadable("plan");
  const json& length = found["max_model_len"];
  const json& blocks = found["num_blocks"];
  const auto is_count = [](const json& value) {
    return value.is_number_unsigned() && value <= std::numeric_limits<int32_t>::max();
  };
  if (!is_count(length) || length == 0 || !blocks.is_array() ||
      !std::ranges::all_of(blocks, is_count)) {
    return unreadable("plan");
  }
  return SharedPlan{.max_model_len = length.get<int64_t>(),
                    .num_blocks = blocks.get<std::vector<int32_t>>(),
                    .on_device = found["on_device"].get<bool>()};
}

Expected<LoadedModel> read_loaded_model(const std::string& text) {
  const json found = json::parse(text, nullptr, false);
  const bool is_whole = found.is_object() && found.contains("fingerprint") &&
                        found["fingerprint"].is_string() && found.contains("part_content") &&
                        found["part_content"].is_number_unsigned();
  if (!is_whole) return make_error(ErrorCode::kDataLoss, "a node named no model");
  return LoadedModel{.fingerprint = found["fingerprint"].get<std::string>(),
                     .part_content = found["part_content"].get<uint64_t>()};
}

Expected<RankGroup::Address> read_address(const std::string& text) {
  const json found = json::parse(text, nullptr, false);
  const bool is_whole = found.is_object() && found.contains("host") && found["host"].is_string() &&
                        found.contains("port") && found["port"].is_number_unsigned() &&
                        found["port"] <= std::numeric_limits<uint16_t>::max();
  if (!is_whole) return make_error(ErrorCode::kDataLoss, "a node named no address");
  return RankGroup::Address{.host = found["host"].get<std::string>(),
                            .port = found["port"].get<uint16_t>()};
}

RankGroupOptions group_options(const Config& config) {
  return {.rank = config.node_rank,
          .size = config.nnodes,
          .host = config.master_addr,
          .port = static_cast<uint16_t>(config.master_port),
          .secret = config.worker_secret,
          .build = std::string(version()) + " " + build_id(),
          .init_timeout_s = config.rank_init_timeout_s};
}

Expected<void> send_settings(RankGroup& group, const Config& config, const std::string& plan) {
  const std::string text = json{{"knobs", values_of(config)}, {"plan", plan}}.dump();
  for (int32_t rank = 1; rank < group.size(); ++rank) {
    if (!send_text(group, rank, text)) return make_error(ErrorCode::kUnavailable, group.why());
  }
  return {};
}

Expected<std::string> agree_on_settings(RankGroup& group, const Config& config) {
  SLUICE_TRY(const std::string text,
             receive_text(group, 0, std::chrono::seconds(config.rank_init_timeout_s)));
  auto plan = read_settings(text, config);
  if (!plan) group.fail(plan.error().message);  // node 0 then has these words, too
  return plan;
}

// Rank 0 hands on the address of each stage's first rank: followers know only rank 0.
Expected<void> meet_in_stages(RankGroup& group, int32_t num_stages) {
  const RankTeam own = stage_team(group.rank(), group.size(), num_stages);
  if (num_stages == 1 || own.size == 1) return {};
  const auto failed = [&group] { return make_error(ErrorCode::kUnavailable, group.why()); };
  if (group.rank() == 0) {
    for (int32_t first = own.size; first < group.size(); first += own.size) {
      SLUICE_TRY(const std::string text, receive_text(group, first, RankGroup::kExchange));
      for (int32_t i = 1; i < own.size; ++i) {
        if (!send_text(group, first + i, text)) return failed();
      }
    }
    return {};
  }
  if (own.first == 0) return {};
  const auto meet = [&]() -> Expected<void> {
    if (group.rank() == own.first) {
      SLUICE_TRY(const auto address, group.expect_peers());
      const std::string text = json{{"host", address.host}, {"port", address.port}}.dump();
      if (!send_text(group, 0, text)) return failed();
      return group.take_peers(own.size - 1);
    }
    SLUICE_TRY(const std::string text, receive_text(group, 0, RankGroup::kExchange));
    SLUICE_TRY(const auto address, read_address(text));
    return group.dial_peer(own.first, address);
  };
  Expected<void> met = meet();
  if (!met) group.fail(met.error().message);
  return met;
}

Expected<std::unique_ptr<RankGroup>> lead_nodes(const Config& config, const MemoryPlan& plan) {
  SLUICE_TRY(auto group, RankGroup::meet(group_options(config)));
  std::vector<int32_t> blocks;
  for (const KvGroupSpec& kv_group : plan.kv_groups) blocks.push_back(kv_group.num_blocks);
  const json shared = {{"max_model_len", plan.max_model_len},
                       {"num_blocks", blocks},
                       {"on_device", plan.on_device}};
  SLUICE_TRY_VOID(send_settings(*group, config, shared.dump()));
  SLUICE_TRY_VOID(meet_in_stages(*group, num_node_stages(config)));
  return group;
}

Expected<uint64_t> hear_nodes(RankGroup& group, const LoadedModel& own, int32_t num_stages) {
  uint64_t parts = own.part_content;
  uint64_t of_stage = own.part_content;
  for (int32_t rank = 1; rank < group.size(); ++rank) {
    // The connection for life bounds this wait: a rank that loads says that it lives.
    SLUICE_TRY(const std::string text, receive_text(group, rank, std::chrono::hours(24)));
    const auto found = read_loaded_model(text);
    const int32_t first = stage_team(rank, group.size(), num_stages).first;
    const bool is_same = found && found->fingerprint == own.fingerprint;
    if (is_same && rank == first) parts += of_stage = found->part_content;
    if (is_same && found->part_content == of_stage) continue;
    const std::string name = "--model: rank " + std::to_string(rank) + " has another one";
    const std::string fingerprint = found ? found->fingerprint : "none";
    const std::string why =
        is_same ? name + " than rank " + std::to_string(first) + ": other tensors"
                : name + ": its fingerprint is " + fingerprint + ", here it is " + own.fingerprint;
    group.fail(why);
    return make_error(ErrorCode::kInvalidArgument, why, "model");
  }
  return parts;
}

Expected<JoinedNodes> join_nodes_of(const Config& config) {
  JoinedNodes joined = {.group = nullptr, .config = config, .num_blocks = {}};
  SLUICE_TRY(joined.group, RankGroup::meet(group_options(config)));
  SLUICE_TRY(const std::string text, agree_on_settings(*joined.group, config));
  auto plan = read_shared_plan(text);
  if (!plan) {
    joined.group->fail(plan.error().message);
    return tl::unexpected(std::move(plan).error());
  }
  SLUICE_TRY_VOID(meet_in_stages(*joined.group, num_node_stages(config)));
  joined.config.max_model_len = plan->max_model_len;
  joined.config.device = plan->on_device ? "cuda" : "cpu";
  joined.num_blocks = std::move(plan->num_blocks);
  return joined;
}

Expected<void> JoinedNodes::apply_blocks(MemoryPlan& plan) const {
  if (num_blocks.size() != plan.kv_groups.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "node 0 has " + std::to_string(num_blocks.size()) +
                          " groups of KV, this node's model has " +
                          std::to_string(plan.kv_groups.size()),
                      "model");
  }
  plan.kv_bytes = 0;
  for (size_t i = 0; i < num_blocks.size(); ++i) {
    plan.kv_groups[i].num_blocks = num_blocks[i];
    plan.kv_bytes += num_blocks[i] * kv_block_bytes(plan.kv_groups[i], plan.block_size);
  }
  if (plan.total_bytes() <= plan.available_bytes) return {};
  return make_error(ErrorCode::kResourceExhausted,
                    "node 0's KV cache needs " + std::to_string(plan.kv_bytes) +
                        " bytes here, of " + std::to_string(plan.available_bytes) +
                        " for all: set a smaller --kv-cache-memory on node 0",
                    "kv-cache-memory");
}

Expected<void> tell_node_0(RankGroup& group, const LoadedModel& own) {
  const json said = {{"fingerprint", own.fingerprint}, {"part_content", own.part_content}};
  if (send_text(group, 0, said.dump())) return {};
  return make_error(ErrorCode::kUnavailable, group.why());
}

}  // namespace sluice
