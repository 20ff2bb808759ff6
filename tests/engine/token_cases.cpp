// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/token_cases.h"

#include <fstream>
#include <sstream>

namespace sluice::testing {
namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

std::vector<TokenCase> read_token_cases(const std::string& path) {
  std::vector<TokenCase> cases;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    TokenCase& next = cases.emplace_back();
    std::string mode;
    std::string hex;
    fields >> next.name >> mode >> hex;
    next.special = mode == "p" ? SpecialText::kParse : SpecialText::kText;
    next.text = from_hex(hex);
    for (TokenId id = 0; fields >> id;) next.ids.push_back(id);
  }
  return cases;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer,
                            std::string_view text,
                            SpecialText special) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, special, ids);
  return ids;
}

}  // namespace sluice::testing
