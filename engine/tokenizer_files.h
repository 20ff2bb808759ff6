// SPDX-License-Identifier: Apache-2.0
// The files that make a model's tokenizer elsewhere: those of its directory, or what is made of the
// vocabulary of a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

struct NamedFile {
  std::string name;  // without a folder
  std::string content;
};

// `path`: of a model that is loaded. `chat_template` and `end_tokens` go into what is made. Reads
// the disk. kDataLoss, kNotFound: it is not there any more, or not what it was.
Expected<std::vector<NamedFile>> read_tokenizer_files(const std::string& path,
                                                      const std::string& chat_template,
                                                      const std::vector<TokenId>& end_tokens);

}  // namespace sluice
