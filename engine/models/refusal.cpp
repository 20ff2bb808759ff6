// SPDX-License-Identifier: Apache-2.0
#include "engine/models/refusal.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace sluice {
namespace {

// A part of tensors' names that shows a kind of layer.
struct UnknownKind {
  std::string_view part;
  std::string_view name;
};

constexpr UnknownKind kUnknownKinds[] = {
    {"kv_a_proj", "latent attention"},
    {"attn_kv_a", "latent attention"},
    {"indexer", "sparse attention"},
    {"linear_attn.", "delta-rule layers"},
    {"ssm_", "state-space layers"},
    {"mamba", "state-space layers"},
    {"mixer.A_log", "state-space layers"},
    {"shortconv", "short convolutions"},
    {".conv.", "short convolutions"},
    {"time_mix", "recurrent time mixing"},
    {"altup", "alternating updates"},
    {"per_layer_", "inputs of each layer"},
    {"rel_pos", "relative positions"},
    {"attn_rel_b", "relative positions"},
    {"position_embd", "learned positions"},
    {"encoder.", "an encoder"},
    {"enc.blk.", "an encoder"},
};

// What a family has by the beginning of its name, for a directory without tensors.
constexpr UnknownKind kUnknownFamilies[] = {
    {"t5", "an encoder"},
    {"mt5", "an encoder"},
    {"umt5", "an encoder"},
    {"bart", "an encoder"},
    {"mbart", "an encoder"},
    {"pegasus", "an encoder"},
    {"marian", "an encoder"},
    {"whisper", "an encoder of sound"},
    {"wav2vec2", "an encoder of sound"},
    {"clip", "an encoder of images"},
    {"siglip", "an encoder of images"},
    {"vit", "an encoder of images"},
    {"dinov2", "an encoder of images"},
    {"mamba", "state-space layers"},
    {"jamba", "state-space layers"},
    {"zamba", "state-space layers"},
    {"falcon_mamba", "state-space layers"},
    {"rwkv", "recurrent time mixing"},
    {"recurrent_gemma", "recurrent time mixing"},
    {"gemma3n", "alternating updates"},
    {"mpt", "biases of distance in place of positions"},
    {"deepseek_v4", "compressed keys and values"},
};

std::string listed(const auto& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::string unknown_kinds(const Checkpoint& checkpoint) {
  std::set<std::string_view> found;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    for (const UnknownKind& kind : kUnknownKinds) {
      if (tensor.name.find(kind.part) != std::string::npos) found.insert(kind.name);
    }
  }
  for (const UnknownKind& family : kUnknownFamilies) {
    const bool begins = checkpoint.architecture().starts_with(family.part);
    if (begins && found.empty()) found.insert(family.name);
  }
  return listed(found);
}

// Single letters to insert, remove or replace.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string_view> nearest(std::string_view name,
                                      std::span<const std::string_view> supported) {
  constexpr size_t kMost = 3;
  constexpr size_t kLongest = 64;  // a hostile file's name may be long
  name = name.substr(0, kLongest);
  const auto common = [name](std::string_view other) {
    return std::ranges::mismatch(name, other).in1 - name.begin();
  };
  std::vector<std::string_view> names(supported.begin(), supported.end());
  std::ranges::stable_sort(names, [&](std::string_view a, std::string_view b) {
    if (common(a) != common(b)) return common(a) > common(b);
    return distance(name, a) < distance(name, b);
  });
  names.resize(std::min(names.size(), kMost));
  return names;
}

}  // namespace

std::string refusal_of_family(const Checkpoint& checkpoint,
                              std::span<const std::string_view> supported) {
  const std::string& name = checkpoint.architecture();
  const std::string kinds = unknown_kinds(checkpoint);
  return checkpoint.path() + ": architecture " + name + " is not supported" +
         (kinds.empty() ? "" : ": it has " + kinds) +
         "; nearest: " + listed(nearest(name, supported)) + "; supported: " + listed(supported);
}

}  // namespace sluice
