#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `run` of the archive that deploy/gpu_archive.sh makes: everything that wants a GPU, in order of
# what it decides. Each part leaves a dated file in results/ beside it; a line for each is printed and
# in the summary. Exit code 1: something failed; 77: there is no GPU.
#
#   ./run [--quick] [part ...]     parts: probes kernels engine array memcheck racecheck bench peers
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
# cuBLASLt, where torch has brought it.
if command -v python3 >/dev/null; then
  blas="$(python3 -c 'import glob, os, sysconfig
packages = sysconfig.get_paths()["purelib"]
found = glob.glob(os.path.join(packages, "nvidia", "*", "lib", "libcublasLt.so*"))
print(os.path.dirname(found[0]) if found else "")' 2>/dev/null)"
  if [[ -n "$blas" ]]; then
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$blas"
  fi
fi

seconds=600
if [[ "${1:-}" == --quick ]]; then
  seconds=60
  shift
fi
parts=("$@")
if ((${#parts[@]} == 0)); then parts=(probes kernels engine array memcheck racecheck bench peers); fi

day="$(date -u +%Y-%m-%d)"
mkdir -p results
summary="results/$day-gpu-summary.txt"
{
  echo "commit $(cat commit)"
  date -u +%Y-%m-%dT%H:%M:%SZ
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit \
    --format=csv,noheader 2>&1
} | tee "$summary"

failed=0
skipped=0
part() { # name, command...
  local name="$1" begin=$SECONDS code=0 log="results/$day-gpu-$1.txt"
  shift
  timeout "$seconds" "$@" >"$log" 2>&1 || code=$?
  local word=passed
  case "$code" in
    0) ;;
    77) word="$(grep -m 1 '^skipped' "$log" || head -n 1 "$log")" && skipped=1 ;;
    124) word="stopped after $seconds s" && failed=1 ;;
    *) word="FAILED ($code)" && failed=1 ;;
  esac
  printf '%-10s %4d s  %s\n' "$name" "$((SECONDS - begin))" "$word" | tee -a "$summary"
}

# Under the sanitizer a kernel takes some hundred times as long.
few='CudaNorm.*:CudaRope.*:CudaElementwise.*:CudaMoe.*:CudaSampling.The*:CudaAttention.Blocks*'
few+=':Devices/CudaLinear*.IsNear*:Devices/CudaLinear*.Adds*:Devices/CudaExperts.*:Formats/CudaMatrix.*'
sanitizer() { # tool
  if ! command -v compute-sanitizer >/dev/null; then
    printf '%-10s         skipped: no compute-sanitizer\n' "$1" | tee -a "$summary"
    return
  fi
  part "$1" compute-sanitizer --tool "$1" --error-exitcode 1 \
    bin/gpu_kernels_test "--gtest_filter=$few"
}

for name in "${parts[@]}"; do
  case "$name" in
    probes) part probes bin/gpu_probes ;;
    kernels) part kernels bin/gpu_kernels_test ;;
    engine) part engine bin/gpu_engine_test ;;
    array) part array bin/gpu_determinism_array_test ;;
    memcheck)
      sanitizer memcheck
      # Buffers of their own, so that each one's end is seen.
      if command -v compute-sanitizer >/dev/null; then
        part memcheck-engine compute-sanitizer --tool memcheck --error-exitcode 1 \
          bin/gpu_engine_test --gtest_filter='CudaEngine.*'
      fi
      ;;
    racecheck) sanitizer racecheck ;;
    bench) part bench bin/gpu_kernels ;;
    peers)
      if python3 -c 'import torch' 2>/dev/null; then
        part peers python3 gpu_peers.py --bin bin --tokenizer golden/tokenizer/json/qwen.json
      else
        printf '%-10s         skipped: no torch\n' peers | tee -a "$summary"
      fi
      ;;
    *)
      echo "run: no part $name" >&2
      exit 2
      ;;
  esac
done
if ((failed)); then exit 1; fi
if ((skipped)); then exit 77; fi
