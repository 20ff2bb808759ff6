// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include "engine/core/cgroup.h"
#include "engine/core/incoming_memory.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/slot_plan.h"
#include "engine/rank/model_rank.h"
#include "engine/tiers/prefix_store.h"
#include "kvcache/store/kv_storage.h"
#include "kvcache/store/kv_tier.h"

namespace sluice {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
// What a process takes on the host beyond its plan (bench/options.md).
constexpr int64_t kProcessReserve = int64_t{32} << 20;
constexpr int64_t kDeviceStateBytes = int64_t{1} << 30;
// Estimates without measurements on a GPU: what a driver takes when kernels are first used, and per
// layer of each recorded step, some ten operators of a few KiB.
constexpr int64_t kDeviceReserve = int64_t{256} << 20;
constexpr int64_t kRecordedLayerReserve = int64_t{128} << 10;
// NCCL's memory per device with several ranks; also an unmeasured estimate.
constexpr int64_t kRankReserve = int64_t{1} << 30;

std::string mib(int64_t bytes) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return buffer;
}

int64_t meminfo_available() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnlimited;
}

std::string bound_text(const MemoryPlan& plan) {
  const std::string length = std::to_string(plan.max_model_len) + " tokens";
  switch (plan.kv_bound) {
    case KvBound::kAsked:
      return "--kv-cache-memory";
    case KvBound::kRequests:
      return std::to_string(plan.max_num_seqs) +
             (plan.max_num_seqs == 1 ? " request of " : " requests of ") + length;
    case KvBound::kFree:
      return plan.on_device ? "nine tenths of what is free" : "half of what is free";
    case KvBound::kOneRequest:
      return "one request of " + length + ", more than half of what is free";
  }
  return "";
}

std::string drafting_text(const MemoryPlan& plan) {
  if (!plan.draft) return "";
  return ", the model that drafts " + mib(plan.draft->weight_bytes + plan.draft->arena_bytes);
}

// Bytes of one block over all groups of the draft model.
int64_t draft_block_bytes(const DraftPlan& draft, int32_t block_size) {
  int64_t total = 0;
  for (const KvGroupSpec& group : draft.kv_groups) {
    total += kv_block_bytes(group, block_size);
  }
  return total;
}

tl::unexpected<Error> does_not_fit(const MemoryPlan& plan,
                                   const std::string& kv_cache,
                                   const std::string& fix) {
  return make_error(ErrorCode::kResourceExhausted,
                    "memory plan: weights " + mib(plan.weight_bytes) + ", activations " +
                        mib(plan.arena_bytes + plan.logits_bytes) + drafting_text(plan) +
                        ", KV cache " + kv_cache +
                        "; available " + mib(plan.available_bytes) + "; " + fix);
}

// The blocks that one request of a given length takes from each group.
class RequestShape {
 public:
  RequestShape(const Config& config, const std::vector<LayerGroup>& layouts)
      : block_size_(config.block_size) {
    for (const LayerGroup& layout : layouts) {
      // The running state and, beside it, the snapshot that it began at.
      const int64_t states = config.enable_prefix_caching ? 2 : 1;
      states_.push_back(layout.spec.kind == KvGroupKind::kState ? states : 0);
      // `window` tokens touch one block more than they fill; a step's tokens come on top.
      limits_.push_back(layout.spec.kind != KvGroupKind::kWindow
                            ? kUnlimited
                            : ceil_div(layout.spec.window, block_size_) + 1 +
                                  ceil_div(config.max_num_batched_tokens, block_size_));
      blocks_per_entry_.push_back(tokens_per_entry(layout.spec, config.block_size) / block_size_);
    }
  }

  // `blocks_of_length`: the length in blocks of the cache's block size.
  [[nodiscard]] int64_t blocks(size_t group, int64_t blocks_of_length) const {
    if (states_[group] > 0) return blocks_of_length > 0 ? states_[group] : 0;
    return std::min(ceil_div(blocks_of_length, blocks_per_entry_[group]), limits_[group]);
  }

  // The states that a request holds; 0: the model has none.
  [[nodiscard]] int64_t states() const {
    return states_.empty() ? 0 : std::ranges::max(states_);
  }

  // The bytes of a request's blocks, including their draft KV.
  [[nodiscard]] int64_t bytes(const MemoryPlan& plan, int64_t blocks_of_length) const {
    int64_t total = 0;
    for (size_t i = 0; i < limits_.size(); ++i) {
      total += blocks(i, blocks_of_length) * block_bytes(plan, i);
    }
    return total;
  }

  // The bytes of one block of the group, including its draft KV.
  [[nodiscard]] int64_t block_bytes(const MemoryPlan& plan, size_t group) const {
    const auto block_size = static_cast<int32_t>(block_size_);
    const int64_t own = kv_block_bytes(plan.kv_groups[group], block_size);
    const bool drafts = plan.draft && static_cast<size_t>(plan.draft->kv_group) == group;
    return own + (drafts ? draft_block_bytes(*plan.draft, block_size) : 0);
  }

  // The longest request, in blocks and at most `most`, that `budget` bytes can hold.
  [[nodiscard]] int64_t affordable_blocks(const MemoryPlan& plan,
                                          int64_t budget,
                                          int64_t most) const {
    int64_t fits = 0;
    int64_t too_long = most + 1;
    while (too_long - fits > 1) {
      const int64_t middle = fits + (too_long - fits) / 2;
      (bytes(plan, middle) <= budget ? fits : too_long) = middle;
    }
    return fits;
  }

 private:
  int64_t block_size_;
  std::vector<int64_t> states_;            // by group; 0: of another kind
  std::vector<int64_t> limits_;            // by group
  std::vector<int64_t> blocks_per_entry_;  // in blocks of the cache's size
};

}  // namespace

int64_t available_memory_bytes() {
  return std::min(meminfo_available(), cgroup_available_memory());
}

int64_t MemoryPlan::kv_tokens() const {
  int64_t tokens = 0;
  for (const KvGroupSpec& group : kv_groups) {
    if (group.kind == KvGroupKind::kState) continue;
    tokens = std::max(tokens, int64_t{group.num_blocks} * tokens_per_entry(group, block_size));
  }
  return tokens;
}

std::string MemoryPlan::describe() const {
  std::string text;
  const auto row = [&text](const char* name, int64_t bytes, const std::string& note) {
    char line[160];
    std::snprintf(line,
                  sizeof line,
                  "  %-22s %14lld bytes%s%s\n",
                  name,
                  static_cast<long long>(bytes),
                  note.empty() ? "" : "  ",
                  note.c_str());
    text += line;
  };
  text += "memory plan\n";
  std::string windows;
  for (const int64_t tokens : window_tokens) {
    windows += "; " + std::to_string(tokens) + " in windowed layers";
  }
  row("weights, repacked",
      weight_bytes,
      weight_types + (weights_mapped ? "; mapped from the packed weights cache, shared" : ""));
  row("rope tables", rope_bytes, "");
  row("activations", arena_bytes, "");
  row("logits and sampling", logits_bytes, "");
  row("KV cache",
      kv_bytes - state_bytes,
      std::to_string(kv_tokens()) + " tokens of " + std::string(to_string(kv_dtype)) +
          (kernels::has_kv_scales(kv_dtype) ? " with scales" : "") + ", blocks of " +
          std::to_string(block_size) + windows);
  if (num_states > 0) {
    row("states",
        state_bytes,
        std::to_string(num_states) + " of " + mib(state_bytes / num_states) + ", for " +
            std::to_string(requests_with_states) + " requests at once");
  }
  const std::string where = !on_device ? ""
                            : num_devices == 1
                                ? " on the device"
                                : " on each of " + std::to_string(num_devices) + " devices";
  const char* const beside = on_device ? "of the host" : "";
  if (draft) {
    row("draft weights", draft->weight_bytes, "repacked");
    row("draft activations",
        draft->arena_bytes,
        "with logits and sampling, to " + std::to_string(draft->max_model_len) + " tokens");
    row("draft KV",
        draft->kv_bytes,
        "in the blocks of the KV cache, and " + std::to_string(draft->num_own_blocks) +
            " of its own; " + std::string(to_string(draft->kv_dtype)));
  }
  if (kv_slot_bytes > 0) row("KV on its way", kv_slot_bytes, "from other workers and to them");
  if (kv_tier_bytes > 0) row("KV below the cache", kv_tier_bytes, beside);
  if (kv_landing_bytes > 0) row("KV of other workers", kv_landing_bytes, beside);
  if (proposer_bytes > 0) row("proposers of drafts", proposer_bytes, beside);
  row("incomplete requests", incoming_bytes, beside);
  if (on_device) row("copies and sampling", host_bytes, beside);
  row("total", total_bytes(), "of " + mib(available_bytes) + " available" + where);
  row("model file", file_bytes, "mapped, shared with the page cache");
  text += "  KV cache bound by      " + bound_text(*this) + "\n";
  text += "  placed                 " + placement + "\n";
  if (!layers.empty()) text += "  layers                 " + layers + "\n";
  text += "  max model len          " + std::to_string(max_model_len) + " tokens\n";
  return text;
}

namespace {

// Bytes of the tiers below the cache, for blocks of these groups.
int64_t tier_bytes(const Config& config, const std::vector<KvGroupSpec>& groups) {
  const int64_t host_bytes = config.kv_offloading_size << 30;
  int64_t buffer_bytes = kv_tier_buffer_bytes(
      {.block_size = config.block_size,
       .payload_bytes = PrefixStore::payload_bytes(groups, config.block_size)});
  const auto states = StateTiers::tier_options(groups, config.block_size);
  if (states) buffer_bytes += kv_tier_buffer_bytes(*states);
  return (host_bytes > 0 ? host_bytes + buffer_bytes : 0) +
         (config.kv_disk_path.empty() ? 0 : buffer_bytes);
}

// KV transfer slots of a worker that exchanges KV: blocks with the heads of the whole model, which
// ranks may replicate.
Expected<KvSlotPlan> slots_of(const Config& config,
                              const ModelConfig& model,
                              const MemoryPlan& plan) {
  SLUICE_TRY(const HandoffConfig part, handoff_config(config));
  if (config.kv_listen.empty()) return KvSlotPlan{};
  int64_t largest = 0;
  const int32_t most_heads =
      std::ranges::max(model.layers, {}, &LayerConfig::num_kv_heads).num_kv_heads;
  for (KvGroupSpec group : plan.kv_groups) {
    for (KvPlane& plane : group.planes) {
      if (plane.per == KvPlane::Per::kEntry) continue;
      plane.num_heads = std::min(plane.num_heads, most_heads);
    }
    largest = std::max(largest, kv_copied_bytes(group, config.block_size));
  }
  return plan_kv_slots(config, part.role, largest, plan.on_device);
}

// Plans everything of the draft model but its KV in the target's blocks.
DraftPlan draft_plan_of(const DraftMemory& fixed, const Config& config, const ModelConfig& target) {
  const int64_t target_len = config.max_model_len > 0 ? config.max_model_len : target.context_len;
  const int64_t max_len = std::min(target_len, fixed.max_model_len);
  DraftPlan draft = {.weight_bytes = fixed.weight_bytes,
                     .arena_bytes = fixed.arena_bytes + fixed.rope_bytes_per_token * max_len,
                     .max_model_len = static_cast<int32_t>(max_len),
                     .kv_dtype = fixed.kv_dtype,
                     .kv_group = fixed.kv_group,
                     .num_own_blocks = fixed.num_own_blocks,
                     .kv_groups = fixed.kv_groups};
  draft.kv_bytes = draft.num_own_blocks * draft_block_bytes(draft, config.block_size);
  return draft;
}

// Adds the draft's blocks, after those of the target are counted.
void add_draft_blocks(MemoryPlan& plan) {
  DraftPlan& draft = *plan.draft;
  const int32_t num_blocks = plan.kv_groups[static_cast<size_t>(draft.kv_group)].num_blocks;
  for (KvGroupSpec& group : draft.kv_groups) {
    group.num_blocks = num_blocks + draft.num_own_blocks;
  }
  draft.kv_bytes += num_blocks * draft_block_bytes(draft, plan.block_size);
  draft.max_model_len = std::min(draft.max_model_len, plan.max_model_len);
}

MemoryPlan begin_plan(const FixedMemory& fixed) {
  MemoryPlan plan;
  plan.file_bytes = fixed.file_bytes;
  plan.weight_bytes = fixed.weight_bytes;
  plan.arena_bytes = fixed.arena_bytes;
  plan.logits_bytes = fixed.logits_bytes;
  plan.on_device = fixed.device_free_bytes.has_value();
  plan.num_devices = fixed.num_devices;
  plan.host_bytes = fixed.host_bytes + (fixed.draft ? fixed.draft->host_bytes : 0);
  plan.proposer_bytes = fixed.proposer_bytes;
  return plan;
}

// Sets the context and returns the bytes for KV. One request at full length must fit in them;
// without --max-model-len the context shrinks to that.
Expected<int64_t> fit_request(const Config& config,
                              const ModelConfig& model,
                              const FixedMemory& fixed,
                              const RequestShape& shape,
                              int64_t bytes_per_block,
                              MemoryPlan& plan) {
  const int64_t wanted_len = config.max_model_len > 0 ? config.max_model_len : model.context_len;
  const int64_t other_bytes = fixed.rope_bytes_per_token * wanted_len + plan.kv_slot_bytes +
                              (plan.on_device ? 0 : plan.side_bytes() + kProcessReserve);
  const int64_t draft_bytes = plan.draft ? plan.draft->total_bytes() : 0;
  const int64_t left =
      std::max<int64_t>(0,
                        plan.available_bytes - plan.weight_bytes - plan.arena_bytes -
                            plan.logits_bytes - other_bytes - draft_bytes);
  const int64_t one_request = shape.bytes(plan, ceil_div(wanted_len, config.block_size));
  int64_t budget = plan.on_device ? left / 10 * 9 : left / 2;  // the host has other uses
  plan.kv_bound = KvBound::kFree;
  if (config.kv_cache_memory > 0) {
    budget = config.kv_cache_memory;
    plan.kv_bound = KvBound::kAsked;
  } else if (!plan.on_device && config.max_model_len > 0 && one_request > budget) {
    budget = std::min(one_request, left);
    plan.kv_bound = KvBound::kOneRequest;
  }
  const int64_t affordable_len =
      shape.affordable_blocks(plan, budget, ceil_div(wanted_len, config.block_size)) *
      config.block_size;
  const int64_t max_len = std::min(wanted_len, affordable_len);
  if (max_len < wanted_len && config.max_model_len > 0) {
    return does_not_fit(plan,
                        "at least " + mib(one_request) + " for one request",
                        "--max-model-len " + std::to_string(affordable_len) + " would fit");
  }
  if (budget > left) {
    return does_not_fit(plan,
                        mib(budget) + " as asked for",
                        "--kv-cache-memory " + std::to_string(left) + " would fit");
  }
  if (max_len < config.block_size) {
    return does_not_fit(
        plan,
        "at least " + mib(bytes_per_block) + " for one block, of " + mib(budget),
        config.kv_cache_memory > 0 ? "set a larger --kv-cache-memory" : "free memory");
  }
  plan.max_model_len = static_cast<int32_t>(max_len);
  plan.rope_bytes = fixed.rope_bytes_per_token * max_len;
  return budget;
}

// Gives states to as many requests as may run, and as many snapshots again, but at most half of the
// budget beyond one request and, on a device unless a size was asked for, the larger of 1 GiB and
// eight requests'. Returns what is left of the budget.
int64_t add_states(const Config& config,
                   const RequestShape& shape,
                   int64_t request_bytes,
                   int64_t budget,
                   MemoryPlan& plan) {
  const int64_t held = shape.states();
  if (held == 0) return budget;
  int64_t bytes = 0;  // one state, of all groups that have some
  for (const KvGroupSpec& group : plan.kv_groups) {
    if (group.kind == KvGroupKind::kState) bytes += kv_block_bytes(group, config.block_size);
  }
  const int64_t snapshots = config.enable_prefix_caching ? config.max_num_seqs : 0;
  const int64_t beyond = std::max<int64_t>(0, budget - request_bytes) / 2 / bytes;
  plan.num_states = std::min(held * config.max_num_seqs + snapshots, held + beyond);
  if (config.kv_cache_memory == 0 && plan.on_device) {
    const int64_t usual = std::max(kDeviceStateBytes / bytes, 8 * held);
    plan.num_states = std::min(plan.num_states, usual);
  }
  plan.requests_with_states = std::min<int64_t>(config.max_num_seqs, plan.num_states / held);
  plan.state_bytes = plan.num_states * bytes;
  plan.kv_bytes += plan.state_bytes;
  for (KvGroupSpec& group : plan.kv_groups) {
    if (group.kind == KvGroupKind::kState) group.num_blocks = static_cast<int32_t>(plan.num_states);
  }
  return budget - plan.state_bytes;
}

// Gives every group its share of as many full-length requests as the budget holds.
void add_kv_blocks(const Config& config,
                   const RequestShape& shape,
                   int64_t whole_budget,
                   MemoryPlan& plan) {
  const int64_t blocks_per_request = ceil_div(int64_t{plan.max_model_len}, config.block_size);
  const int64_t with_states = shape.bytes(plan, blocks_per_request);
  const int64_t budget = add_states(config, shape, with_states, whole_budget, plan);
  int64_t request_bytes = 0;
  for (size_t i = 0; i < plan.kv_groups.size(); ++i) {
    if (plan.kv_groups[i].kind == KvGroupKind::kState) continue;
    request_bytes += shape.blocks(i, blocks_per_request) * shape.block_bytes(plan, i);
  }
  int64_t planned = budget;
  if (config.kv_cache_memory == 0 && request_bytes <= budget / config.max_num_seqs) {
    planned = request_bytes * config.max_num_seqs;
    const bool has_states =
        plan.num_states == 0 || plan.requests_with_states >= config.max_num_seqs;
    if (has_states && plan.kv_bound == KvBound::kFree) plan.kv_bound = KvBound::kRequests;
  }
  for (size_t i = 0; i < plan.kv_groups.size(); ++i) {
    if (plan.kv_groups[i].kind == KvGroupKind::kState) continue;
    const auto part = static_cast<__int128>(shape.blocks(i, blocks_per_request)) * planned;
    const auto num_blocks = static_cast<int64_t>(part / request_bytes);
    KvGroupSpec& group = plan.kv_groups[i];
    group.num_blocks = static_cast<int32_t>(
        std::min<int64_t>(num_blocks, std::numeric_limits<int32_t>::max() / 2));
    plan.kv_bytes += group.num_blocks * kv_block_bytes(group, config.block_size);
  }
  if (plan.draft) add_draft_blocks(plan);
  for (const KvGroupSpec& group : plan.kv_groups) {
    if (group.kind != KvGroupKind::kWindow) continue;
    plan.window_tokens.push_back(int64_t{group.num_blocks} * config.block_size);
  }
}

}  // namespace

Expected<MemoryPlan> plan_memory(const Config& config,
                                 const ModelConfig& model,
                                 const std::vector<LayerGroup>& layouts,
                                 const FixedMemory& fixed) {
  MemoryPlan plan = begin_plan(fixed);
  const int64_t reserve = kDeviceReserve + (fixed.has_nccl ? kRankReserve : 0) +
                          (fixed.num_recorded_steps * model.num_layers +
                           (fixed.draft ? fixed.draft->num_recorded_layers : 0)) *
                              kRecordedLayerReserve;
  plan.available_bytes = plan.on_device ? std::max<int64_t>(0, *fixed.device_free_bytes - reserve)
                                        : fixed.host_free_bytes;
  plan.block_size = config.block_size;
  plan.max_num_seqs = config.max_num_seqs;
  SLUICE_TRY(plan.kv_dtype, kv_dtype_of(config.kv_cache_dtype, model));
  if (config.max_model_len > model.context_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--max-model-len: found " + std::to_string(config.max_model_len) +
                          ", the model's context holds " + std::to_string(model.context_len),
                      "max-model-len");
  }
  if (fixed.draft) plan.draft = draft_plan_of(*fixed.draft, config, model);
  const RequestShape shape(config, layouts);
  int64_t bytes_per_block = 0;
  for (const LayerGroup& layout : layouts) {
    plan.kv_groups.push_back(layout.spec);
    bytes_per_block += kv_block_bytes(layout.spec, config.block_size);
  }

  plan.kv_tier_bytes = tier_bytes(config, plan.kv_groups);
  SLUICE_TRY(const KvSlotPlan slots, slots_of(config, model, plan));
  plan.kv_slot_bytes = slots.device_bytes();
  plan.kv_landing_bytes = slots.host_bytes();
  plan.incoming_bytes = incoming_bytes(config);
  const int64_t beside = plan.host_bytes + plan.side_bytes();
  if (plan.on_device && beside > fixed.host_free_bytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      "memory plan: beside the device " + mib(beside) + " of the host; available " +
                          mib(fixed.host_free_bytes) +
                          "; set a smaller --kv-offloading-size or another --speculative-config");
  }
  SLUICE_TRY(const int64_t budget,
             fit_request(config, model, fixed, shape, bytes_per_block, plan));
  add_kv_blocks(config, shape, budget, plan);
  return plan;
}

}  // namespace sluice
