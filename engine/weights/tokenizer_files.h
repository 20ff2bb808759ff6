// SPDX-License-Identifier: Apache-2.0
// The files that recreate a model's tokenizer elsewhere: those of its directory, or files generated
// from the vocabulary of a GGUF file.
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

// `path` names a loaded model. `chat_template` and `end_tokens` go into generated files; beside a
// directory's own files the template is one where they hold none. Reads the disk. kDataLoss,
// kNotFound: the files have disappeared or changed.
Expected<std::vector<NamedFile>> read_tokenizer_files(const std::string& path,
                                                      const std::string& chat_template,
                                                      const std::vector<TokenId>& end_tokens);

}  // namespace sluice
