// SPDX-License-Identifier: Apache-2.0
// Distance of logits from double arithmetic on the same weights, ours beside llama.cpp's:
//   llama-perplexity -m MODEL.gguf -f TEXT -c 512 --chunks N --save-all-logits FILE
//   accuracy MODEL.gguf FILE
//
// FILE has llama.cpp's tokens, and its log-probabilities of the second half of each chunk in 16
// bits (none below the largest less 16). tests/support/oracle_f64.h and our default path compute
// the same positions. One line each: mean KL divergence in nats, and how often the likeliest token
// is that of double arithmetic.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/weights/gguf.h"
#include "tests/support/model_harness.h"
#include "tests/support/oracle_f64.h"

namespace sluice::bench {
namespace {

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "accuracy: %s\n", message.c_str());
  std::exit(1);
}

// The file of --save-all-logits: head, the tokens of all chunks, then rows.
class SavedLogits {
 public:
  explicit SavedLogits(const std::string& path) : in_(path, std::ios::binary) {
    char magic[8];
    int32_t head[3];
    in_.read(magic, sizeof(magic));
    in_.read(reinterpret_cast<char*>(head), sizeof(head));
    if (!in_ || std::memcmp(magic, "_logits_", 8) != 0 || head[0] < 4 || head[0] > (1 << 20) ||
        head[1] < 2 || head[1] > (1 << 24) || head[2] < 1 || head[2] > (1 << 20)) {
      fail(path + " is no file of llama-perplexity --save-all-logits");
    }
    context_ = head[0];
    vocab_ = head[1];
    tokens_.resize(static_cast<size_t>(context_) * static_cast<size_t>(head[2]));
    in_.read(reinterpret_cast<char*>(tokens_.data()),
             static_cast<std::streamsize>(tokens_.size() * sizeof(TokenId)));
    if (!in_) fail(path + " ends within its tokens");
  }

  [[nodiscard]] int32_t context() const { return context_; }

  [[nodiscard]] int32_t vocab() const { return vocab_; }

  [[nodiscard]] size_t num_chunks() const { return tokens_.size() / static_cast<size_t>(context_); }

  [[nodiscard]] std::vector<TokenId> tokens(size_t chunk) const {
    const auto begin = tokens_.begin() + static_cast<int64_t>(chunk) * context_;
    return {begin, begin + context_};
  }

  // Reads the next row in the file, those of a chunk in order. Returns false if the file is cut
  // off.
  bool read_row(std::vector<float>& log_probs) {
    std::vector<uint16_t> row(static_cast<size_t>(align_up(vocab_, 2)) + 4);
    in_.read(reinterpret_cast<char*>(row.data()),
             static_cast<std::streamsize>(row.size() * sizeof(uint16_t)));
    if (!in_) return false;
    float scale_and_least[2];
    std::memcpy(scale_and_least, row.data(), sizeof(scale_and_least));
    log_probs.resize(static_cast<size_t>(vocab_));
    for (size_t i = 0; i < log_probs.size(); ++i) {
      log_probs[i] = scale_and_least[0] * static_cast<float>(row[i + 4]) + scale_and_least[1];
    }
    return true;
  }

 private:
  std::ifstream in_;
  int32_t context_ = 0;
  int32_t vocab_ = 0;
  std::vector<TokenId> tokens_;
};

struct Distance {
  double kl = 0;
  int64_t same_top = 0;
  int64_t rows = 0;

  void add(const double* exact, const float* logits, int64_t vocab) {
    kl += testing::kl_divergence(exact, logits, vocab);
    same_top += std::max_element(exact, exact + vocab) - exact ==
                std::max_element(logits, logits + vocab) - logits;
    ++rows;
  }

  void print(const char* name) const {
    const auto count = static_cast<double>(rows);
    std::printf("%-10s mean KL %.3e   same most likely token %.2f %%   (%lld positions)\n",
                name,
                kl / count,
                100 * static_cast<double>(same_top) / count,
                static_cast<long long>(rows));
  }
};

void run(const std::string& model, const std::string& saved_path) {
  SavedLogits saved(saved_path);
  const auto file = GgufFile::open(model);
  if (!file) fail(file.error().message);
  const auto bos = (*file)->get_uint_or("tokenizer.ggml.bos_token_id", 0);
  const auto add_bos = (*file)->get_bool_or("tokenizer.ggml.add_bos_token", false);
  if (!bos || !add_bos) fail("the file's special tokens cannot be read");
  const testing::OracleF64 oracle(**file);
  if (oracle.vocab_size() != saved.vocab()) fail("the logits are of another vocabulary");
  auto ours = testing::ModelHarness::create(model, 8, DType::kBF16, saved.context());
  if (!ours) fail(ours.error().message);

  const int32_t first = saved.context() / 2;
  std::vector<int32_t> wanted;
  for (int32_t i = first; i < saved.context() - 1; ++i) wanted.push_back(i);
  const auto vocab = static_cast<size_t>(saved.vocab());
  Distance of_ours;
  Distance of_theirs;
  std::vector<float> theirs;
  for (size_t chunk = 0; chunk < saved.num_chunks(); ++chunk) {
    std::vector<TokenId> tokens = saved.tokens(chunk);
    if (*add_bos) tokens.front() = static_cast<TokenId>(*bos);
    const std::vector<double> exact = oracle.forward(tokens);
    const std::vector<float> logits = (*ours)->forward(tokens, 0, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!saved.read_row(theirs)) fail(saved_path + " ends within chunk " + std::to_string(chunk));
      const double* const row = exact.data() + static_cast<size_t>(wanted[i]) * vocab;
      of_ours.add(row, logits.data() + i * vocab, saved.vocab());
      of_theirs.add(row, theirs.data(), saved.vocab());
    }
  }
  of_ours.print("sluice");
  of_theirs.print("llama.cpp");
  std::printf("ratio of mean KL %.2f\n", of_ours.kl / of_theirs.kl);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: accuracy MODEL.gguf FILE\n");
    return 2;
  }
  sluice::bench::run(argv[1], argv[2]);
  return 0;
}
