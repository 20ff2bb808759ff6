// SPDX-License-Identifier: Apache-2.0
// Throughput of a tokenizer, and its ids for comparison with other implementations:
//   bench_tokenizer VOCABULARY TEXT_FILE   load time, MB/s of one core, number of ids
//   bench_tokenizer VOCABULARY             reads lines "mode hex" (t: text, p: parse), prints ids,
//                                          or (d: decode) the text of the text's ids, in hex
//   bench_tokenizer VOCABULARY TEXT_FILE BYTES
//                                          the text as documents of about BYTES: for each line
//                                          read, encodes all and prints seconds; "ids": prints ids
// VOCABULARY is a vocabulary file, a tokenizer.json or a model directory with one.
// tests/golden/tokenizer/check_models.py writes the vocabulary files and drives the first two;
// bench/tokenizer_peers.py drives the third.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/engine/vocabulary_file.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string read_file(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

// Cuts the text into documents that end after a newline.
std::vector<std::string_view> documents_of(std::string_view text, size_t bytes) {
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const size_t newline = text.find('\n', std::min(bytes, text.size()) - 1);
    const size_t size = std::min(newline, text.size() - 1) + 1;
    documents.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return documents;
}

void serve_rounds(const Tokenizer& tokenizer, const std::string& path, size_t bytes) {
  const std::string text = read_file(path);
  const std::vector<std::string_view> documents = documents_of(text, bytes);
  std::vector<TokenId> ids;
  std::string line;
  while (std::getline(std::cin, line)) {
    size_t count = 0;
    const auto start = Clock::now();
    for (const std::string_view document : documents) {
      ids.clear();
      tokenizer.encode(document, SpecialText::kText, ids);
      count += ids.size();
      if (line != "ids") continue;
      for (const TokenId id : ids) std::printf("%d ", id);
    }
    if (line == "ids") {
      std::printf("\n");
    } else {
      std::printf("%.6f %zu\n", seconds_since(start), count);
    }
    std::fflush(stdout);
  }
}

void measure(const Tokenizer& tokenizer, const std::string& path) {
  const std::string text = read_file(path);
  std::vector<TokenId> ids;
  double best = 1e30;
  for (int run = 0; run < 3; ++run) {
    ids.clear();
    const auto start = Clock::now();
    tokenizer.encode(text, SpecialText::kText, ids);
    best = std::min(best, seconds_since(start));
  }
  std::printf("%.3f MB, %zu ids, %.4f s, %.2f MB/s\n",
              static_cast<double>(text.size()) * 1e-6,
              ids.size(),
              best,
              static_cast<double>(text.size()) * 1e-6 / best);
}

void print_ids(const Tokenizer& tokenizer) {
  std::string mode;
  std::string hex;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream fields(line);
    hex.clear();
    fields >> mode >> hex;
    std::string text;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    std::vector<TokenId> ids;
    tokenizer.encode(text, mode == "p" ? SpecialText::kParse : SpecialText::kText, ids);
    if (mode == "d") {
      for (const char c : decode_tokens(tokenizer, ids)) std::printf("%02x", c & 0xFF);
    } else {
      for (const TokenId id : ids) std::printf("%d ", id);
    }
    std::printf("\n");
  }
}

Expected<std::unique_ptr<Tokenizer>> load(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    SLUICE_TRY(HfText text, load_hf_text(path));
    return std::move(text.tokenizer);
  }
  if (path.ends_with(".json")) {
    HfTokenizerFiles files;
    files.tokenizer_json = read_file(path);
    return create_hf_tokenizer(files);
  }
  SLUICE_TRY(Vocabulary vocabulary, testing::read_vocabulary_file(path));
  return create_tokenizer(std::move(vocabulary));
}

int run(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: bench_tokenizer VOCABULARY [TEXT_FILE [BYTES]]\n");
    return 2;
  }
  const auto start = Clock::now();
  const auto tokenizer = load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  if (argc == 4) {
    serve_rounds(**tokenizer, argv[2], std::max(std::strtoull(argv[3], nullptr, 10), 1ULL));
  } else if (argc == 3) {
    std::printf("created in %.1f ms\n", seconds_since(start) * 1e3);
    measure(**tokenizer, argv[2]);
  } else {
    print_ids(**tokenizer);
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
