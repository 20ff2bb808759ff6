// SPDX-License-Identifier: Apache-2.0
// The cost of following a grammar: random answers under schemas, one thread.
//   grammar VOCABULARY SCHEMAS [--ungated] [--fills N] [--width N] [--record FILE]
// VOCABULARY is a directory with a tokenizer.json; SCHEMAS has a JSON object {name: schema} a line.
// Each answer takes random tokens of its masks; it ends only where nothing else may come. A line a
// schema: milliseconds to compile, KiB, and microseconds per mask (median, 99th percentile,
// maximum) and per accepted token (median, 99th percentile). --ungated: the schemas as the grammar
// library reads them. --record: the vocabulary, the schemas and the tokens, which
// bench/grammar_peers.py gives to the library's Python package.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/loop/grammar_vocabulary.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr size_t kMostTokens = 400;  // tokens of an answer

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double quantile(std::vector<double>& values, double at) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(at * static_cast<double>(values.size() - 1))];
}

struct Costs {
  std::vector<double> fills;
  std::vector<double> accepts;
};

// Returns the first allowed token from a random place on that does not end the answer.
TokenId choose(const std::vector<uint32_t>& row,
               const std::vector<TokenId>& ends,
               std::mt19937& random) {
  const size_t first = random() % row.size();
  const uint32_t below = (uint32_t{1} << (random() % 32)) - 1;
  for (size_t i = 0; i <= row.size(); ++i) {
    const size_t word = (first + i) % row.size();
    for (uint32_t bits = i == 0 ? row[word] & ~below : row[word]; bits != 0; bits &= bits - 1) {
      const TokenId token = static_cast<TokenId>(32 * word) + std::countr_zero(bits);
      if (!std::ranges::binary_search(ends, token)) return token;
    }
  }
  return -1;
}

// Walks through one answer and returns its tokens.
std::vector<TokenId> walk(const Grammar& grammar,
                          const std::vector<TokenId>& ends,
                          std::vector<uint32_t>& row,
                          std::mt19937& random,
                          Costs& costs) {
  std::vector<TokenId> answer;
  const auto matcher = grammar.match();
  while (answer.size() < kMostTokens) {
    Clock::time_point start = Clock::now();
    const Allowed allowed = matcher->fill(row);
    costs.fills.push_back(us_since(start));
    if (allowed == Allowed::kOnlyEnd || allowed == Allowed::kNothing) break;
    const TokenId token = choose(row, ends, random);
    start = Clock::now();
    if (!matcher->accept(token)) {
      std::fprintf(stderr, "grammar: a token of the mask is refused\n");
      std::exit(1);
    }
    costs.accepts.push_back(us_since(start));
    answer.push_back(token);
  }
  return answer;
}

struct Options {
  bool is_gated = true;
  size_t num_fills = 4000;
  int32_t width = 0;
  std::string record;
};

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    out += kDigits[static_cast<unsigned char>(byte) >> 4];
    out += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return out;
}

void print_costs(const std::string& name, double compile, int64_t bytes, Costs& costs) {
  std::printf("%-28s %9.1f %8.0f %6zu %8.1f %8.1f %9.1f %8.1f %8.1f\n",
              name.c_str(),
              compile / 1e3,
              static_cast<double>(bytes) / 1024,
              costs.fills.size(),
              quantile(costs.fills, 0.5),
              quantile(costs.fills, 0.99),
              quantile(costs.fills, 1),
              quantile(costs.accepts, 0.5),
              quantile(costs.accepts, 0.99));
  std::fflush(stdout);
}

int run(const std::string& directory, const std::string& schemas, const Options& options) {
  auto text = load_hf_text(directory);
  if (!text) {
    std::fprintf(stderr, "grammar: %s\n", text.error().message.c_str());
    return 1;
  }
  const Tokenizer& tokenizer = *text->tokenizer;
  const GrammarVocabulary vocabulary =
      grammar_vocabulary(tokenizer, std::max(options.width, tokenizer.vocab_size()));
  const auto backend = create_grammar_backend(vocabulary, {}).value();
  std::ofstream record(options.record);
  Json names = Json::array();
  for (const std::string& token : vocabulary.tokens) names.push_back(hex(token));
  record << Json{{"tokens", names}, {"ends", vocabulary.ends}, {"width", vocabulary.width}} << '\n';
  std::ifstream file(schemas);
  std::printf("%-28s %9s %8s %6s %8s %8s %9s %8s %8s\n",
              "schema",
              "compile",
              "KiB",
              "masks",
              "p50 us",
              "p99 us",
              "most us",
              "accept",
              "p99 us");
  std::string line;
  std::vector<uint32_t> row(token_mask_words(vocabulary.width));
  while (std::getline(file, line)) {
    const Json entry = Json::parse(line);
    const std::string name = entry.begin().key();
    GrammarSpec spec;
    spec.kind = GrammarKind::kJsonSchema;
    spec.text = entry.begin().value().dump();
    Clock::time_point start = Clock::now();
    if (options.is_gated) {
      auto gated = gate_schema(spec.text, /*is_best_effort=*/false, {});
      if (!gated) {
        std::printf("%-28s %s\n", name.c_str(), gated.error().message.c_str());
        continue;
      }
      spec.text = std::move(*gated);
    }
    const auto grammar = backend->compile(spec);
    if (!grammar) {
      std::printf("%-28s %s\n", name.c_str(), grammar.error().message.c_str());
      continue;
    }
    const double compile = us_since(start);
    Costs costs;
    std::mt19937 random(1);
    Json answers = Json::array();
    start = Clock::now();
    constexpr double kLongest = 3e6;
    while (costs.fills.size() < options.num_fills && us_since(start) < kLongest) {
      answers.push_back(walk(**grammar, vocabulary.ends, row, random, costs));
    }
    record << Json{{"name", name}, {"schema", spec.text}, {"answers", answers}} << '\n';
    print_costs(name, compile, (*grammar)->bytes(), costs);
  }
  return 0;
}

int main_of(const std::vector<std::string>& words) {
  Options options;
  std::vector<std::string> places;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--ungated") {
      options.is_gated = false;
    } else if (words[i] == "--fills" && has_value) {
      options.num_fills = std::stoul(words[++i]);
    } else if (words[i] == "--width" && has_value) {
      options.width = std::stoi(words[++i]);
    } else if (words[i] == "--record" && has_value) {
      options.record = words[++i];
    } else {
      places.push_back(words[i]);
    }
  }
  if (places.size() != 2) {
    std::fprintf(stderr,
                 "usage: grammar VOCABULARY SCHEMAS [--ungated] [--fills N] [--width N] "
                 "[--record FILE]\n");
    return 2;
  }
  return run(places[0], places[1], options);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::main_of({argv + 1, argv + argc}); }
