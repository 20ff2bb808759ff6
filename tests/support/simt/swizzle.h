// SPDX-License-Identifier: Apache-2.0
// How the copy engine and wgmma lay out rows of a tile in shared memory.
#pragma once

#include <cstdint>

#include "tests/support/simt/ptx_simt.h"

namespace sluice::simt {

using gpu::Swizzle;

// Returns where the 16-byte piece at `address` of a tile really is.
inline int64_t swizzled(int64_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32:
      return address ^ (address >> 3 & 0x10);
    case Swizzle::k64:
      return address ^ (address >> 3 & 0x30);
    case Swizzle::k128:
      return address ^ (address >> 3 & 0x70);
  }
  return address;
}

inline int64_t row_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32:
      return 32;
    case Swizzle::k64:
      return 64;
    case Swizzle::k128:
      return 128;
  }
  return 0;
}

}  // namespace sluice::simt
