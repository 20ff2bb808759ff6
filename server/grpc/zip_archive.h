// SPDX-License-Identifier: Apache-2.0
// Writes ZIP archives (APPNOTE 6.3, without ZIP64): deflated files, each within 4 GiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

class ZipArchive {
 public:
  // `name`: ASCII. kResourceExhausted: zlib is out of memory, or the archive exceeds ZIP's limits.
  Expected<void> add(std::string_view name, std::string_view content);

  // Returns the whole archive; nothing can be added after it.
  [[nodiscard]] std::string finish();

 private:
  std::string files_;
  std::string directory_;
  uint16_t num_files_ = 0;
};

}  // namespace sluice
