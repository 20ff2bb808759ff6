// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/translation.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "engine/models/model_spec.h"
#include "engine/quantize/config_difference.h"
#include "engine/quantize/expert_sources.h"
#include "engine/quantize/model_keys.h"
#include "engine/quantize/planned_view.h"
#include "engine/weights/fused_experts.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_config.h"
#include "engine/weights/hf_names.h"
#include "engine/weights/latent_halves.h"
#include "engine/weights/take_gguf_metadata.h"

namespace sluice {
namespace {

constexpr std::string_view kFactors = "rope_freqs.weight";
constexpr std::string_view kLongFactors = "rope_factors_long.weight";
constexpr std::string_view kShortFactors = "rope_factors_short.weight";

bool is_stack(const CheckpointTensor& tensor) {
  return tensor.name.find("_exps.weight") != std::string::npos ||
         tensor.name.find("_exps.bias") != std::string::npos;
}

// What ExpertTensors::kStacked joins, experts first, and the name of the whole.
struct StackedNames {
  std::string_view gate;
  std::string_view up;
  std::string_view both;
};

constexpr StackedNames kStackedNames[] = {{"ffn_gate_exps.", "ffn_up_exps.", "ffn_gate_up_exps."},
                                          {"ffn_gate_shexp.", "ffn_up_shexp.", "ffn_up_shexp."},
                                          {"ffn_gate.", "ffn_up.", "ffn_up."}};

// Replaces a part of a name; none: the name lacks it.
std::optional<std::string> renamed(std::string name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  if (at == std::string::npos) return std::nullopt;
  return name.replace(at, from.size(), to);
}

// Adds a layer's experts as ExpertTensors::kTransposed, or as kTransposedHalves.
Expected<void> add_fused(const Checkpoint& input,
                         const FileSpec& files,
                         const CheckpointTensor& tensor,
                         std::vector<SourceTensor>& out) {
  constexpr std::string_view kGate = "ffn_gate_exps.";
  const size_t at = tensor.name.find(kGate);
  if (tensor.name.find("ffn_up_exps.") != std::string::npos) return {};  // handled with the gate
  const bool is_pair = at != std::string::npos;
  const CheckpointTensor* up = nullptr;
  if (is_pair) {
    std::string name = tensor.name;
    up = input.find(name.replace(at, kGate.size(), "ffn_up_exps."));
    if (up == nullptr || !std::ranges::equal(up->dims, tensor.dims)) {
      return make_error(ErrorCode::kDataLoss,
                        input.path() + ": tensor " + sluice::in_quotes(tensor.name) +
                            ": found no up projection of its shape, expected one");
    }
  }
  SourceTensor source = source_of(tensor);
  if (is_pair && files.experts == ExpertTensors::kTransposed) {
    source = alternating(tensor, *up);
  } else if (is_pair) {
    SLUICE_TRY(source, joined(input.path(), tensor, *up, experts_of(tensor)));
    source.read_names.push_back(up->name);
  }
  std::string_view layer = tensor.name;
  layer.remove_prefix(std::string_view("blk.").size());
  const std::optional<std::string> number = take_number(layer);
  const std::string in_layers = "layers." + number.value_or("0") + ".";
  std::string place = "model." + in_layers;
  // In a multimodal model, where the layer's router is.
  const CheckpointTensor* router =
      input.find("blk." + number.value_or("0") + ".ffn_gate_inp.weight");
  if (input.kind() == CheckpointKind::kHuggingFace && router != nullptr) {
    place = router->stored_name.substr(0, router->stored_name.find(in_layers)) + in_layers;
  }
  source.stored_name = place + std::string(files.experts_place) +
                       (is_pair ? "gate_up_proj" : "down_proj") +
                       (tensor.name.ends_with(".bias") ? "_bias" : "");
  if (input.kind() == CheckpointKind::kHuggingFace) source.input_name = source.stored_name;
  source.is_fused = true;
  source.num_dims = tensor.name.ends_with(".bias") ? 2 : 3;
  out.push_back(std::move(source));
  return {};
}

// Latent attention's matrix that was split when it was read is written as it was.
void add_source(const CheckpointTensor& tensor, std::vector<SourceTensor>& sources) {
  if (!tensor.latent) return sources.push_back(source_of(tensor));
  if (!tensor.latent->is_key()) return;
  sources.push_back(source_of(tensor.latent->whole()));
  sources.back().read_names = {tensor.name};
}

// Makes a directory's tensors from those under GGUF's names.
class DirectoryTensors {
 public:
  DirectoryTensors(const Checkpoint& input, const FileSpec& files, ExpertLayout experts)
      : input_(input), files_(files), experts_(experts) {}

  Expected<std::vector<SourceTensor>> run() {
    for (const CheckpointTensor& tensor : input_.tensors()) {
      if (is_factors(tensor.name)) continue;
      if (tensor.latent) add_source(tensor, tensors_);
      if (tensor.latent) continue;
      SLUICE_TRY(const bool is_done, take_stacked(tensor));
      if (is_done) continue;
      if (has_norm_of_each_head(tensor)) {
        SLUICE_TRY_VOID(add_heads(tensor));
        continue;
      }
      SLUICE_TRY_VOID(is_stack(tensor) ? add_stack(tensor) : add(source_of(tensor)));
    }
    return std::move(tensors_);
  }

 private:
  static bool is_factors(std::string_view name) {
    return name == kFactors || name == kLongFactors || name == kShortFactors;
  }

  // Whether a row belongs to each head, whose norm is a tensor of its own in a directory.
  [[nodiscard]] bool has_norm_of_each_head(const CheckpointTensor& tensor) const {
    return tensor.num_dims == 2 && tensor.name.find(kHeadNorm) != std::string::npos &&
           input_.kind() == CheckpointKind::kGguf && !hf_name(tensor.name, files_);
  }

  Expected<void> add_heads(const CheckpointTensor& tensor) {
    for (uint64_t head = 0; head < tensor.dims[1]; ++head) {
      SLUICE_TRY(SourceTensor source, expert_of(input_.path(), tensor, tensor.dims[1], head));
      source.num_dims = 1;
      SLUICE_TRY_VOID(add(std::move(source)));
    }
    return {};
  }

  // Takes what stacked tensors have together; down projections of experts stay a stack.
  Expected<bool> take_stacked(const CheckpointTensor& tensor) {
    const bool alone = files_.experts == ExpertTensors::kStackedAlone;
    if (!alone && files_.experts != ExpertTensors::kStacked) return false;
    for (const StackedNames& names : std::span(kStackedNames).first(alone ? 1 : 3)) {
      const std::optional<std::string> gate = renamed(tensor.name, names.up, names.gate);
      if (gate && input_.has(*gate)) return true;  // handled with the gate
      const std::optional<std::string> up = renamed(tensor.name, names.gate, names.up);
      if (!up) continue;
      const CheckpointTensor* found = input_.find(*up);
      if (found == nullptr || !std::ranges::equal(found->dims, tensor.dims)) {
        return make_error(ErrorCode::kDataLoss,
                          input_.path() + ": tensor " + sluice::in_quotes(tensor.name) +
                              ": found no up projection of its shape, expected one");
      }
      SLUICE_TRY(SourceTensor source, joined(input_.path(), tensor, *found, experts_of(tensor)));
      source.name = *renamed(tensor.name, names.gate, names.both);
      SLUICE_TRY_VOID(add(std::move(source)));
      return true;
    }
    if (!is_stack(tensor)) return false;
    SLUICE_TRY_VOID(add(source_of(tensor)));
    return true;
  }

  Expected<void> add_stack(const CheckpointTensor& tensor) {
    const bool is_fused = files_.experts == ExpertTensors::kTransposed ||
                          files_.experts == ExpertTensors::kTransposedHalves;
    if (is_fused && experts_ == ExpertLayout::kFused) {
      return add_fused(input_, files_, tensor, tensors_);
    }
    if (hf_name(tensor.name, files_)) return add_whole(tensor);
    SLUICE_TRY(const int32_t count, input_.metadata().get_count("expert_count", 1 << 16));
    for (uint64_t e = 0; e < static_cast<uint64_t>(count); ++e) {
      SLUICE_TRY(SourceTensor source,
                 expert_of(input_.path(), tensor, static_cast<uint64_t>(count), e));
      SLUICE_TRY_VOID(add(std::move(source)));
    }
    return {};
  }

  // Adds experts of a family whose directories have them in one tensor, and no name for one of
  // them.
  Expected<void> add_whole(const CheckpointTensor& tensor) {
    if (experts_ == ExpertLayout::kFused) return add(source_of(tensor));
    return make_error(ErrorCode::kUnsupported,
                      input_.path() + ": tensor " + sluice::in_quotes(tensor.name) +
                          ": found all experts of a layer, expected a matrix each for this type",
                      "to");
  }

  Expected<void> add(SourceTensor source) {
    const bool is_directory = input_.kind() == CheckpointKind::kHuggingFace;
    if (is_directory && !source.stored_name.empty()) {
      tensors_.push_back(std::move(source));
      return {};
    }
    const std::optional<std::string> name = hf_name(source.name, files_);
    if (!name) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() + ": tensor " + sluice::in_quotes(source.name) +
                            ": found one that a directory of type " +
                            std::string(files_.model_type) + " has no name for",
                        "to");
    }
    source.stored_name = *name;
    if (is_directory) source.input_name = *name;
    // The name that a reader of the directory uses.
    source.name = gguf_name(*name, &files_);
    source.read_names = {source.name};
    tensors_.push_back(std::move(source));
    return {};
  }

  const Checkpoint& input_;
  const FileSpec& files_;
  ExpertLayout experts_;
  std::vector<SourceTensor> tensors_;
};

SourceTensor factors_tensor(std::string_view name, const std::vector<float>& factors) {
  SourceTensor source{.name = std::string(name), .stored_name = std::string(name)};
  source.input_name = source.name;
  source.num_dims = 1;
  source.dims[0] = factors.size();
  source.values = factors;
  source.read_names = {source.name};
  return source;
}

// Makes a GGUF file's tensors from a directory's.
class GgufTensors {
 public:
  GgufTensors(const Checkpoint& input, const ModelConfig& config, const FileSpec& files)
      : input_(input), config_(config), files_(files) {}

  Expected<std::vector<SourceTensor>> run() {
    for (const CheckpointTensor& tensor : input_.tensors()) {
      if (tensor.name.find(".ffn_xielu.") != std::string::npos) continue;  // they become keys
      SLUICE_TRY(const bool is_taken_apart, take_stacked(tensor));
      if (is_taken_apart) continue;
      SLUICE_TRY(const bool is_joined, take_qkv(tensor));
      if (is_joined) continue;
      if (const std::optional<ExpertName> name = expert_name(tensor.name)) {
        stacks_[name->stem + name->suffix][name->expert] = &tensor;
      } else {
        SLUICE_TRY_VOID(add(source_of(tensor)));
      }
    }
    for (const auto& [name, parts] : stacks_) SLUICE_TRY_VOID(add_stack(name, parts));
    const kernels::RopeParams& rope = config_.ropes.front();
    const std::string type = input_.metadata().get_string("rope.scaling.type").value_or("");
    if (type == "llama3" || type == "proportional") {
      const kernels::RopeParams& widest =
          *std::ranges::max_element(config_.ropes, {}, &kernels::RopeParams::rotary_dim);
      std::vector<float> factors = rope.freq_factors;
      factors.resize(static_cast<size_t>(widest.rotary_dim / 2), 1.0F);
      tensors_.push_back(factors_tensor(kFactors, factors));
    }
    if (!config_.long_rope.long_factors.empty()) {
      tensors_.push_back(factors_tensor(kLongFactors, config_.long_rope.long_factors));
      tensors_.push_back(factors_tensor(kShortFactors, config_.long_rope.short_factors));
    }
    return std::move(tensors_);
  }

 private:
  // A file has gate and up apart.
  Expected<bool> take_stacked(const CheckpointTensor& tensor) {
    if (files_.experts != ExpertTensors::kStacked) return false;
    for (const StackedNames& names : kStackedNames) {
      const std::optional<std::string> gate = renamed(tensor.name, names.both, names.gate);
      if (!gate || input_.has(*gate)) continue;
      for (const int64_t which : {0, 1}) {
        SLUICE_TRY(SourceTensor half, half_of(input_.path(), tensor, which, experts_of(tensor)));
        half.name = which == 0 ? *gate : *renamed(tensor.name, names.both, names.up);
        SLUICE_TRY_VOID(add(std::move(half)));
      }
      return true;
    }
    return false;
  }

  // Joins q, k and v where files have them as one.
  Expected<bool> take_qkv(const CheckpointTensor& tensor) {
    const auto is_part = [&](std::string_view part) {
      return tensor.name.find(part) != std::string::npos;
    };
    if (!files_.joins_qkv) return false;
    if (is_part(".attn_k.") || is_part(".attn_v.")) return true;  // handled with q
    if (!is_part(".attn_q.")) return false;
    SLUICE_TRY(SourceTensor source, joined_qkv(input_, tensor));
    SLUICE_TRY_VOID(add(std::move(source)));
    return true;
  }

  Expected<void> add(SourceTensor source) {
    const auto experts = static_cast<uint64_t>(config_.moe.num_experts);
    if (source.num_dims == 2 && source.name.find("_exps.weight") != std::string::npos) {
      SLUICE_TRY(const int64_t rows,
                 stack_rows(input_.path(), source.name, source.shape().rows, experts));
      source.num_dims = 3;  // all experts' rows, which are in order
      source.dims[1] = static_cast<uint64_t>(rows);
      source.dims[2] = experts;
    }
    source.stored_name = name_in_gguf(source.name, &files_);
    source.read_names = {source.name};
    tensors_.push_back(std::move(source));
    return {};
  }

  Expected<void> add_stack(const std::string& name,
                           const std::map<uint64_t, const CheckpointTensor*>& parts) {
    const LayerConfig& layer = config_.layers.front();
    const int32_t heads =
        name.find(".attn_q_norm.") != std::string::npos ? layer.num_heads : layer.num_kv_heads;
    const bool is_norm = name.find(kHeadNorm) != std::string::npos;
    const auto count = static_cast<uint64_t>(is_norm ? heads : config_.moe.num_experts);
    const CheckpointTensor& first = *parts.begin()->second;
    const bool is_whole = parts.size() == count && parts.rbegin()->first + 1 == count &&
                          std::ranges::all_of(parts, [&](const auto& part) {
                            return std::ranges::equal(part.second->dims, first.dims);
                          });
    if (!is_whole || first.num_dims > 3) {
      return make_error(ErrorCode::kDataLoss,
                        input_.path() + ": tensor " + sluice::in_quotes(first.stored_name) +
                            ": found " + std::to_string(parts.size()) + " of one shape, expected " +
                            std::to_string(count));
    }
    SourceTensor source = source_of(first);
    source.name = name;
    source.dims[source.num_dims++] = count;
    source.pieces.clear();
    for (const auto& [expert, tensor] : parts) {
      source.pieces.push_back(source_of(*tensor).pieces.front());
    }
    return add(std::move(source));
  }

  const Checkpoint& input_;
  const ModelConfig& config_;
  const FileSpec& files_;
  std::map<std::string, std::map<uint64_t, const CheckpointTensor*>> stacks_;
  std::vector<SourceTensor> tensors_;
};

// Takes factors that a GGUF file stores as tensors, as building the model does.
Expected<void> take_factors(const std::string& file,
                            const std::vector<SourceTensor>& tensors,
                            ModelConfig& config) {
  for (const SourceTensor& source : tensors) {
    std::vector<float>* factors = nullptr;
    if (source.name == kFactors) factors = &config.ropes.front().freq_factors;
    if (source.name == kLongFactors) factors = &config.long_rope.long_factors;
    if (source.name == kShortFactors) factors = &config.long_rope.short_factors;
    if (factors == nullptr) continue;
    if (source.shape().rows != 1) {
      return make_error(ErrorCode::kDataLoss,
                        file + ": tensor " + sluice::in_quotes(source.name) +
                            ": found several rows, expected one");
    }
    factors->resize(static_cast<size_t>(source.shape().width));
    SLUICE_TRY_VOID(SourceRows(file, source).read(0, 1, factors->data()));
    const auto own = static_cast<size_t>(config.ropes.front().rotary_dim / 2);
    if (source.name == kFactors) factors->resize(std::min(factors->size(), own));
  }
  return {};
}

// Returns the family under which a model of `spec` is written in the other layout: several may
// share GGUF's name. Null: that layout has none.
const ModelSpec* find_counterpart(const Checkpoint& input,
                                  const ModelSpec& spec,
                                  const ModelConfig& config) {
  if (input.kind() != CheckpointKind::kGguf) return spec.files.gguf.empty() ? nullptr : &spec;
  for (const ModelSpec* other : model_specs()) {
    const bool takes = other->takes_gguf != nullptr && other->takes_gguf(config);
    if (other->files.gguf == spec.files.gguf && takes) return other;
  }
  return spec.files.model_type.empty() ? nullptr : &spec;
}

class Translator {
 public:
  Translator(const Checkpoint& input, ExpertLayout experts, const std::string& output)
      : input_(input), experts_(experts), output_(output) {}

  Expected<Translation> run() {
    SLUICE_TRY(const ModelSpec* spec, find_model_spec(input_));
    SLUICE_TRY(config_, read_model_config(*spec, input_));
    spec_ = find_counterpart(input_, *spec, config_);
    if (spec_ == nullptr) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() + ": architecture " + input_.architecture() +
                            ": found one that the other layout does not have",
                        "to");
    }
    const bool is_gguf = input_.kind() == CheckpointKind::kGguf;
    SLUICE_TRY(const ModelConfig other, is_gguf ? to_directory() : to_gguf());
    if (const std::string difference = difference_of(other, config_); !difference.empty()) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() + ": " +
                            std::string(is_gguf ? "a directory" : "a GGUF file") + " of type " +
                            std::string(is_gguf ? files().model_type : files().gguf) +
                            " cannot say all of it: " + difference,
                        "to");
    }
    std::erase_if(result_.tensors, [this](const SourceTensor& tensor) { return is_idle(tensor); });
    for (SourceTensor& tensor : result_.tensors) SLUICE_TRY_VOID(rearrange(other, tensor));
    return std::move(result_);
  }

 private:
  [[nodiscard]] const FileSpec& files() const { return spec_->files; }

  Expected<ModelConfig> to_directory() {
    if (config_.has_latents()) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() + ": architecture " + input_.architecture() +
                            ": found matrices of each head, which a directory has as one and "
                            "transposed; expected a type of GGUF",
                        "to");
    }
    if (config_.gate_function == kernels::GateFunction::kXielu) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() +
                            ": found the numbers of xIELU as keys, which a directory "
                            "has as tensors; expected a type of GGUF",
                        "to");
    }
    std::vector<SourceTensor> stored;
    for (const CheckpointTensor& tensor : input_.tensors()) stored.push_back(source_of(tensor));
    SLUICE_TRY_VOID(take_factors(input_.path(), stored, config_));
    DirectoryTensors tensors(input_, files(), experts_);
    SLUICE_TRY(result_.tensors, tensors.run());
    SLUICE_TRY(result_.config, hf_keys(input_, config_, *spec_));
    const std::string file = output_ + "/config.json";
    SLUICE_TRY(HfConfig config, parse_hf_config(std::as_bytes(std::span(result_.config)), file));
    config.metadata.set("tied_embeddings", "tie_word_embeddings", config.tied_embeddings);
    return read_view(
        CheckpointKind::kHuggingFace, std::string(files().model_type), std::move(config.metadata));
  }

  Expected<ModelConfig> to_gguf() {
    GgufTensors tensors(input_, config_, files());
    SLUICE_TRY(result_.tensors, tensors.run());
    result_.metadata = gguf_keys(input_, config_, *spec_);
    const std::vector<std::byte> header = gguf_header(result_.metadata, 0);
    SLUICE_TRY(const auto file, GgufFile::parse(header, output_));
    Metadata metadata(output_);
    take_gguf_metadata(*file, files().gguf, metadata);
    SLUICE_TRY(ModelConfig config,
               read_view(CheckpointKind::kGguf, std::string(files().gguf), std::move(metadata)));
    SLUICE_TRY_VOID(take_factors(output_, result_.tensors, config));
    return config;
  }

  Expected<ModelConfig> read_view(CheckpointKind kind,
                                  std::string architecture,
                                  Metadata metadata) const {
    PlannedView view(output_, kind, std::move(architecture), std::move(metadata));
    SLUICE_TRY_VOID(view.add(result_.tensors));
    SLUICE_TRY(const ModelSpec* spec, find_model_spec(view));
    return read_model_config(*spec, view);
  }

  // K and V of a layer that reads another's.
  [[nodiscard]] bool is_idle(const SourceTensor& tensor) const {
    std::string_view name = tensor.name;
    constexpr std::string_view kLayers = "blk.";
    if (!name.starts_with(kLayers)) return false;
    name.remove_prefix(kLayers.size());
    const std::optional<std::string> layer = take_number(name);
    if (!layer || std::stoull(*layer) >= config_.layers.size()) return false;
    return config_.layers[std::stoull(*layer)].kv_from >= 0 &&
           (name.starts_with("attn_k") || name.starts_with("attn_v"));
  }

  // Reorders rows of q and k, and adjusts norms, for the other layout.
  Expected<void> rearrange(const ModelConfig& other, SourceTensor& tensor) const {
    const kernels::RopeStyle style = config_.ropes.front().style;
    const kernels::RopeStyle other_style = other.ropes.front().style;
    const auto is = [&](std::string_view part) {
      return tensor.name.find(part) != std::string::npos;
    };
    if (tensor.num_dims == 1 && is("norm.weight")) {
      tensor.offset = config_.norm_offset - other.norm_offset;
    }
    if (style != other_style && config_.has_latents()) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() +
                            ": rope_interleave: found false, expected true, as files "
                            "have rows",
                        "to");
    }
    if (style == other_style || (!is(".attn_q.") && !is(".attn_k.") && !is(".attn_qkv."))) {
      return {};
    }
    if (is(".attn_qkv.")) {
      return make_error(ErrorCode::kUnsupported,
                        input_.path() + ": tensor " + sluice::in_quotes(tensor.name) +
                            ": found q, k and v as one, expected three",
                        "to");
    }
    const LayerConfig& layer = config_.layers.front();
    const int32_t num_heads = is(".attn_q.") ? layer.num_heads : layer.num_kv_heads;
    const auto heads = static_cast<uint64_t>(num_heads);
    const uint64_t rows = tensor.dims[tensor.num_dims > 1 ? 1 : 0];
    if (tensor.num_dims > 2 || rows % (2 * heads) != 0) {
      return make_error(ErrorCode::kDataLoss,
                        input_.path() + ": tensor " + sluice::in_quotes(tensor.input_name) +
                            ": found " + std::to_string(rows) + " rows, expected a multiple of " +
                            std::to_string(2 * heads) + ", two of each head");
    }
    tensor.heads = num_heads;
    tensor.order =
        other_style == kernels::RopeStyle::kInterleaved ? RowOrder::kToPairs : RowOrder::kToHalves;
    if (tensor.num_dims > 1) return {};
    // A bias is one row: its elements move like the rows of its matrix.
    SourceTensor column = tensor;
    const auto count = static_cast<size_t>(tensor.dims[0]);
    std::vector<float> values(count);
    column.order = RowOrder::kAsStored;
    SLUICE_TRY_VOID(SourceRows(input_.path(), column).read(0, 1, values.data()));
    tensor.values.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t row = row_behind(
          tensor.order, static_cast<int64_t>(count), tensor.heads, static_cast<int64_t>(i));
      tensor.values[i] = values[static_cast<size_t>(row)];
    }
    tensor.order = RowOrder::kAsStored;
    tensor.pieces.clear();
    return {};
  }

  const Checkpoint& input_;
  ExpertLayout experts_;
  const std::string& output_;
  ModelConfig config_;
  const ModelSpec* spec_ = nullptr;  // of both layouts
  Translation result_;
};

// Whether layers keep states.
bool has_recurrent_layers(const Checkpoint& checkpoint) {
  const FileSpec* const spec = checkpoint.file_spec();
  if (spec == nullptr || spec->layer_types != LayerTypes::kRecurrent) return false;
  const auto listed = checkpoint.metadata().get_numbers("attention.recurrent_layers");
  return !listed || std::ranges::any_of(*listed, [](double layer) { return layer != 0; });
}

}  // namespace

Expected<Translation> translate(const Checkpoint& input,
                                ExpertLayout experts,
                                const std::string& output) {
  if (has_recurrent_layers(input)) {
    return make_error(ErrorCode::kUnsupported,
                      input.path() + ": architecture " + input.architecture() +
                          ": found recurrent layers, which are not written in another layout; "
                          "expected attention in every layer",
                      "to");
  }
  return Translator(input, experts, output).run();
}

std::optional<SourceTensor> read_back(const Checkpoint& written, const SourceTensor& tensor) {
  const CheckpointTensor* first = written.find(tensor.read_names.front());
  if (first == nullptr) return std::nullopt;
  if (first->latent) return source_of(first->latent->whole());
  if (tensor.read_names.size() == 1) return source_of(*first);
  const CheckpointTensor* second = written.find(tensor.read_names[1]);
  if (second == nullptr) return std::nullopt;
  const bool alternates = tensor.order == RowOrder::kAlternating || !tensor.values.empty();
  if (alternates) return alternating(*first, *second);
  auto both = joined(written.path(), *first, *second, experts_of(*first));
  return both ? std::optional(std::move(*both)) : std::nullopt;
}

Expected<std::vector<SourceTensor>> sources_of(const Checkpoint& input, ExpertLayout experts) {
  const bool has_stacks = std::ranges::any_of(input.tensors(), is_stack);
  if (input.kind() == CheckpointKind::kHuggingFace && has_stacks) {
    constexpr FileSpec kUnknown;
    const FileSpec* const files = input.file_spec();
    return DirectoryTensors(input, files != nullptr ? *files : kUnknown, experts).run();
  }
  std::vector<SourceTensor> tensors;
  for (const CheckpointTensor& tensor : input.tensors()) add_source(tensor, tensors);
  return tensors;
}

}  // namespace sluice
