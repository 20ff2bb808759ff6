// SPDX-License-Identifier: Apache-2.0
#include "engine/models/refusal.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace sluice {
namespace {

// A part of tensors' names, or the beginning of a family's, that shows a kind of layer.
struct UnknownKind {
  std::string_view part;
  std::string_view name;
};

constexpr std::string_view kMamba1 = "state-space layers of Mamba-1";
constexpr std::string_view kEncoderDecoder = "a decoder that reads an encoder";

constexpr UnknownKind kUnknownKinds[] = {
    {"ssm_x.", kMamba1},
    {".x_proj", kMamba1},
    {"time_mix", "recurrent time mixing"},
    {"rg_lru", "gated linear recurrences"},
    {"altup", "alternating updates"},
    {"rel_pos", "relative positions"},
    {"rel_embeddings", "relative positions"},
    {"relative_attention_bias", "relative positions"},
    {"attn_rel_b", "relative positions"},
    {"compressor", "compressed keys and values"},
    {"EncDecAttention", kEncoderDecoder},
    {"encoder_attn", kEncoderDecoder},
    {"cross_attn", kEncoderDecoder},
};

// For directories without tensors; longer beginnings first.
constexpr UnknownKind kUnknownFamilies[] = {
    {"t5", kEncoderDecoder},
    {"mt5", kEncoderDecoder},
    {"umt5", kEncoderDecoder},
    {"bart", kEncoderDecoder},
    {"mbart", kEncoderDecoder},
    {"pegasus", kEncoderDecoder},
    {"marian", kEncoderDecoder},
    {"whisper", "an encoder of sound"},
    {"wav2vec2", "an encoder of sound"},
    {"clip", "an encoder of images"},
    {"siglip", "an encoder of images"},
    {"vit", "an encoder of images"},
    {"dinov2", "an encoder of images"},
    {"mamba2", "no layer of attention"},
    {"mamba", kMamba1},
    {"jamba", kMamba1},
    {"zamba2", "layers that share weights"},
    {"zamba", kMamba1},
    {"falcon_mamba", kMamba1},
    {"rwkv", "recurrent time mixing"},
    {"recurrent_gemma", "gated linear recurrences"},
    {"gemma3n", "alternating updates"},
    {"paligemma", "prompts whose tokens see later ones"},
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
