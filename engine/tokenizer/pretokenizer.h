// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces inside which byte pairs may merge. One table row per pre-tokenizer name
// of GGUF (tokenizer.ggml.pre): the regular expressions of the model's tokenizer.json, applied one
// after the other, each to the pieces the one before left; what no expression matches stays a
// piece.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class Pretokenizer {
 public:
  // kUnsupported names `pre` and the names there are.
  static Expected<std::unique_ptr<Pretokenizer>> create(std::string_view pre);
  ~Pretokenizer();

  // Working memory of split, reused from text to text by one thread.
  struct Scratch {
    std::vector<size_t> ends;  // of the pieces, ascending; the last one is text.size()
    std::vector<size_t> coarse_ends;
  };

  // Leaves the pieces of `text`, which is valid UTF-8, in scratch.ends. Time is linear.
  void split(std::string_view text, Scratch& scratch) const;

  // A piece that is a token as a whole is that token, whatever the merges say.
  [[nodiscard]] bool whole_words_first() const;

 private:
  Pretokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
