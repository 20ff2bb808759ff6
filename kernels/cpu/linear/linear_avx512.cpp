// SPDX-License-Identifier: Apache-2.0
// Linear layers and embedding rows compiled for one instruction set; see vec16.h for what may be
// included here.
#define SLUICE_ISA_AVX512

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/linear/linear_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

void linear_int8(const LinearBlock& all) {
  const LinearBlock block = all.unpacks_tiles ? linear_unpacked(all) : all;
  switch (family_of(block.format)) {
    case FormatFamily::kBlocks:
      return linear_int8_blocks(block);
    case FormatFamily::kSuperBlocks:
      return linear_int8_superblocks(block);
    case FormatFamily::kGroups:
      return linear_int8_groups(block);
  }
}

void linear_int16(const LinearBlock& block) {
  switch (family_of(block.format)) {
    case FormatFamily::kBlocks:
      return linear_int16_blocks(block);
    case FormatFamily::kSuperBlocks:
      return linear_int16_superblocks(block);
    case FormatFamily::kGroups:
      return linear_int16_groups(block);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
