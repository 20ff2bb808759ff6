#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# symbols_test.sh ARCHIVE: checks what the kernels' objects reference and define.
#  - No libm function whose last bit depends on the machine: exp, log, sin, cos, pow and their kin.
#    fma and sqrt are exactly specified and allowed.
#  - An instruction-set file defines nothing weak outside its own namespace: the linker keeps one copy
#    of a weak function for the whole program, and it could be the one that this machine cannot run.
set -euo pipefail
archive=$1
status=0

libm='(exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|sinh|cosh|tanh|asin|acos'
libm+='|atan|atan2|cbrt|hypot|erf|erfc|lgamma|tgamma)[fl]?'
found=$(nm --undefined-only --print-file-name "$archive" | grep -E " U _*$libm(_finite)?(@.*)?$" || true)
if [[ -n $found ]]; then
  printf 'libm functions that define bits:\n%s\n' "$found"
  status=1
fi

# Every object of one instruction set is of one of these families.
members=$(ar t "$archive")
families=('simd' 'linear(_[a-z0-9]+)*' 'w8a8' 'e4m3' 'recurrent')
isa_files=''
for family in "${families[@]}"; do
  isa_file="${family}_(scalar|avx2|avx512|amx|bf16)\\.cpp\\.o"
  isa_files+="${isa_files:+|}$isa_file"
  if ! grep -qxE "$isa_file" <<< "$members"; then
    echo "no object of the family $family in $archive"
    status=1
  fi
done
unknown=$(grep -E '_(scalar|avx2|avx512|amx|bf16)\.' <<< "$members" | grep -vxE "$isa_files" || true)
if [[ -n $unknown ]]; then
  printf 'objects of one instruction set but of no known family:\n%s\n' "$unknown"
  status=1
fi

weak=$(nm --demangle --print-file-name "$archive" | grep -E "[:/]($isa_files):" |
  grep -E ' [WVuw] ' | grep -vE 'sluice::kernels::cpu::(scalar|avx2|avx512)::' || true)
if [[ -n $weak ]]; then
  printf 'weak symbols in instruction-set files:\n%s\n' "$weak"
  status=1
fi

# The check itself must see something, or it would pass on an empty archive.
defined=$(nm --defined-only "$archive" 2>&1)
for isa in Scalar Avx2 Avx512 Amx; do
  if [[ $defined != *k${isa}Table* ]]; then
    echo "no table of $isa in $archive"
    status=1
  fi
done
exit $status
