// SPDX-License-Identifier: Apache-2.0
// A model on disk, whatever its layout: metadata and tensors under GGUF's names, the tokenizer and
// the chat template. Tensor data stays mapped.
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
#include "engine/weights/mapped_file.h"
#include "engine/weights/metadata.h"
#include "quant/format.h"
#include "quant/scheme.h"

namespace sluice {

struct CheckpointTensor {
  std::string name;                 // "blk.0.attn_q.weight"
  std::string stored_name = {};     // in the file; empty: it was put together from several
  uint32_t num_dims = 0;            // trailing dimensions of 1 do not count
  uint64_t dims[4] = {1, 1, 1, 1};  // fastest first: dims[0] = K
  // Of its rows in the file, or what kernels read of a matrix of codes.
  WeightFormat format = WeightFormat::kF32;
  std::span<const std::byte> data;  // mapped
  std::shared_ptr<const CodedMatrix> coded =
      nullptr;  // `data` is its codes; null: rows of floats or blocks
};

// A file of the checkpoint, mapped.
struct CheckpointFile {
  std::span<const std::byte> bytes;
  size_t header_bytes = 0;  // at its beginning: what is no tensor's
  FileIdentity identity;
};

struct CheckpointText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string chat_template;  // empty: none
};

// kDummy: weights are random, of the shapes that are asked for; only config.json is read.
enum class LoadFormat : uint8_t { kAuto, kDummy };

// What is read of a folder: the model, or the module behind its layers that guesses one further
// token (MTP), as a model of one layer.
enum class CheckpointPart : uint8_t { kModel, kNextToken };

// How the rows of q and k and the weights of norms are stored.
enum class CheckpointKind : uint8_t { kGguf, kHuggingFace };

class Checkpoint {
 public:
  // `path`: a GGUF file, any part of one that is split, or a directory with config.json and
  // safetensors. kUnsupported or kDataLoss with one line "file: field: found X, expected Y";
  // kNextToken is read of directories alone, and without tensors where there is no such module.
  static Expected<std::unique_ptr<Checkpoint>> open(const std::string& path,
                                                    LoadFormat format = LoadFormat::kAuto,
                                                    CheckpointPart part = CheckpointPart::kModel);
  virtual ~Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] CheckpointKind kind() const { return kind_; }

  // general.architecture of a GGUF file, model_type of a config.json.
  [[nodiscard]] const std::string& architecture() const { return architecture_; }

  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

  [[nodiscard]] bool is_dummy() const { return is_dummy_; }

  // Of the layers' matrices of a dummy checkpoint, but routers.
  [[nodiscard]] WeightFormat dummy_format() const { return dummy_format_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const { return tensors_; }

  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const;

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  // Of a head that chooses from fewer tokens than its model has: what is added to each of its ids
  // for the model's (tensor d2t). Empty: they are the same.
  [[nodiscard]] std::span<const int64_t> id_offsets() const { return id_offsets_; }

  // Names in the file of tensors that are no part of the model that is read: vision towers, modules
  // that guess further tokens.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }

  // Their headers and the tensors' bytes decide what the model computes.
  [[nodiscard]] virtual std::vector<CheckpointFile> files() const = 0;
  [[nodiscard]] int64_t file_bytes() const;
  // Reads both each time.
  [[nodiscard]] virtual Expected<CheckpointText> text() const = 0;
  // Metadata and tensors as text for people; see describe_gguf().
  [[nodiscard]] virtual std::string describe(bool all_tensors) const = 0;

 protected:
  Checkpoint(std::string path, CheckpointKind kind, std::string architecture)
      : path_(std::move(path)),
        kind_(kind),
        architecture_(std::move(architecture)),
        metadata_(path_) {}

  void add_tensor(CheckpointTensor tensor);
  // Once all are added. kDataLoss: two of one name, which several names in a file may mean.
  Expected<void> index_tensors();

  std::string path_;
  CheckpointKind kind_;
  std::string architecture_;
  Metadata metadata_;
  bool is_dummy_ = false;
  WeightFormat dummy_format_ = WeightFormat::kBF16;
  std::vector<int64_t> id_offsets_;
  std::vector<std::string> left_out_;

 private:
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

Expected<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::string& path);
Expected<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::string& directory,
                                                         LoadFormat format,
                                                         CheckpointPart part);

}  // namespace sluice
