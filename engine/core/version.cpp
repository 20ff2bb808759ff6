// SPDX-License-Identifier: Apache-2.0
#include "engine/core/version.h"

#include <elf.h>
#include <link.h>

#include <cstring>

#include "engine/core/hex.h"

namespace sluice {
namespace {

// Called for the executable first; walks its notes for the build id.
int find_build_id(dl_phdr_info* info, size_t /*size*/, void* result) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* note = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    const char* end = note + segment.p_memsz;
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) header;
      std::memcpy(&header, note, sizeof header);
      const char* name = note + sizeof header;
      const char* description = name + ((header.n_namesz + 3U) & ~3U);
      if (header.n_type == NT_GNU_BUILD_ID) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(description);
        *static_cast<std::string*>(result) = to_hex({bytes, header.n_descsz});
        return 1;
      }
      note = description + ((header.n_descsz + 3U) & ~3U);
    }
  }
  return 1;  // the executable only
}

}  // namespace

std::string_view version() { return SLUICE_VERSION; }

std::string build_id() {
  std::string text;
  dl_iterate_phdr(find_build_id, &text);
  return text;
}

}  // namespace sluice
