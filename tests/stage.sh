#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One stage of tests/run.sh: asan, tsan, fuzz and clang in build folders of their own, image: the
# container, architectures: the CUDA kernels for each kind of GPU, xgrammar: grammars by XGrammar as
# released, reproducible: the same binary from two folders, mutation: whether the simulator sees
# bugs, budget: how much is compiled at a commit, routers: two servers, and pairs that split requests,
# behind routers of others, clients: agents, frameworks and SDKs of others, kubernetes: manifests by
# the cluster's own schemas, and by Helm, packages: .deb and wheel, installed and asked.
#   stage.sh STAGE [Release build folder]
#   stage.sh compile asan|tsan [Release build folder]    only builds what that stage runs
# Run by ctest; exit code 77 skips it, which is what happens unless SLUICE_STAGES names it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage="$1"
release="${2:-build}"
if [[ "$stage" == compile ]]; then release="${3:-build}"; fi
if [[ "$stage" != compile && " ${SLUICE_STAGES:-} " != *" $stage "* ]]; then
  echo "SLUICE_STAGES does not name $stage"
  exit 77
fi

# At a commit and with --full.
asan=(commit-asan build-commit-asan)
tsan=(commit-tsan build-commit-tsan)
if [[ -n "${SLUICE_FULL:-}" ]]; then
  asan=(asan build-sanitize)
  tsan=(tsan build-tsan)
fi

# What the stages of a build run. The long tier's are optimized, so that fuzzing and long tests get
# further, and instrument the files of single instruction sets too; at a commit these are those of
# the Release build, where there is one.
compile() { # preset, folder, more targets
  local thorough=(-DSLUICE_ISA_OBJECTS="$(realpath -m "$release")/kernels/CMakeFiles/sluice_kernels.dir")
  if [[ -n "${SLUICE_FULL:-}" && "$1" != clang ]]; then
    thorough=(-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DSLUICE_SANITIZE_ISA=ON)
  fi
  mkdir -p "$2"
  (
    flock 9  # run.sh may be compiling it
    cmake --preset "$1" "${thorough[@]}" >/dev/null
    ninja -C "$2" -j "$(nproc)" test_programs "${@:3}"
  ) 9>"$2/stage.lock"
}

# Sanitizers slow the determinism matrix and the simulator tenfold; fewer requests and steps cover the
# same paths, and tiny models those of real ones.
export SLUICE_DETERMINISM_REQUESTS=8 SLUICE_SIM_STEPS=100000
unset SLUICE_SMOLLM2 SLUICE_GEMMA3

case "$stage" in
  compile)
    case "$2" in
      asan) compile "${asan[@]}" fuzz ;;
      tsan) compile "${tsan[@]}" ;;
    esac
    ;;
  asan)
    compile "${asan[@]}" fuzz
    ulimit -s 65536  # frames of code that is not optimized are large
    ctest --test-dir "${asan[1]}" --output-on-failure
    ;;
  tsan)
    compile "${tsan[@]}"
    export TSAN_OPTIONS="suppressions=$PWD/tests/tsan_suppressions.txt"
    # What takes long here and looks for unequal bits, or has one thread, is the long tier's.
    if [[ -z "${SLUICE_FULL:-}" ]]; then
      GTEST_FILTER="-PackChecked.*:Gguf.EveryByteChanged*"
      GTEST_FILTER+=":PrefixOnDisk.PreemptedRequests*:*/KvTransportTest.FramesOfAnySize*"
      GTEST_FILTER+=":PoisonedModel.*:RowSteps.TakeAnyNumber*"
      export GTEST_FILTER
    fi
    ctest --test-dir "${tsan[1]}" --output-on-failure
    ;;
  clang)
    compile clang build-clang
    ctest --test-dir build-clang --output-on-failure -L unit
    ;;
  architectures)
    if [[ ! -x "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" ]]; then
      echo "skipped: no nvcc"
      exit 77
    fi
    for architecture in 80 100a 120a; do  # all builds with nvcc have 90a
      folder="build-cuda-$architecture"
      cmake --preset cuda -B "$folder" -DSLUICE_TESTS=OFF \
        "-DSLUICE_CUDA_ARCHITECTURES=$architecture" >/dev/null
      ninja -C "$folder" sluice_cuda
    done
    ;;
  xgrammar)
    cmake --preset cpu -B build-as-released -DSLUICE_XGRAMMAR_PATCH=OFF >/dev/null
    ninja -C build-as-released grammar_test
    build-as-released/tests/engine/grammar/grammar_test
    ;;
  budget)
    python3 tests/compile_budget.py
    ;;
  routers)
    if ! SLUICE_ROUTER_PYTHON="$(tests/python_venv.sh tests/router_requirements.txt)"; then
      echo "skipped: the packages of tests/router_requirements.txt cannot be installed (no network?)"
      exit 77
    fi
    export SLUICE_ROUTER_PYTHON
    for test in router router_pair; do
      "$SLUICE_ROUTER_PYTHON" "tests/server/${test}_test.py" "$release/sluice" \
        tests/golden/tiny/tiny-llama.gguf
    done
    ;;
  clients)
    python3 tests/clients/clients_test.py "$release/sluice"
    ;;
  kubernetes)
    if ! SLUICE_TEST_PYTHON="$(tests/python_venv.sh tests/kubernetes_requirements.txt)"; then
      echo "skipped: the packages of tests/kubernetes_requirements.txt cannot be installed (no network?)"
      exit 77
    fi
    "$SLUICE_TEST_PYTHON" tests/deploy/chart_test.py
    "$SLUICE_TEST_PYTHON" tests/deploy/manifests_test.py \
      Overlays.test_the_clusters_schemas_take_them Overlays.test_the_schemas_of_others_take_theirs \
      Overlays.test_the_schemas_of_others_find_mistakes
    ;;
  mutation)
    python3 tests/scheduler/mutations.py "$release"
    python3 tests/engine/handoff_mutations.py "$release"
    ;;
  packages)
    python3 tests/deploy/packages_test.py "$release" tests/golden/tiny/tiny-llama.gguf
    ;;
  image)
    python3 deploy/image_test.py
    ;;
  reproducible)
    # Two folders of different names and depths, without ccache, which would hand the first one's
    # objects out again.
    folders="$(mktemp -d)"
    trap 'rm -rf "$folders"' EXIT
    for copy in "$folders/a" "$folders/another/folder"; do
      mkdir -p "$copy"
      git archive HEAD | tar -x -C "$copy"
      (cd "$copy" && cmake --preset cpu -DCCACHE_PROGRAM=OFF >/dev/null && ninja -C build sluice)
    done
    cmp "$folders/a/build/sluice" "$folders/another/folder/build/sluice"
    ;;
  fuzz)
    # In the folder of the other sanitizer stage: every library is compiled for both at once.
    compile "${asan[@]}" fuzz
    programs="$PWD/${asan[1]}/tests/fuzz"
    export programs UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
    found="$(mktemp -d)"
    trap 'rm -rf "$found"' EXIT
    export found
    # Its corpus and log are its own; what a target finds is left in the programs' folder.
    fuzz_one() { # target, program
      local corpora=("$found/$1")
      mkdir "${corpora[0]}"
      if [[ -d "tests/fuzz/corpus/$1" ]]; then corpora+=("tests/fuzz/corpus/$1"); fi
      # Commits are judged on the same inputs; the long tier looks for new ones (seed 0: random).
      if "$2" "$1" -seed="${SLUICE_FUZZ_SEED:-1}" -max_total_time="${SLUICE_FUZZ_SECONDS:-5}" -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$programs/" "${corpora[@]}" \
        >"$found/$1.log" 2>&1; then
        echo "$1: $(grep -o 'stat::number_of_executed_units: *[0-9]*' "$found/$1.log" || true)"
      else
        cat "$found/$1.log"
        echo "$1: FAILED"
        return 1
      fi
    }
    export -f fuzz_one
    for program in "$programs"/{text,file,network}_fuzz; do
      "$program" | sed "s|\$| $program|"
    done | xargs -P "$(nproc)" -L 1 bash -c 'fuzz_one "$0" "$1"'
    ;;
  *)
    echo "stage.sh: unknown stage $stage" >&2
    exit 2
    ;;
esac
