#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `run` of the archive that deploy/gpu_archive.sh makes: everything that wants a GPU, in order of
# what it decides. Results are in $OUT, or results/ beside this file: a summary, which grows from
# call to call, the logs of all parts in one archive, the log of the part that runs, and figures.
# No part takes the others with it: each has a limit, leaves time for those after it, and tests run
# suite by suite, again without what crashed or hung.
# Exit code 1: something failed or got no time; 77: something was skipped, as where there is no GPU.
#
#   ./run [--quick] [--seconds N] [--suite-seconds N] [part or group ...]    (bits)
#       bits:       probes kernels engine handoff ipc array bench
#       figures:    steps profile serve links kv-transfer peers
#       sanitizers: memcheck memcheck-engine racecheck
#       --seconds: for all of it (570); --quick: at most 60 a part;
#       --suite-seconds: for a process of tests (60 to 140)
set -uo pipefail
ulimit -c 0 # cores of programs that map a GPU's memory are large

out="$(realpath -m "${OUT:-$(dirname "${BASH_SOURCE[0]}")/results}")"
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
total=570
most=100000
suite_seconds=""
while [[ "${1:-}" == --* ]]; do
  case "$1" in
    --quick) most=60 ;;
    --seconds) total="$2" && shift ;;
    --suite-seconds) suite_seconds="$2" && shift ;;
    *) echo "run: no option $1" >&2 && exit 2 ;;
  esac
  shift
done
# A group fits into one call of the time that is usual where a GPU is lent.
parts=()
for name in "${@:-bits}"; do
  case "$name" in
    bits) parts+=(probes kernels engine handoff ipc array bench) ;;
    figures) parts+=(steps profile serve links kv-transfer peers) ;;
    sanitizers) parts+=(memcheck memcheck-engine racecheck) ;;
    *) parts+=("$name") ;;
  esac
done

day="$(date -u +%Y-%m-%d)"
mkdir -p "$out" logs || exit 1
summary="$out/$day-gpu-summary.txt"
running="$out/$day-gpu-running.txt" # of one name: few files come back from some machines
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

note() { printf '%s\n' "$*" | cut -c 1-240 | tee -a "$summary"; }
notes() { # before each line of stdin
  while IFS= read -r line; do note "$1$line"; done
}
left() { echo $((total - SECONDS)); }

# Where containers mount the driver, should nothing else lead there.
if [[ -d /usr/local/nvidia ]]; then
  export PATH="$PATH:/usr/local/nvidia/bin"
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64"
fi

# cuBLASLt and NCCL, which programs open by name: torch's, or the toolkit's. Not for torch itself, which
# finds its own.
libraries() {
  local folder
  {
    if command -v python3 >/dev/null; then
      timeout 20 python3 - <<'PYTHON' 2>/dev/null
import glob, importlib.util, os, site, sys, sysconfig
found = importlib.util.find_spec("torch")
places = found.submodule_search_locations if found else None
torch = [os.path.dirname(path) for path in places or []]
for folder in [*torch, *sysconfig.get_paths().values(), *site.getsitepackages(), *sys.path]:
    for name in ("libcublasLt.so*", "libnccl.so*"):
        for path in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name))):
            print(os.path.dirname(path))
PYTHON
    fi
    for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib; do
      if compgen -G "$folder/libcublasLt.so*" >/dev/null; then realpath "$folder"; fi
    done
  } | awk '!seen[$0]++' | paste -sd :
}
libraries="$(libraries)"
with_libraries=(env "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries")

failed=0
skipped=0
lines=() # of each part, again at the end
seconds=0

# Sets `seconds` to what the part may take; false where there is no time for it.
begin() { # name, its limit
  local later
  seconds="$(left)"
  for later in "${parts[@]:at+1}"; do
    case "$later" in
      engine | memcheck-engine) seconds=$((seconds - 90)) ;;
      array | bench | steps) seconds=$((seconds - 60)) ;;
      profile | serve | links) seconds=$((seconds - 15)) ;;
      peers) seconds=$((seconds - 120)) ;;
      racecheck) seconds=$((seconds - 180)) ;;
      *) seconds=$((seconds - 30)) ;;
    esac
  done
  if ((seconds > $2)); then seconds=$2; fi
  if ((seconds > most)); then seconds=$most; fi
  part_begin=$SECONDS
  part_end=$((SECONDS + seconds))
  : >"$running"
  if ((seconds < 3)); then
    failed=1
    finish "$1" "not run: no time left"
    return 1
  fi
}

finish() { # name, word
  local log="logs/$day-gpu-$1.txt" line size
  printf -v line '%-16s %4d s  %s' "$1" "$((SECONDS - part_begin))" "$2"
  lines+=("$line")
  note "$line"
  size="$(stat -c %s "$running")"
  if ((size > 4000000)); then
    { head -c 2000000 "$running" && echo && echo ... && tail -c 2000000 "$running"; } >"$log"
  elif ((size > 0)); then
    cp "$running" "$log"
  fi
  # Made elsewhere first: half of an archive is none.
  tar -czf "$scratch/logs.tar.gz" logs && mv "$scratch/logs.tar.gz" "$out/$day-gpu-logs.tar.gz"
}

part() { # name, its limit, what to copy into the summary, command...
  local name="$1" copied="$3" code=0 word=passed
  begin "$1" "$2" || return 0
  shift 3
  timeout -k 10 "$seconds" "$@" >>"$running" 2>&1 || code=$?
  case "$code" in
    0) ;;
    77) word="$(grep -m 1 '^skipped' "$running" || head -n 1 "$running")" && skipped=1 ;;
    124 | 137) word="stopped after $((SECONDS - part_begin)) s" && failed=1 ;;
    *) word="FAILED ($code)" && failed=1 ;;
  esac
  finish "$name" "$word"
  grep -E "$copied" "$running" | head -n 80 | notes "    "
  if ((code != 0 && code != 77)); then tail -n 20 "$running" | notes "    | "; fi
}

# Names of tests, a line each.
list_tests() { # program, filter
  timeout -k 5 30 "$1" --gtest_list_tests "--gtest_filter=$2" >"$scratch/list" 2>&1 || return
  awk '/^[A-Za-z0-9_\/]+\.( |$)/ { suite = $1; next } /^  [A-Za-z0-9_]/ { print suite $1 }' \
    "$scratch/list"
}

# What a process said of its tests: "ok NAME", "skipped NAME", "failed NAME", and "running NAME" of
# the one that it ended in.
verdicts() { # log
  awk '
    /^\[ RUN      \]/ { running = $4 }
    /^\[       OK \]|^\[  SKIPPED \]|^\[  FAILED  \]/ {
      name = $4
      sub(/,$/, "", name)
      if (name == running && running != "") {
        print ($2 == "OK" ? "ok" : $2 == "SKIPPED" ? "skipped" : "failed"), name
        running = ""
      }
    }
    END { if (running != "") print "running", running }' "$1"
}

# What is worth reading of a process: a sanitizer's first lines, the end of the test's own output.
excerpt() { # log, test
  {
    grep -m 15 '^=========' "$1"
    awk -v test="$2" '
      $1 == "[" && $2 == "RUN" { on = ($4 == test) }
      on { print }
      /^\[  FAILED  \]/ { on = 0 }' "$1" | tail -n 20
  } | notes "    | "
}

# Counts of the part, and what the summary says of it.
passed=0
num_skipped=0
failures=()
not_run=()

failure() { # log, test, why
  failures+=("$2")
  note "    FAILED $2: $3"
  if ((${#failures[@]} <= 12)); then excerpt "$1" "$2"; fi
}

# One suite in a process, and what is left of it in another until nothing is: an illegal address
# fails every test after it, and a kernel that waits for ever has no end. A process settles its
# tests up to the first that failed, and later ones that passed.
run_suite() { # program, suite, tests...; `cap`: seconds of a process
  local program="$1" suite="$2" one="$scratch/one.txt"
  shift 2
  local remaining=("$@")
  while ((${#remaining[@]} > 0)); do
    local limit=$((part_end - SECONDS)) code=0 first="" bad="" word test why
    if ((limit > cap)); then limit=$cap; fi
    if ((limit < 1)); then
      not_run+=("${remaining[@]}")
      return
    fi
    { # of a signal the shell has its say, too
      timeout -k 5 "$limit" "${wrapper[@]}" "$program" \
        "--gtest_filter=$(IFS=: && echo "${remaining[*]}")" >"$one" 2>&1 || code=$?
    } 2>/dev/null
    head -c 1000000 "$one" >>"$running"
    why="ended the process ($code)"
    if ((code == 124 || code == 137)); then
      why="had no end after $limit s"
      if ((limit < cap)); then why+=", all that was left"; fi
    fi
    local -A settled=()
    while read -r word test; do
      first="${first:-$test}"
      case "$word" in
        ok) settled[$test]=1 && passed=$((passed + 1)) ;;
        skipped) settled[$test]=1 && num_skipped=$((num_skipped + 1)) ;;
        failed)
          if [[ -z "$bad" ]]; then
            bad="$test"
            settled[$test]=1
            failure "$one" "$test" "its checks"
          fi
          ;;
        running)
          # Tests before it may have taken its time, or broken what it needs: again, and first.
          if [[ "$test" == "$first" ]]; then
            settled[$test]=1
            failure "$one" "$test" "$why"
          fi
          bad="${bad:-$test}"
          ;;
      esac
    done < <(verdicts "$one")
    if ((code == 0)); then return; fi
    if ((${#settled[@]} == 0)); then
      failure "$one" "$suite" "no test ended; it $why"
      tail -n 5 "$one" | notes "    | "
      not_run+=("${remaining[@]}")
      return
    fi
    if [[ -z "$bad" ]]; then
      failure "$one" "$suite" "its tests passed, but it $why"
      return
    fi
    local next=()
    for test in "${remaining[@]}"; do
      if [[ -z "${settled[$test]:-}" ]]; then next+=("$test"); fi
    done
    remaining=("${next[@]}")
  done
}

wrapper=()
tests() { # name, its limit, seconds of a process, program, filter
  local name="$1" cap="${suite_seconds:-$3}" program="$4" test suite word
  begin "$1" "$2" || return 0
  passed=0
  num_skipped=0
  failures=()
  not_run=()
  local all=() suites=()
  mapfile -t all < <(list_tests "$program" "$5")
  if ((${#all[@]} == 0)); then
    cat "$scratch/list" >>"$running"
    if word="$(grep -m 1 '^skipped' "$running")"; then
      skipped=1
    else
      failed=1
      word="FAILED: no list of tests: $(tail -n 1 "$running")"
    fi
    finish "$name" "$word"
    return
  fi
  mapfile -t suites < <(printf '%s\n' "${all[@]%.*}" | awk '!seen[$0]++')
  for suite in "${suites[@]}"; do
    local of_suite=()
    for test in "${all[@]}"; do
      if [[ "${test%.*}" == "$suite" ]]; then of_suite+=("$test"); fi
    done
    run_suite "$program" "$suite" "${of_suite[@]}"
  done
  word=passed
  if ((${#failures[@]} > 0 || ${#not_run[@]} > 0)); then
    word=FAILED
    failed=1
  fi
  word+=": $passed passed, ${#failures[@]} failed, $num_skipped skipped, ${#not_run[@]} not run"
  finish "$name" "$word"
  printf '%s\n' "${failures[@]}" | grep . | notes "    failed: "
  printf '%s\n' "${not_run[@]}" | grep . | head -n 40 | notes "    not run: "
}

# Memory that the tests' heap and kernels share: managed, or where that fails the host's, pinned.
heap_is_chosen=0
choose_heap() {
  local heap code
  if ((heap_is_chosen)) || [[ -n "${SLUICE_GPU_HEAP:-}" ]]; then return; fi
  heap_is_chosen=1
  for heap in managed host; do
    code=0
    SLUICE_GPU_HEAP=$heap timeout -k 5 30 bin/gpu_kernels_test '--gtest_filter=CudaElementwise.*' \
      >"$scratch/heap.txt" 2>&1 || code=$?
    if ((code == 0 || code == 77)); then break; fi
    note "tests on a heap of ${heap} memory fail ($code): $(tail -n 1 "$scratch/heap.txt")"
  done
  # Where both fail it is not the memory.
  if ((code != 0)); then heap=managed; fi
  export SLUICE_GPU_HEAP=$heap
}

# Under the sanitizer a kernel takes some hundred times as long; sm_80's are not this GPU's.
few='CudaNorm.*:CudaRope.*:CudaElementwise.*:CudaMoe.*:CudaSampling.The*:CudaAttention.Blocks*'
few+=':CudaAttention.PromptsHave*:Devices/CudaLinear*.IsNear*:Devices/CudaLinear*.Adds*'
few+=':Devices/CudaLinearHalf.Few*:Devices/CudaLinearTogether.*:Devices/CudaParts.*'
few+=':Devices/CudaExperts.*:Formats/CudaExpertFormats.*:Formats/CudaMatrix.*'
few+=':Scales/CudaLinearFp8.Few*:Scales/CudaLinearFp8.Tiles*:Scales/CudaExpertsFp8.*:CudaFp8.*:Scales/CudaFp8Rows.*'
few+=':CudaKvBlocks.*:Formats/CudaBlocksHalf.*:CudaCopies.*:CudaJoinParts.*:CudaExpertParts.*'
few+=':CudaLatent*.*:CudaRecurrent.*:CudaAttention.WideHeads*:Rows/CudaGated.One*'
few+='-*/sm_80:*/sm_120'

find_sanitizer() {
  command -v compute-sanitizer && return
  local path
  for path in /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    if [[ -x "$path" ]]; then echo "$path" && return; fi
  done
  if [[ -d /opt/nvidia ]]; then
    timeout 20 find /opt/nvidia -name compute-sanitizer -type f -perm -u+x -print -quit
  fi
}

# Kernels that racecheck is not asked about. Their consumer warps hand a tile over to their storing warps
# and get it back by mbarriers alone, a lane arriving for its warp behind __syncwarp. Why each access is
# ordered is said in kernels/cuda/gemm_wide.h; tests with planted bugs see it when it is not. On an H200
# racecheck reported the accesses all the same. Notes of later releases name such reports that were
# false: 2025.4 of mbarriers, 2026.1 of what waits indirectly and of Hopper's warpgroups.
not_for_racecheck=wide_wgmma # a part of their names

sanitizer() { # part, its limit, tool, program, filter
  local path
  path="$(find_sanitizer)"
  if [[ -z "$path" ]]; then
    begin "$1" "$2" || return 0
    skipped=1
    finish "$1" "skipped: no compute-sanitizer"
    return
  fi
  wrapper=("$path" --tool "$3" --error-exitcode 1)
  if [[ "$3" == racecheck ]]; then
    wrapper+=(--kernel-name-exclude "kns=$not_for_racecheck")
    note "    racecheck leaves out $not_for_racecheck*, whose mbarriers it does not follow"
  fi
  tests "$1" "$2" 120 "$4" "$5"
  wrapper=()
}

{
  echo
  echo "commit $(cat commit)"
  date -u +%Y-%m-%dT%H:%M:%SZ
  timeout -k 5 20 nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit 2>&1 ||
    echo "nvidia-smi is missing or fails"
  echo "cuBLASLt in ${libraries:-no known folder}"
} | tee -a "$summary"

for at in "${!parts[@]}"; do
  name="${parts[at]}"
  case "$name" in
    probes) part probes 60 '^P[0-9]' "${with_libraries[@]}" bin/gpu_probes ;;
    kernels) choose_heap && tests kernels 240 60 bin/gpu_kernels_test '*' ;;
    engine) tests engine 150 90 bin/gpu_engine_test '*' ;;
    handoff) tests handoff 120 60 bin/gpu_handoff_test '*' ;; # over NCCL with two GPUs
    ipc) tests ipc 60 30 bin/gpu_ipc_test '*' ;;
    array) tests array 150 140 bin/gpu_determinism_array_test '*' ;;
    bench)
      for only in linear attention sampling; do
        part "bench-$only" 100 '^read |^cuBLASLt' "${with_libraries[@]}" \
          bin/gpu_kernels --only "$only" "logs/$day-gpu-$only.json"
      done
      ;;
    steps | profile | serve | links)
      # Into one file of JSON, from which gpu_report.py makes a page.
      part "$name" 300 '^[a-z ]+: (done|FAILED)' python3 -u gpu_figures.py --bin bin \
        --tokenizer golden/tokenizer/json/qwen.json --out "$out" --day "$day" --tree "$(cat commit)" \
        --libraries "$libraries" --kernels "logs/$day-gpu" "$name"
      ;;
    # What staged KV has between two workers of this machine; links is what is between its GPUs.
    kv-transfer) part kv-transfer 60 '.' bin/sluice bench kv-transfer ;;
    peers)
      # It ends by itself, so that no figure is cut off.
      begin peers 560 || continue
      part peers 560 '^[A-Za-z].*: ([0-9.e+-]+( |$)|FAILED)' python3 -u gpu_peers.py --bin bin \
        --tokenizer golden/tokenizer/json/qwen.json --rounds 3 --out "$out" \
        --seconds $((seconds > 40 ? seconds - 20 : seconds)) --libraries "$libraries"
      ;;
    memcheck) choose_heap && sanitizer memcheck 260 memcheck bin/gpu_kernels_test "$few" ;;
    # Buffers of their own, so that each one's end is seen.
    memcheck-engine) sanitizer memcheck-engine 150 memcheck bin/gpu_engine_test 'CudaEngine.*' ;;
    racecheck) choose_heap && sanitizer racecheck 300 racecheck bin/gpu_kernels_test "$few" ;;
    *)
      echo "run: no part $name" >&2
      exit 2
      ;;
  esac
done
echo
printf '%s\n' "${lines[@]}"
if ((failed)); then exit 1; fi
if ((skipped)); then exit 77; fi
