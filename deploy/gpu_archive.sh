#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the GPU's tests, probes and benchmarks for a machine that has a GPU, its driver and a glibc
# and libstdc++ as new as this one's, and nothing of ours: programs, the libraries that they need,
# what tests read, and `run`, which runs all of it and leaves results/. Builds them first.
#
#   bash deploy/gpu_archive.sh [build folder] [archive]    (build, build/gpu.tar.gz)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="${1:-build}"
archive="${2:-$build/gpu.tar.gz}" # xz may be missing where it is unpacked
programs=(
  tests/kernels/cuda/gpu_kernels_test
  tests/engine/cuda/gpu_engine_test
  tests/engine/cuda/gpu_handoff_test
  tests/engine/cuda/gpu_ipc_test
  tests/engine/cuda/gpu_determinism_array_test
  bench/gpu_probes
  bench/gpu_kernels
  bench/gpu_links
  sluice
)
# What the tests read of tests/golden.
goldens=(
  cuda/{bf16,bf16_experts,fp8,fp8_block,gguf,int4,int8,mxfp4,nvfp4}.txt
  eagle/{first,layers,mapped,mtp-mimo}
  embeddings/qwen2-both-ways
  models/{apertus,bloom,deepseek-v3,deepseek-v32,gemma4-all,glm-moe-dsa,kimi-linear,mimo-v2,phimoe}
  models/engine-{channels,conv,delta,delta-mtp,halves,heads,latents,mamba,two-mixers}.gguf
  tiny/tiny-llama.gguf
  tokenizer/json/qwen.json
)
if ! grep -q '^CMAKE_CUDA_COMPILER:' "$build/CMakeCache.txt" 2>/dev/null; then
  echo "gpu_archive.sh: $build has no nvcc: cmake --preset cuda, then give build-cuda" >&2
  exit 1
fi
cmake -B "$build" -DSLUICE_GPU_TESTS=ON -DSLUICE_BENCH=ON >/dev/null
ninja -C "$build" "${programs[@]}"

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
root="$folder/sluice-gpu"
mkdir -p "$root/bin" "$root/lib"
for program in "${programs[@]}"; do
  strip -o "$root/bin/${program##*/}" "$build/$program"
  # By itself: LD_LIBRARY_PATH may be what the driver's library is found by.
  if [[ "$(readelf -d "$root/bin/${program##*/}")" != *"rpath: [\$ORIGIN/../lib"* ]]; then
    echo "gpu_archive.sh: $program does not look for its libraries in ../lib" >&2
    exit 1
  fi
done
# All but those of the compiler and glibc, which have to be of the machine that the driver is on.
ldd "$root"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  while read -r library; do
    case "${library##*/}" in
      libstdc++.so.* | libgcc_s.so.* | libc.so.* | libm.so.*) ;;
      libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) ;;
      *) strip -o "$root/lib/${library##*/}" "$(readlink -f "$library")" ;;
    esac
  done
for golden in "${goldens[@]}"; do
  mkdir -p "$root/golden/${golden%/*}"
  cp -r "tests/golden/$golden" "$root/golden/${golden%/*}/"
done
cp deploy/gpu_run.sh "$root/run"
cp bench/gpu_figures.py bench/gpu_peers.py bench/gpu_torch.py "$root/"
git describe --always --dirty >"$root/commit" 2>/dev/null || echo unknown >"$root/commit"

tar -C "$folder" --owner=0 --group=0 --sort=name -czf "$archive" sluice-gpu
bytes="$(stat -c %s "$archive")"
echo "$archive: $bytes bytes"
most=$((50 * 1000 * 1000))
if ((bytes > most)); then
  echo "gpu_archive.sh: more than $most bytes" >&2
  exit 1
fi
