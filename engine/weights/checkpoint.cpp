// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/named_templates.h"
#include "engine/weights/config_overrides.h"
#include "engine/weights/describe_gguf.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/gguf_split.h"
#include "engine/weights/hf_names.h"
#include "engine/weights/latent_halves.h"
#include "engine/weights/take_gguf_metadata.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// The only list of texts that describes a model: it is kept as JSON, like those of config.json.
constexpr std::string_view kLabels = "classifier.output_labels";
constexpr size_t kMostLabels = 1 << 16;
constexpr std::string_view kSuppressedTokens = "tokenizer.ggml.suppress_tokens";
constexpr auto kReplace = Json::error_handler_t::replace;

void add_value(std::string_view place,
               std::string_view key,
               const GgufValue& value,
               Metadata& metadata) {
  std::string name(place);
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    if (array->element_type == GgufType::kString) {
      if (key == kLabels && array->size() <= kMostLabels) {
        const Json labels = array->strings();
        metadata.set(key, std::move(name), labels.dump(-1, ' ', false, kReplace));
      }
      return;
    }
    std::vector<double> numbers(array->size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = array->number(i);
    metadata.set(key, std::move(name), std::move(numbers));
  } else if (const auto* text = std::get_if<std::string_view>(&value.value)) {
    metadata.set(key, std::move(name), std::string(*text));
  } else if (const auto* whole = std::get_if<int64_t>(&value.value); whole && *whole >= 0) {
    metadata.set(key, std::move(name), static_cast<uint64_t>(*whole));
  } else {
    std::visit(
        [&](const auto& scalar) {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(scalar)>>) {
            metadata.set(key, std::move(name), scalar);
          }
        },
        value.value);
  }
}

// The layer of a tensor in a file; 0 for those outside layers.
uint64_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "blk.";
  if (!name.starts_with(kLayers)) return 0;
  name.remove_prefix(kLayers.size());
  const std::optional<std::string> number = take_number(name);
  return number ? std::stoull(*number) : 0;
}

// GGUF counts modules after the layers, which guess further tokens, as layers. Takes them from the
// count and from lists by layer, and returns it, or the largest number if no module is stated.
uint64_t take_next_token_layers(Metadata& metadata) {
  const Expected<uint64_t> modules = metadata.get_uint_or("nextn_predict_layers", 0);
  const Expected<uint64_t> all = metadata.get_uint("block_count");
  if (!modules || !all || *modules == 0 || *modules >= *all) return UINT64_MAX;
  metadata.set("block_count", "block_count less nextn_predict_layers", *all - *modules);
  metadata.shorten_lists(*all, *all - *modules);
  return *all - *modules;
}

// The name, in a file of one layer, of a tensor of the first module behind so many layers; empty:
// it is another's, or a copy of the model's.
std::string next_token_name_of_gguf(std::string_view stored,
                                    uint64_t num_layers,
                                    const FileSpec* spec) {
  const std::string layer = "blk." + std::to_string(num_layers) + ".";
  if (!stored.starts_with(layer)) return "";
  stored.remove_prefix(layer.size());
  constexpr std::string_view kOwn = "nextn.";
  if (!stored.starts_with(kOwn)) return "blk.0." + std::string(stored);
  stored.remove_prefix(kOwn.size());
  constexpr std::string_view kOutput = "shared_head_head.";
  const bool is_output = stored.starts_with(kOutput);
  if (is_output && spec != nullptr && spec->has_module_output) {
    return "output." + std::string(stored.substr(kOutput.size()));
  }
  return is_output || stored.starts_with("embed_tokens.") ? "" : std::string(stored);
}

// What a tensor beside a text model belongs to; empty: to the text model. Ollama's files have all
// parts of a model.
std::string_view part_beside_text_of_gguf(std::string_view stored) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"v.", "the vision tower"},
      {"a.", "the audio tower"},
      {"mm.", "the projector of images"}};
  const auto* const found = std::ranges::find_if(
      kParts, [stored](const auto& part) { return stored.starts_with(part.first); });
  return found == std::end(kParts) ? std::string_view() : found->second;
}

class GgufCheckpoint final : public Checkpoint {
 public:
  // kDataLoss: two tensors have the same name to us. Names within a file are unique, and across
  // parts: check_gguf_parts().
  Expected<void> index() {
    for (const auto& [name, count] : num_of_parts_) {
      log_event(LogLevel::kInfo, "text_only", "file", path_, "part", name, "tensors_not_read", count);
    }
    return index_tensors();
  }

  GgufCheckpoint(std::string path,
                 std::vector<std::unique_ptr<GgufFile>> parts,
                 std::string architecture,
                 CheckpointPart wanted)
      : Checkpoint(std::move(path), CheckpointKind::kGguf, std::move(architecture)),
        parts_(std::move(parts)) {
    file_spec_ = find_gguf_spec(architecture_);
    take_gguf_metadata(first(), architecture_, metadata_);
    const uint64_t num_layers = take_next_token_layers(metadata_);
    for (const auto& part : parts_) {
      for (const GgufTensor& tensor : part->tensors()) {
        const bool is_module = layer_of(tensor.name) >= num_layers;
        const std::string name = is_module
                                     ? next_token_name_of_gguf(tensor.name, num_layers, file_spec_)
                                     : std::string(tensor.name);
        const std::string_view part_name = part_beside_text_of_gguf(tensor.name);
        const bool is_counted = !part_name.empty() && wanted == CheckpointPart::kModel;
        if (is_counted) ++num_of_parts_[part_name];
        if (is_module != (wanted == CheckpointPart::kNextToken) || name.empty() ||
            !part_name.empty()) {
          if (wanted == CheckpointPart::kModel) left_out_.emplace_back(tensor.name);
          continue;
        }
        add_tensor({.name = name_of_gguf(name, file_spec_),
                    .stored_name = std::string(tensor.name),
                    .num_dims = tensor.num_dims,
                    .dims = {tensor.dims[0], tensor.dims[1], tensor.dims[2], tensor.dims[3]},
                    .format = tensor.format,
                    .data = tensor.data});
      }
    }
  }

  // Puts keys over the file's; after index().
  Expected<void> put_over(const std::string& overrides) {
    overrides_ = overrides;
    const bool has_rope_tensors = has("rope_freqs.weight") || has("rope_factors_long.weight");
    return override_metadata(overrides, has_rope_tensors, metadata_);
  }

  [[nodiscard]] std::vector<CheckpointFile> files() const override {
    std::vector<CheckpointFile> files;
    for (const auto& part : parts_) {
      const std::byte* header_end = part->bytes().data() + part->bytes().size();
      for (const GgufTensor& tensor : part->tensors()) {
        header_end = std::min(header_end, tensor.data.data());
      }
      files.push_back({.bytes = part->bytes(),
                       .header = {part->bytes().data(), header_end},
                       .identity = part->identity()});
    }
    return files;
  }

  [[nodiscard]] Expected<CheckpointText> text() const override {
    SLUICE_TRY(Vocabulary vocabulary, read_vocabulary(first()));
    CheckpointText result;
    SLUICE_TRY(result.tokenizer, create_tokenizer(std::move(vocabulary)));
    const std::string key = "tokenizer.chat_template";
    const auto source_of = [&](const std::string& name) {
      return std::string(first().get_string(name).value_or(std::string_view()));
    };
    result.chat_template = joined_templates({.standard = source_of(key),
                                             .tool_use = source_of(key + ".tool_use"),
                                             .rag = source_of(key + ".rag")});
    return result;
  }

  [[nodiscard]] std::string describe(bool all_tensors) const override {
    std::string text;
    for (const auto& part : parts_) {
      text += (text.empty() ? "" : "\n") + describe_gguf(*part, all_tensors);
    }
    return text;
  }

 private:
  // The part with the metadata.
  [[nodiscard]] const GgufFile& first() const { return *parts_.front(); }

  std::vector<std::unique_ptr<GgufFile>> parts_;
  std::map<std::string_view, size_t> num_of_parts_;  // tensors beside the text model
};

}  // namespace

void take_gguf_metadata(const GgufFile& file, std::string_view architecture, Metadata& metadata) {
  const std::string prefix = std::string(architecture) + ".";
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with(prefix)) add_value(key, key.substr(prefix.size()), value, metadata);
    // Apertus's functions have no architecture in front.
    const bool is_whole = key.starts_with("general.sampling.") || key.starts_with("xielu.") ||
                          key == kSuppressedTokens;
    if (is_whole) add_value(key, key, value, metadata);
  }
}

Expected<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path,
                                                       LoadFormat format,
                                                       CheckpointPart part,
                                                       const std::string& overrides) {
  struct stat status {};

  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
    return open_hf_checkpoint(path, format, part, overrides);
  if (format == LoadFormat::kDummy) {
    return make_error(ErrorCode::kInvalidArgument,
                      path +
                          ": --load-format dummy: found a file, expected a directory with "
                          "config.json",
                      "load-format");
  }
  return open_gguf_checkpoint(path, part, overrides);
}

Expected<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::string& path,
                                                           CheckpointPart part,
                                                           const std::string& overrides) {
  SLUICE_TRY(auto parts, open_gguf_parts(path));
  SLUICE_TRY(const std::string_view name, parts.front()->get_string("general.architecture"));
  std::string architecture(name);
  auto checkpoint =
      std::make_unique<GgufCheckpoint>(path, std::move(parts), std::move(architecture), part);
  SLUICE_TRY_VOID(checkpoint->index());
  SLUICE_TRY_VOID(checkpoint->put_over(overrides));
  return checkpoint;
}

void Checkpoint::add_tensor(CheckpointTensor tensor) {
  while (tensor.num_dims > 1 && tensor.dims[tensor.num_dims - 1] == 1) --tensor.num_dims;
  tensors_.push_back(std::move(tensor));
}

// Replaces every blk.N.attn_kv_b by its halves; a layer that has those already loses it.
Expected<void> Checkpoint::split_latents() {
  static constexpr std::string_view kWhole = "attn_kv_b.weight";
  const auto is_whole = [](const CheckpointTensor& tensor) {
    return tensor.name.starts_with("blk.") && tensor.name.ends_with(kWhole);
  };
  std::unordered_set<std::string> names;
  for (const CheckpointTensor& tensor : tensors_) names.insert(tensor.name);
  std::vector<CheckpointTensor> halves;
  for (const CheckpointTensor& tensor : tensors_) {
    if (!is_whole(tensor)) continue;
    const std::string layer = tensor.name.substr(0, tensor.name.size() - kWhole.size());
    if (names.contains(layer + "attn_k_b.weight")) continue;
    SLUICE_TRY(const LatentShape shape, read_latent_shape(metadata_));
    const uint64_t rows = tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
    const int64_t wanted = int64_t{shape.num_heads} * (shape.nope_dim + shape.value_dim);
    if (rows != static_cast<uint64_t>(wanted) ||
        tensor.dims[0] != static_cast<uint64_t>(shape.kv_rank)) {
      return make_error(ErrorCode::kDataLoss,
                        path_ + ": tensor " + in_quotes(tensor.stored_name) + ": found shape [" +
                            std::to_string(rows) + ", " + std::to_string(tensor.dims[0]) +
                            "], expected [" + std::to_string(wanted) + ", " +
                            std::to_string(shape.kv_rank) + "]");
    }
    const auto whole = std::make_shared<const CheckpointTensor>(tensor);
    for (const bool is_key : {true, false}) {
      CheckpointTensor half = tensor;
      half.name = layer + (is_key ? "attn_k_b.weight" : "attn_v_b.weight");
      half.latent = std::make_shared<LatentHalf>(whole, shape, is_key);
      half.num_dims = 3;
      std::ranges::copy(half.latent->dims(), half.dims);
      half.dims[3] = 1;
      half.format = half.latent->format();
      half.data = {};
      half.coded = nullptr;
      halves.push_back(std::move(half));
    }
  }
  std::erase_if(tensors_, is_whole);
  std::ranges::move(halves, std::back_inserter(tensors_));
  return {};
}

Expected<void> Checkpoint::index_tensors() {
  if (file_spec_ != nullptr && file_spec_->has_latents) SLUICE_TRY_VOID(split_latents());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (by_name_.emplace(tensors_[i].name, i).second) continue;
    return make_error(ErrorCode::kDataLoss,
                      path_ + ": tensor " + in_quotes(tensors_[i].name) +
                          ": found under two names, expected one");
  }
  return {};
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string Checkpoint::place_of(std::string_view name) const {
  const CheckpointTensor* tensor = find(name);
  if (kind_ == CheckpointKind::kGguf) return path_ + ": tensor " + name_in_gguf(name, file_spec_);
  if (tensor == nullptr) {
    constexpr FileSpec kUnknown;
    const FileSpec& files = file_spec_ != nullptr ? *file_spec_ : kUnknown;
    return path_ + ": tensor " + in_quotes(hf_name(name, files).value_or(std::string(name)));
  }
  return (tensor->file.empty() ? path_ : tensor->file) + ": tensor " +
         in_quotes(tensor->stored_name.empty() ? tensor->name : tensor->stored_name);
}

int64_t Checkpoint::file_bytes() const {
  int64_t total = 0;
  for (const CheckpointFile& file : files()) total += static_cast<int64_t>(file.bytes.size());
  return total;
}

}  // namespace sluice
