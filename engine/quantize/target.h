// SPDX-License-Identifier: Apache-2.0
// The possible targets of a tensor: the names for `sluice quantize --to` and recipes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "quant/encode.h"
#include "quant/format.h"

namespace sluice {

// How a checkpoint describes its codes.
enum class Spelling : uint8_t {
  kNone,               // plain floats
  kCompressedTensors,  // quantization_config of compressed-tensors
  kFp8,                // quant_method fp8, blocks of 128 x 128
  kModelopt,           // hf_quant_config.json of ModelOpt
  kMxfp4,              // quant_method mxfp4: the fused experts of gpt-oss
  kGguf,               // types of GGUF
};

enum class TargetKind : uint8_t {
  kKept,    // the bytes of the input
  kCodes,   // codes and companions of `encoding`
  kBlocks,  // rows of `format`: GGUF blocks or floats
};

struct Target {
  TargetKind kind = TargetKind::kKept;
  Spelling spelling = Spelling::kNone;
  Encoding encoding = {};                     // for kCodes
  WeightFormat format = WeightFormat::kBF16;  // for kBlocks
  std::string name = "kept";                  // the scheme's, for people
};

// A named scheme: of codes, of GGUF ("Q4_0", "Q4_K_M", any case) or of floats ("bf16").
struct TargetScheme {
  std::string name;
  Spelling spelling = Spelling::kNone;
  TargetKind kind = TargetKind::kKept;
  CodeScheme code = CodeScheme::kInt8Channel;
  WeightFormat format = WeightFormat::kF32;  // for GGUF: the format of most matrices
  char mix = '\0';                           // GGUF: 'S', 'M' or 'L' of Q4_K_M; else 0
};

// kInvalidArgument: the message lists the schemes.
Expected<TargetScheme> parse_target(std::string_view name);
// Returns all names, concatenated for help and messages.
std::string target_names();

// Returns the target of a matrix [n, k]; kKept with the reason in `name` if the scheme cannot hold
// it.
Target target_of(const TargetScheme& scheme, int64_t k, bool search);

// A matrix's place in its model, by which a GGUF mix chooses a format.
struct MatrixPlace {
  std::string_view name;  // GGUF's: "blk.0.attn_v.weight"
  int64_t k = 0;
  int32_t layer = -1;  // -1: none
  int32_t num_layers = 0;
  bool is_head = false;      // makes the logits
  int32_t query_groups = 1;  // query heads per KV head
  int32_t num_experts = 0;
};

// Returns the choice of llama.cpp's own mixes: more bits for the head, some values and some down
// projections, and another format if k is not a multiple of 256.
Target gguf_target(const TargetScheme& scheme, const MatrixPlace& place);

// Returns general.file_type for this scheme.
uint32_t gguf_file_type(const TargetScheme& scheme);

}  // namespace sluice
