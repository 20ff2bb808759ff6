#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test from a fresh clone: packages, Release build, then ctest with the sanitizer and fuzz
# stages (tests/stage.sh). The last lines are ctest's summary. --full: the long tier as well: the
# clang stage, longer fuzzing, simulation and load.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
  "") stages="kubernetes routers asan tsan fuzz" ;;
  --full)
    stages="kubernetes routers asan tsan fuzz clang image packages reproducible mutation"
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
cmake --preset cpu >/dev/null || fail configure "The lines above say why."
ninja -C build || fail build "The compiler's message is above; with little memory: ninja -C build -j1"

# Also bounds what the stages start.
CTEST_PARALLEL_LEVEL="$(nproc)"
export CTEST_PARALLEL_LEVEL
export SLUICE_STAGES="$stages"
exec ctest --test-dir build --output-on-failure
