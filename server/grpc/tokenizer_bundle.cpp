// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/tokenizer_bundle.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "engine/core/hex.h"
#include "engine/engine.h"
#include "server/grpc/zip_archive.h"
#include "server/keys/digest.h"
#include "server/prompt/chat_template.h"

namespace sluice {

Expected<std::vector<NamedFile>> TokenizerBundleSource::files_of(
    const Engine& engine) const {
  SLUICE_TRY(auto files, engine.tokenizer_files());
  if (template_.empty()) return files;
  std::ostringstream text;
  if (is_template_source(template_)) {
    text << template_;
  } else {
    std::ifstream file(template_, std::ios::binary);
    text << file.rdbuf();
    if (!file) {
      return make_error(ErrorCode::kNotFound,
                        "--chat-template: cannot read '" + template_ + "'.",
                        "chat-template");
    }
  }
  // Readers prefer this file to the template in other files, but for tools and documents.
  constexpr const char* kName = "chat_template.jinja";
  std::erase_if(files, [](const NamedFile& own) {
    return own.name == kName || own.name.starts_with("additional_chat_templates/");
  });
  files.push_back({kName, text.str()});
  return files;
}

Expected<std::shared_ptr<const TokenizerBundle>> TokenizerBundleSource::get(
    const Engine& engine) {
  const std::scoped_lock lock(mutex_);
  const std::string& fingerprint = engine.model().system_fingerprint;
  if (bundle_ != nullptr && fingerprint_ == fingerprint) return bundle_;
  SLUICE_TRY(const auto all, files_of(engine));
  ZipArchive zip;
  for (const NamedFile& file : all) SLUICE_TRY_VOID(zip.add(file.name, file.content));
  auto bundle = std::make_shared<TokenizerBundle>();
  bundle->archive = zip.finish();
  bundle->sha256 = to_hex(digest_of(bundle->archive));
  fingerprint_ = fingerprint;
  bundle_ = std::move(bundle);
  return bundle_;
}

}  // namespace sluice
