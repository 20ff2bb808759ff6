// SPDX-License-Identifier: Apache-2.0
// Which hub is asked, for what, and where its files are kept.
#pragma once

#include <string>

namespace sluice::hub {

struct HubOptions {
  std::string url;        // "https://huggingface.co", without a slash at its end
  std::string token;      // empty: none
  std::string revision;   // a branch, a tag or a commit
  std::string cache_dir;  // holds models--org--name
  bool offline = false;   // the cache only
  bool pools = false;     // vectors or scores are asked for, also of a model that generates
};

}  // namespace sluice::hub
