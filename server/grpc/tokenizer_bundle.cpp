// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/tokenizer_bundle.h"

#include <string>
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
  const ModelInfo& model = engine.model();
  const bool is_built_in = template_.empty() && model.chat_template.empty();
  std::string source;
  if (is_built_in) source = built_in_template(model.architecture);
  if (!template_.empty()) {
    SLUICE_TRY(source, read_template_source(template_));
  }
  if (source.empty()) return files;
  // Readers prefer this file to the template in other files, but for tools and documents.
  constexpr const char* kName = "chat_template.jinja";
  std::erase_if(files, [](const NamedFile& own) {
    return own.name == kName || own.name.starts_with("additional_chat_templates/");
  });
  files.push_back({kName, std::move(source)});
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
