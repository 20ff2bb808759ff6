#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every kind of test from a fresh clone: packages, Release build, then ctest with the sanitizer and
# fuzz stages (tests/stage.sh). The last lines are ctest's summary; a table of what took how long is
# in front of it. --full: the long tier: every test in every build, the clang stage, longer fuzzing,
# simulation and load.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
started="$(date +%s)"
# At a commit each test runs in one build, and files are compiled together (CMakePresets.json).
preset=commit
folder=build-commit
targets=(test_programs)
stages="kubernetes routers asan tsan fuzz"
folders=(Release="$folder" ASan=build-commit-asan TSan=build-commit-tsan)
case "${1:-}" in
  "") unset SLUICE_FULL ;;
  --full)
    preset=cpu
    folder=build
    targets=(all)
    stages+=" clients clang architectures xgrammar image packages reproducible mutation budget"
    folders=(Release="$folder" ASan=build-sanitize TSan=build-tsan clang=build-clang)
    export SLUICE_FULL=1 SLUICE_SIM_STEPS="${SLUICE_SIM_STEPS:-100000000}"
    export SLUICE_FUZZ_SECONDS="${SLUICE_FUZZ_SECONDS:-300}" SLUICE_FUZZ_SEED=0
    ;;
  *)
    echo "usage: bash tests/run.sh [--full]" >&2
    exit 2
    ;;
esac

fail() { # step, remedy
  echo "run.sh: step '$1' failed. $2" >&2
  exit 1
}

# The pinned Python packages.
prepare_python() {
  if SLUICE_TEST_PYTHON="$(tests/python_venv.sh tests/requirements.txt)"; then
    export SLUICE_TEST_PYTHON
    return
  fi
  unset SLUICE_TEST_PYTHON
  echo "The Python packages of tests/requirements.txt cannot be installed (no network?):"
  echo "the test with the openai client is skipped."
}

bash deploy/install_packages.sh --tests || fail packages "The lines above say what to do."
prepare_python
if SLUICE_SMOLLM2="$(bash deploy/fetch_model.sh)"; then
  export SLUICE_SMOLLM2
else
  unset SLUICE_SMOLLM2
  echo "No real model: the accuracy test on it is skipped."
fi
cmake --preset "$preset" -DSLUICE_GPU_TESTS="${SLUICE_FULL:+ON}" >/dev/null ||
  fail configure "The lines above say why."
ninja -C "$folder" "${targets[@]}" ||
  fail build "The compiler's message is above; with little memory: ninja -C $folder -j1 ${targets[*]}"

# Also bounds what the stages start.
CTEST_PARALLEL_LEVEL="$(nproc)"
export CTEST_PARALLEL_LEVEL
export SLUICE_STAGES="$stages"
# Tests of processes wait more than they compute: meanwhile the stages' programs are compiled. A
# stage waits for that, and says itself what is wrong with a build.
{ nice bash tests/stage.sh compile asan "$folder"; nice bash tests/stage.sh compile tsan "$folder"; } \
  >"$folder/stages.log" 2>&1 </dev/null &
compiling=$!
trap 'kill "$compiling" 2>/dev/null || true' EXIT
ctest --test-dir "$folder" --output-on-failure | python3 tests/report.py "$started" "${folders[@]}"
