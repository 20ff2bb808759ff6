// SPDX-License-Identifier: Apache-2.0
// Reads a directory in Hugging Face's layout: config.json and weight files (weight_files.h).
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "engine/core/log.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/fused_experts.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/hf_config.h"
#include "engine/weights/hf_names.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/quantization.h"
#include "engine/weights/quantized_layers.h"
#include "engine/weights/reordered.h"
#include "engine/weights/weight_files.h"
#include "quant/repack.h"

namespace sluice {
namespace {

// Older places of a quantization's configuration, read where config.json has none.
struct QuantizationFile {
  const char* name;
  std::string_view usual_method;
};

constexpr QuantizationFile kQuantizationFiles[] = {{"hf_quant_config.json", "modelopt"},
                                                   {"quantize_config.json", "gptq"},
                                                   {"quant_config.json", "awq"}};

// Returns "blk.0." for a part of a layer's fused experts, cutting its name to that within the
// layer; otherwise empty.
std::string take_fused_layer(std::string& name, const FileSpec* spec) {
  std::string_view rest = without_prefix(name);
  const auto take = [&rest](std::string_view start) {
    const bool is_there = rest.starts_with(start);
    if (is_there) rest.remove_prefix(start.size());
    return is_there;
  };
  if (spec == nullptr) return {};
  if (!take(spec->layers_place)) {
    take("model.");
    take("encoder.");
    if (!take("layers.")) return {};
  }
  const std::optional<std::string> layer = take_number(rest);
  if (!layer || !is_fused_expert_tensor(rest, *spec)) return {};
  name = std::string(rest);
  return "blk." + *layer + ".";
}

// Whether the configuration, or another tensor, implies it: the output layer, rotations, masks.
bool is_implied(std::string_view stored, bool tied_embeddings) {
  if (tied_embeddings && without_prefix(stored).starts_with("lm_head.weight")) return true;
  constexpr std::string_view kEnds[] = {".rotary_emb.inv_freq",
                                        ".rotary_emb.cos_cached",
                                        ".rotary_emb.sin_cached",
                                        ".attn.bias",
                                        ".attention.bias",
                                        ".masked_bias"};
  return std::ranges::any_of(kEnds, [stored](auto end) { return stored.ends_with(end); });
}

// Whether it is a number without a dimension, of a function that has some.
bool is_scalar(const FileTensor& tensor, const FileSpec* spec) {
  return spec != nullptr && spec->function == "xielu" && tensor.shape.empty() && tensor.type &&
         float_format(*tensor.type);
}

// `file`: its path.
CheckpointTensor make_entry(const std::string& name,
                            const std::string& our_name,
                            const std::string& file,
                            std::span<const uint64_t> shape,
                            WeightFormat format,
                            std::span<const std::byte> data) {
  CheckpointTensor entry;
  entry.name = our_name;
  entry.stored_name = name;
  entry.file = file;
  entry.num_dims = static_cast<uint32_t>(shape.size());
  std::reverse_copy(shape.begin(), shape.end(), std::begin(entry.dims));
  entry.format = format;
  entry.data = data;
  return entry;
}

// Makes the entry of a matrix of codes; stacked matrices stay stacked.
CheckpointTensor make_entry(const QuantizedLayer& layer, const std::string& our_name) {
  const CodedMatrix& matrix = *layer.matrix;
  std::vector<uint64_t> shape = matrix.codes().shape;
  if (matrix.is_transposed()) shape = {static_cast<uint64_t>(matrix.n()), 0};
  shape.back() = static_cast<uint64_t>(matrix.k());
  CheckpointTensor entry =
      make_entry(layer.name, our_name, layer.file, shape, matrix.format(), matrix.codes().bytes);
  entry.coded = layer.matrix;
  return entry;
}

tl::unexpected<Error> wrong_tensor(const std::string& path,
                                   const FileTensor& tensor,
                                   const std::string& found,
                                   const std::string& expected) {
  return make_error(ErrorCode::kDataLoss,
                    path + ": tensor " + sluice::in_quotes(tensor.name) + ": found " + found +
                        ", expected " + expected);
}

// Names the packed type, plus the original scheme if its name says more.
std::string type_text(const CheckpointTensor& tensor) {
  std::string text(format_info(tensor.format).name);
  if (tensor.coded && tensor.coded->scheme().name != text) {
    text += " (" + std::string(tensor.coded->scheme().name) + ")";
  }
  return text;
}

struct HeadedFile {
  MappedFile file;
  std::span<const std::byte> header;  // of `file`: see CheckpointFile
};

class HfCheckpoint final : public Checkpoint {
 public:
  HfCheckpoint(const std::string& directory,
               HfConfig config,
               std::vector<MappedFile> config_files,
               LoadFormat format,
               CheckpointPart part,
               const std::string& overrides)
      : Checkpoint(directory, CheckpointKind::kHuggingFace, std::move(config.model_type)),
        part_(part),
        is_wrapper_(config.is_wrapper),
        tied_embeddings_(config.tied_embeddings),
        quantization_(std::move(config.quantization)),
        quantized_(quantization_,
                   config.spec != nullptr && config.spec->experts == ExpertTensors::kStackedAlone) {
    file_spec_ = config.spec;
    if (file_spec_ != nullptr) experts_ = file_spec_->experts;
    metadata_ = std::move(config.metadata);
    metadata_.set("tied_embeddings", "tie_word_embeddings", config.tied_embeddings);
    overrides_ = overrides;
    is_dummy_ = format == LoadFormat::kDummy;
    dummy_format_ = quantization_.usual_format();
    num_configs_ = config_files.size();
    for (MappedFile& file : config_files) {
      const std::span<const std::byte> bytes = file.bytes();
      files_.push_back({.file = std::move(file), .header = bytes});
    }
  }

  Expected<void> read_tensors();

  [[nodiscard]] std::vector<CheckpointFile> files() const override {
    std::vector<CheckpointFile> files;
    for (const auto& [file, header] : files_) {
      files.push_back({.bytes = file.bytes(), .header = header, .identity = file.identity()});
    }
    return files;
  }

  [[nodiscard]] Expected<CheckpointText> text() const override {
    SLUICE_TRY(HfText text, load_hf_text(path_));
    return CheckpointText{std::move(text.tokenizer), std::move(text.chat_template)};
  }

  [[nodiscard]] std::string describe(bool all_tensors) const override;

 private:
  [[nodiscard]] uint64_t num_layers() const {
    return metadata_.get_uint("block_count").value_or(UINT64_MAX);
  }

  [[nodiscard]] std::string_view part_of(std::string_view stored) const {
    return part_beside_text(stored, file_spec_, is_wrapper_);
  }

  [[nodiscard]] bool is_left_out(std::string_view stored) const {
    if (is_implied(stored, tied_embeddings_) || !part_of(stored).empty()) return true;
    if (file_spec_ != nullptr && file_spec_->is_encoder && is_beside_encoder(stored)) return true;
    return part_ == CheckpointPart::kModel ? is_next_token_name(stored, num_layers())
                                           : !next_token_name(stored, num_layers());
  }

  // Returns our name of the tensor in the part that is read.
  [[nodiscard]] std::string name_in_part(const std::string& stored) const {
    if (part_ == CheckpointPart::kModel) return gguf_name(stored, file_spec_);
    return gguf_name(next_token_name(stored, num_layers()).value_or(stored), file_spec_);
  }

  void note_left_out(const std::string& stored);
  // Keeps the output layer of a file that says it is the embedding.
  void note_tied_head(const FileTensor& tensor, const std::string& path);

  Expected<void> add_file(WeightFile file);
  // Adds a tensor, or the three that it holds.
  Expected<void> add_part(CheckpointTensor tensor);
  // Takes a draft head's id tensors: `d2t` is kept; `t2d`, its inverse, is dropped. Returns whether
  // the tensor was one of them.
  Expected<bool> take_head_ids(const FileTensor& tensor, const std::string& path);
  // Adds the output layer that was kept if it is another matrix than the embedding.
  Expected<void> untie_head();
  // Completes what needs the tensors of all files: experts, scales.
  Expected<void> finish();

  CheckpointPart part_;
  bool is_wrapper_;
  bool tied_embeddings_;
  Quantization quantization_;
  QuantizedLayers quantized_;
  std::vector<HeadedFile> files_;  // configurations first
  size_t num_configs_ = 0;         // config.json and its supplements
  ExpertTensors experts_ = ExpertTensors::kApart;
  std::map<std::string, std::vector<FileTensor>> fused_;  // experts, by "blk.0."
  std::vector<std::vector<std::byte>> memory_;            // storage of rearranged tensors
  std::map<std::string_view, size_t> num_of_parts_;       // tensors beside the text model
  std::optional<CheckpointTensor> tied_head_;
  size_t num_next_token_ = 0;  // tensors of MTP modules
  std::string first_next_token_;
};

void HfCheckpoint::note_left_out(const std::string& stored) {
  if (part_ != CheckpointPart::kModel) return;
  const bool is_next_token = is_next_token_name(stored, num_layers());
  const std::string_view part = part_of(stored);
  if (is_next_token || !part.empty()) left_out_.push_back(stored);
  if (!part.empty()) ++num_of_parts_[part];
  if (is_next_token && num_next_token_++ == 0) first_next_token_ = stored;
}

void HfCheckpoint::note_tied_head(const FileTensor& tensor, const std::string& path) {
  const bool is_head = tied_embeddings_ && part_ == CheckpointPart::kModel &&
                       without_prefix(tensor.name) == "lm_head.weight";
  const std::optional<WeightFormat> format =
      is_head && tensor.type && !tensor.unreadable ? float_format(*tensor.type) : std::nullopt;
  if (!format) return;
  tied_head_ =
      make_entry(tensor.name, name_in_part(tensor.name), path, tensor.shape, *format, tensor.data);
}

// Training may part the two and leave the flag. Only a matrix that is there twice is read whole.
Expected<void> HfCheckpoint::untie_head() {
  if (!tied_head_) return {};
  const auto embedding =
      std::ranges::find(tensors(), std::string_view("token_embd.weight"), &CheckpointTensor::name);
  const bool are_alike = embedding != tensors().end() && embedding->format == tied_head_->format &&
                         std::ranges::equal(embedding->dims, tied_head_->dims) &&
                         embedding->data.size() == tied_head_->data.size();
  const auto& head = tied_head_->data;
  if (!are_alike || std::memcmp(embedding->data.data(), head.data(), head.size()) == 0) return {};
  warn_of_file(tied_head_->file,
               tied_head_->stored_name,
               "another matrix than the embedding, although tie_word_embeddings is true",
               "the output layer");
  return add_part(*std::move(tied_head_));
}

Expected<void> HfCheckpoint::add_part(CheckpointTensor tensor) {
  const bool is_grouped = file_spec_ != nullptr && file_spec_->groups_qkv &&
                          tensor.name.find(".attn_qkv.") != std::string::npos;
  if (file_spec_ != nullptr && file_spec_->is_transposed && tensor.num_dims == 2 &&
      tensor.name.starts_with("blk.")) {
    SLUICE_TRY_VOID(transpose(tensor, memory_));
  }
  const uint64_t vocab = file_spec_ == nullptr ? 0 : file_spec_->normalized_vocab;
  if (vocab > 0 && tensor.name == "output.weight" && tensor.dims[1] == vocab) {
    SLUICE_TRY_VOID(normalize_rows(tensor, memory_));
  }
  if (file_spec_ != nullptr && file_spec_->splits_qkv &&
      tensor.name.find(".attn_qkv.") != std::string::npos) {
    SLUICE_TRY(const auto parts, split_equal_qkv(tensor));
    for (const CheckpointTensor& part : parts) add_tensor(part);
    return {};
  }
  if (!is_grouped) {
    add_tensor(std::move(tensor));
    return {};
  }
  SLUICE_TRY(SplitQkv split, split_grouped_qkv(tensor, metadata_));
  for (CheckpointTensor& part : split.tensors) add_tensor(std::move(part));
  for (auto& piece : split.memory) memory_.push_back(std::move(piece));
  return {};
}

Expected<void> HfCheckpoint::add_file(WeightFile file) {
  const std::string path = path_ + "/" + file.name;
  size_t num_read = 0;
  for (FileTensor& tensor : file.tensors) {
    if (is_left_out(tensor.name)) {
      note_left_out(tensor.name);
      note_tied_head(tensor, path);
      continue;
    }
    ++num_read;
    SLUICE_TRY(const bool is_ids, take_head_ids(tensor, path));
    if (is_ids) continue;
    SLUICE_TRY(const bool is_quantized, quantized_.take(tensor, path));
    if (is_quantized) continue;
    if (is_scalar(tensor, file_spec_)) tensor.unreadable.reset();
    if (tensor.unreadable) return tl::unexpected(std::move(*tensor.unreadable));
    const bool are_stacked =
        experts_ == ExpertTensors::kStacked || experts_ == ExpertTensors::kStackedAlone;
    if (const std::string layer = are_stacked ? "" : take_fused_layer(tensor.name, file_spec_);
        !layer.empty()) {
      fused_[layer].push_back(std::move(tensor));
      continue;
    }
    const std::optional<WeightFormat> format = float_format(*tensor.type);
    if (!format) {
      return make_error(
          ErrorCode::kUnsupported,
          path + ": tensor " + sluice::in_quotes(tensor.name) + ": dtype: found \"" +
              std::string(element_info(*tensor.type).name) + "\", expected F32, F16 or BF16" +
              (quantization_.empty() ? ", or a quantization_config in config.json" : ""));
    }
    SLUICE_TRY_VOID(add_part(make_entry(
        tensor.name, name_in_part(tensor.name), path, tensor.shape, *format, tensor.data)));
  }
  for (auto& copy : file.copies) memory_.push_back(std::move(copy));
  if (num_read > 0 || part_ == CheckpointPart::kModel) {
    files_.push_back({.file = std::move(file.file), .header = file.header});
  }
  return {};
}

Expected<bool> HfCheckpoint::take_head_ids(const FileTensor& tensor, const std::string& path) {
  if (tensor.name == "t2d" || tensor.name == "model.t2d") return true;
  if (tensor.name != "d2t" && tensor.name != "model.d2t") return false;
  const bool is_list = tensor.type == ElementType::kI64 && tensor.shape.size() == 1 &&
                       tensor.shape[0] > 0 && tensor.data.size() % sizeof(int64_t) == 0 &&
                       tensor.data.size() / sizeof(int64_t) == tensor.shape[0];
  if (!is_list) return wrong_tensor(path, tensor, "another type or shape", "I64 [tokens]");
  id_offsets_.resize(tensor.shape[0]);
  std::memcpy(id_offsets_.data(), tensor.data.data(), tensor.data.size());
  return true;
}

Expected<void> HfCheckpoint::finish() {
  SLUICE_TRY(const std::vector<QuantizedLayer> layers, quantized_.join());
  for (const QuantizedLayer& layer : layers) {
    SLUICE_TRY_VOID(add_part(make_entry(layer, name_in_part(layer.name))));
  }
  for (const auto& [layer, parts] : fused_) {
    SLUICE_TRY(const uint64_t count, metadata_.get_uint_or("expert_count", 0));
    SLUICE_TRY(FusedExperts experts, split_fused_experts(parts, *file_spec_, layer, count, path_));
    for (CheckpointTensor& tensor : experts.tensors) add_tensor(std::move(tensor));
    for (auto& piece : experts.memory) memory_.push_back(std::move(piece));
  }
  fused_.clear();
  SLUICE_TRY_VOID(untie_head());
  return index_tensors();
}

Expected<void> HfCheckpoint::read_tensors() {
  SLUICE_TRY(std::vector<WeightFile> files,
             open_weight_files(path_, [this](auto stored) { return is_left_out(stored); }));
  for (WeightFile& file : files) SLUICE_TRY_VOID(add_file(std::move(file)));
  for (const auto& [name, count] : num_of_parts_) {
    log_event(LogLevel::kInfo, "text_only", "file", path_, "part", name, "tensors_not_read", count);
  }
  if (num_next_token_ > 0) {
    warn_of_file(path_,
                 first_next_token_,
                 std::to_string(num_next_token_) +
                     " tensors of modules behind the model's layers, which guess further tokens",
                 "no part of the model; method mtp of speculative-config drafts with the first");
  }
  return finish();
}

std::string HfCheckpoint::describe(bool all_tensors) const {
  std::string text = path_ + "\n  " + architecture_ + ", " +
                     std::to_string(files_.size() - num_configs_) + " weight file(s), " +
                     std::to_string(tensors().size()) + " tensors\n";
  size_t num_left_out = 0;
  for (const CheckpointTensor& tensor : tensors()) {
    const bool later_layer = tensor.name.starts_with("blk.") && !tensor.name.starts_with("blk.0.");
    if (later_layer && !all_tensors) {
      ++num_left_out;
      continue;
    }
    text += "  " + tensor.name + "  " + type_text(tensor) + " [";
    for (uint32_t i = 0; i < tensor.num_dims; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(tensor.dims[i]);
    }
    text += "]  " + std::to_string(tensor.data.size()) + " bytes\n";
  }
  if (num_left_out > 0) text += "  and " + std::to_string(num_left_out) + " of further layers\n";
  return text;
}

}  // namespace

Expected<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::string& directory,
                                                         LoadFormat format,
                                                         CheckpointPart part,
                                                         const std::string& overrides) {
  const std::string config_path = directory + "/config.json";
  SLUICE_TRY(MappedFile file, MappedFile::open(config_path));
  SLUICE_TRY(HfConfig config, parse_hf_config(file.bytes(), config_path, overrides));
  std::vector<MappedFile> files;
  files.push_back(std::move(file));
  std::error_code error;
  for (const QuantizationFile& known : kQuantizationFiles) {
    const std::string path = directory + "/" + known.name;
    if (!config.quantization.empty() || !std::filesystem::exists(path, error)) continue;
    SLUICE_TRY(MappedFile quantization_file, MappedFile::open(path));
    SLUICE_TRY(config.quantization,
               parse_hf_quant_config(quantization_file.bytes(), path, known.usual_method));
    files.push_back(std::move(quantization_file));
  }
  auto checkpoint = std::make_unique<HfCheckpoint>(
      directory, std::move(config), std::move(files), format, part, overrides);
  if (checkpoint->is_dummy()) return checkpoint;
  // find_model_spec() refuses an unknown family by its name, whatever its tensors are.
  Expected<void> read = checkpoint->read_tensors();
  if (!read && checkpoint->file_spec() != nullptr) return tl::unexpected(std::move(read).error());
  return checkpoint;
}

}  // namespace sluice
