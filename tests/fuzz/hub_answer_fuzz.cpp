// SPDX-License-Identifier: Apache-2.0
// A hub's answers about a repository: none leads outside of the cache's folders.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/http/client/fetch.h"
#include "server/hub/repo_files.h"
#include "tests/fuzz/target.h"

using namespace sluice;

static int hub_answer_input(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto name = hub::parse_model_name(text)) {
    CHECK(hub::is_safe_path(name->repo) &&
          (name->choice.empty() || hub::is_safe_path(name->choice)));
  }
  if (const auto info = hub::parse_repo_info(text)) {
    CHECK(hub::is_commit(info->commit));
    for (const bool with_weights : {false, true}) {
      for (const char* choice : {"", "Q4_K_M", "a.gguf"}) {
        const auto selection = hub::select_files(info->files, {"o/n", choice}, with_weights);
        if (!selection) continue;
        for (const std::string& file : selection->files) CHECK(hub::is_safe_path(file));
      }
    }
  }
  if (const auto shards = hub::shards_of_index(text)) {
    for (const std::string& shard : *shards) CHECK(hub::is_safe_path(shard));
  }
  const std::string location = client::resolve_location("https://hub.example/a", text);
  CHECK(location.empty() || location.find("://") != std::string::npos);
  return 0;
}

const sluice::fuzz::Target hub_answer_target("hub_answer_fuzz", hub_answer_input);
