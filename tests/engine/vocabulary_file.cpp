// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/vocabulary_file.h"

#include <fstream>
#include <sstream>

namespace sluice::testing {
namespace {

std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return out;
}

}  // namespace

Expected<Vocabulary> read_vocabulary_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::kNotFound, "cannot open " + path);
  Vocabulary vocabulary;
  std::string line;
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (key == "model") {
      vocabulary.model = value;
    } else if (key == "pre") {
      vocabulary.pre = value;
    } else if (key == "bos") {
      vocabulary.bos = std::stoi(value);
    } else if (key == "eos") {
      vocabulary.eos = std::stoi(value);
    } else if (key == "unknown") {
      vocabulary.unknown = std::stoi(value);
    } else if (key == "add_space_prefix") {
      vocabulary.add_space_prefix = value == "1";
    } else if (key == "remove_extra_whitespaces") {
      vocabulary.remove_extra_whitespaces = value == "1";
    } else if (key == "precompiled_charsmap") {
      for (size_t i = 0; i + 1 < value.size(); i += 2) {
        vocabulary.precompiled_charsmap +=
            static_cast<char>(std::stoi(value.substr(i, 2), nullptr, 16));
      }
    } else if (key == "tokens") {
      for (int left = std::stoi(value); left > 0 && std::getline(file, line); --left) {
        const size_t end = line.find(' ');
        std::istringstream fields(line.substr(end + 1));
        int type = 0;
        fields >> type;
        vocabulary.tokens.push_back(unescape(line.substr(0, end)));
        vocabulary.token_types.push_back(static_cast<TokenType>(type));
        if (float score = 0; fields >> score) vocabulary.scores.push_back(score);
      }
    } else if (key == "merges") {
      for (int left = std::stoi(value); left > 0 && std::getline(file, line); --left) {
        vocabulary.merges.push_back(line);
      }
    } else {
      return make_error(ErrorCode::kDataLoss, path + ": unknown key \"" + key + "\"");
    }
  }
  return vocabulary;
}

}  // namespace sluice::testing
