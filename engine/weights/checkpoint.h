// SPDX-License-Identifier: Apache-2.0
// A model on disk in any layout: metadata and tensors under GGUF's names (those of most families,
// where families differ), the tokenizer and the chat template. Tensor data stays mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint_tensor.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/metadata.h"
#include "quant/format.h"

namespace sluice {

// A mapped file of the checkpoint.
struct CheckpointFile {
  std::span<const std::byte> bytes;
  std::span<const std::byte> header;  // of `bytes`: what says which tensors there are
  FileIdentity identity;
};

struct CheckpointText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string chat_template;  // empty: none
};

// kDummy: random weights of the requested shapes; only config.json is read.
enum class LoadFormat : uint8_t { kAuto, kDummy };

// The part of a folder that is read: the model, or, as a model of one layer, the module after its
// layers that guesses one further token (MTP).
enum class CheckpointPart : uint8_t { kModel, kNextToken };

// The convention by which the rows of q and k and the weights of norms are stored.
enum class CheckpointKind : uint8_t { kGguf, kHuggingFace };

class Checkpoint {
 public:
  // Opens a GGUF file, any part of a split one, or a directory with config.json and weight files
  // (weight_files.h).
  // kUnsupported or kDataLoss with one line "file: field: found X, expected Y". There are no
  // tensors of kNextToken if there is no module. `overrides`: see model_overrides(), whose errors
  // are then possible too.
  static Expected<std::unique_ptr<Checkpoint>> open(const std::string& path,
                                                    LoadFormat format = LoadFormat::kAuto,
                                                    CheckpointPart part = CheckpointPart::kModel,
                                                    const std::string& overrides = {});
  virtual ~Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] CheckpointKind kind() const { return kind_; }

  // general.architecture of a GGUF file, or model_type of a config.json.
  [[nodiscard]] const std::string& architecture() const { return architecture_; }

  // The family that has this architecture; null: none.
  [[nodiscard]] const FileSpec* file_spec() const { return file_spec_; }

  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

  // Replaces what the files say of whether tokens see only those before them.
  void override_causal(bool is_causal) {
    metadata_.set("attention.causal", "--hf-overrides: is_causal", is_causal);
  }

  // What was put over the files' own keys, as model_overrides() writes it; empty: nothing.
  [[nodiscard]] const std::string& overrides() const { return overrides_; }

  [[nodiscard]] bool is_dummy() const { return is_dummy_; }

  // Format of the layers' matrices, except routers, in a dummy checkpoint.
  [[nodiscard]] WeightFormat dummy_format() const { return dummy_format_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const { return tensors_; }

  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const;

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  // Returns "file: tensor name" for a line about the tensor of this GGUF name, with the name that
  // the file has or ought to have.
  [[nodiscard]] std::string place_of(std::string_view name) const;

  // For a draft head with a reduced vocabulary: per id of the head, the offset to the model's id
  // (tensor d2t). Empty: the ids are equal.
  [[nodiscard]] std::span<const int64_t> id_offsets() const { return id_offsets_; }

  // Stored names of tensors outside the model that is read: vision towers, modules that guess
  // further tokens.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }

  // The mapped files. Their headers and the tensors' bytes decide what the model computes.
  [[nodiscard]] virtual std::vector<CheckpointFile> files() const = 0;
  [[nodiscard]] int64_t file_bytes() const;
  // Reads tokenizer and template anew at each call.
  [[nodiscard]] virtual Expected<CheckpointText> text() const = 0;
  // Returns metadata and tensors as text for people; see describe_gguf().
  [[nodiscard]] virtual std::string describe(bool all_tensors) const = 0;

 protected:
  Checkpoint(std::string path, CheckpointKind kind, std::string architecture)
      : path_(std::move(path)),
        kind_(kind),
        architecture_(std::move(architecture)),
        metadata_(path_) {}

  void add_tensor(CheckpointTensor tensor);
  // Called after all are added. kDataLoss: two tensors have the same GGUF name.
  Expected<void> index_tensors();

  std::string path_;
  CheckpointKind kind_;
  std::string architecture_;
  const FileSpec* file_spec_ = nullptr;
  Metadata metadata_;
  std::string overrides_;
  bool is_dummy_ = false;
  WeightFormat dummy_format_ = WeightFormat::kBF16;
  std::vector<int64_t> id_offsets_;
  std::vector<std::string> left_out_;

 private:
  Expected<void> split_latents();

  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

Expected<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(
    const std::string& path,
    CheckpointPart part = CheckpointPart::kModel,
    const std::string& overrides = {});
Expected<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::string& directory,
                                                         LoadFormat format,
                                                         CheckpointPart part,
                                                         const std::string& overrides);

}  // namespace sluice
