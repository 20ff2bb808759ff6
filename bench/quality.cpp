// SPDX-License-Identifier: Apache-2.0
// Distance of models in other number formats from the model they were made of, run by this engine
// with activations in 32 bits:
//   quality TOKENS CONTEXT BASE MODEL...
//
// TOKENS is a JSON file of token ids, printed by `sluice tokenize --json`; CONTEXT of them are one
// sequence. One line of JSON per model, BASE included: mean KL divergence of its distribution from
// BASE's in nats and the standard error of that mean, the share of positions whose likeliest token
// is BASE's, perplexity of the text, and positions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/model_harness.h"

namespace sluice::bench {
namespace {

constexpr int32_t kActivationBits = 32;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "quality: %s\n", message.c_str());
  std::exit(1);
}

std::vector<TokenId> read_tokens(const std::string& path) {
  std::ifstream in(path);
  std::vector<TokenId> tokens;
  char mark = 0;
  if (!(in >> mark) || mark != '[') fail(path + " is no list of token ids");
  for (TokenId id = 0; in >> id;) {
    tokens.push_back(id);
    if (!(in >> mark) || mark != ',') break;
  }
  if (mark != ']' || tokens.empty()) fail(path + " ends within its tokens");
  return tokens;
}

// Returns the logarithm of the sum of a row's exponentials.
double log_sum(const float* row, int64_t count) {
  const auto largest = static_cast<double>(*std::max_element(row, row + count));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(row[i]) - largest);
  return largest + std::log(sum);
}

class Tally {
 public:
  void add(const float* base, const float* row, int64_t vocab, TokenId next) {
    const double base_sum = log_sum(base, vocab);
    const double sum = log_sum(row, vocab);
    double kl = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const double log_p = static_cast<double>(base[i]) - base_sum;
      kl += std::exp(log_p) * (log_p - (static_cast<double>(row[i]) - sum));
    }
    kl_ += kl;
    square_ += kl * kl;
    loss_ += sum - static_cast<double>(row[next]);
    const int64_t top_of_base = std::max_element(base, base + vocab) - base;
    same_ += std::max_element(row, row + vocab) - row == top_of_base;
    ++rows_;
  }

  void print(const std::string& model) const {
    const auto n = static_cast<double>(rows_);
    const double mean = kl_ / n;
    const double error = std::sqrt(std::max(0.0, square_ / n - mean * mean) / n);
    std::printf(
        "{\"model\": \"%s\", \"kl\": %.6e, \"kl_error\": %.1e, \"same_top\": %.5f, "
        "\"perplexity\": %.4f, \"positions\": %lld}\n",
        model.c_str(),
        mean,
        error,
        static_cast<double>(same_) / n,
        std::exp(loss_ / n),
        static_cast<long long>(rows_));
  }

 private:
  double kl_ = 0;
  double square_ = 0;
  double loss_ = 0;
  int64_t same_ = 0;
  int64_t rows_ = 0;
};

void run(const std::vector<TokenId>& tokens,
         int32_t context,
         const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<testing::ModelHarness>> models;
  for (const std::string& path : paths) {
    auto model = testing::ModelHarness::create(path, kActivationBits, DType::kF32, context);
    if (!model) fail(path + ": " + model.error().message);
    if (!models.empty() && (*model)->vocab_size() != models.front()->vocab_size()) {
      fail(path + " has another vocabulary than " + paths.front());
    }
    models.push_back(std::move(*model));
  }
  const int64_t vocab = models.front()->vocab_size();
  std::vector<Tally> tallies(models.size());
  for (size_t begin = 0; begin + static_cast<size_t>(context) <= tokens.size();
       begin += static_cast<size_t>(context)) {
    const auto first = tokens.begin() + static_cast<int64_t>(begin);
    const std::vector<TokenId> chunk(first, first + context);
    const std::vector<float> base = models.front()->forward(chunk);
    for (size_t m = 0; m < models.size(); ++m) {
      const std::vector<float> logits = m == 0 ? base : models[m]->forward(chunk);
      for (int64_t i = 0; i + 1 < context; ++i) {
        tallies[m].add(base.data() + i * vocab,
                       logits.data() + i * vocab,
                       vocab,
                       chunk[static_cast<size_t>(i) + 1]);
      }
    }
  }
  for (size_t m = 0; m < models.size(); ++m) tallies[m].print(paths[m]);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const int32_t context = argc < 4 ? 0 : std::atoi(argv[2]);
  if (context < 2) {
    std::fprintf(stderr, "usage: quality TOKENS CONTEXT BASE MODEL...\n");
    return 2;
  }
  const std::vector<std::string> paths(argv + 3, argv + argc);
  sluice::bench::run(sluice::bench::read_tokens(argv[1]), context, paths);
  return 0;
}
