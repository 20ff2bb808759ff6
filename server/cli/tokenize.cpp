// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "engine/inspect.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/cli/command.h"

namespace sluice {
namespace {

void print_json(const std::vector<TokenId>& ids) {
  std::fputc('[', stdout);
  for (size_t i = 0; i < ids.size(); ++i) std::printf(i == 0 ? "%d" : ", %d", ids[i]);
  std::fputs("]\n", stdout);
}

// One token a line: its id and its bytes, those that are not printable ASCII as \xNN.
void print_lines(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    std::printf("%d\t", id);
    for (const char c : tokenizer.token_bytes(id)) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte > 0x7e || c == '\\') {
        std::printf("\\x%02x", byte);
      } else {
        std::fputc(c, stdout);
      }
    }
    std::fputc('\n', stdout);
  }
}

}  // namespace

Expected<void> run_tokenize(const Invocation& invocation) {
  const FileOptions& options = invocation.files;
  SLUICE_TRY(const std::string text, read_text_file(options.file));
  SLUICE_TRY(const auto tokenizer, load_tokenizer(invocation.config.model));
  std::vector<TokenId> ids;
  const SpecialText special = options.special ? SpecialText::kParse : SpecialText::kText;
  SLUICE_TRY_VOID(tokenizer->encode(text, special, ids));
  if (options.json) {
    print_json(ids);
  } else {
    print_lines(*tokenizer, ids);
  }
  return {};
}

}  // namespace sluice
