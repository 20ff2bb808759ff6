#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One stage of tests/run.sh: asan, tsan, fuzz and clang in build folders of their own, image: the
# container, reproducible: the same binary from two folders, mutation: whether the simulator sees
# bugs, routers: two servers, and pairs that split requests, behind routers of others, kubernetes:
# manifests by the cluster's own schemas, and by Helm.
# Run by ctest; exit code 77 skips it, which is what happens unless SLUICE_STAGES names it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage="$1"
if [[ " ${SLUICE_STAGES:-} " != *" $stage "* ]]; then
  echo "SLUICE_STAGES does not name $stage"
  exit 77
fi

# The long tier's builds are optimized, so that fuzzing and long tests get further, and instrument the
# files of single instruction sets too.
configure() { # preset
  local thorough=()
  if [[ -n "${SLUICE_FULL:-}" && "$1" != clang ]]; then
    thorough=(-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DSLUICE_SANITIZE_ISA=ON)
  fi
  cmake --preset "$1" "${thorough[@]}" >/dev/null
}

# Sanitizers slow the determinism matrix and the simulator tenfold; fewer requests and steps cover the
# same paths, and tiny models those of real ones.
export SLUICE_DETERMINISM_REQUESTS=8 SLUICE_SIM_STEPS=100000
unset SLUICE_SMOLLM2 SLUICE_GEMMA3

run_tests() { # build folder, more arguments of ctest
  local folder="$1"
  shift
  ctest --test-dir "$folder" --output-on-failure "$@"
}

case "$stage" in
  asan)
    configure asan
    ulimit -s 65536  # frames of code that is not optimized are large
    # What takes minutes here and looks for unequal bits, not for memory, is the long tier's, and so
    # are kernels, whose files of single instruction sets are not instrumented here. Templates', tool
    # calls' and tokenizers' parsers have their fuzz targets in this folder.
    if [[ -z "${SLUICE_FULL:-}" ]]; then
      ninja -C build-sanitize test_{core,quant,kvcache,scheduler,engine,grammar,server,cli,load}
      run_tests build-sanitize -L unit -LE '^(cuda|kernels)$' -E \
        '^(determinism|determinism_array|scheme_array|quantize|speculation|model_speculation|'\
'chat_template|server_parse|tokenizer|formats|translation|handoff_model)_test$'
    else
      ninja -C build-sanitize
      run_tests build-sanitize -L unit
    fi
    ;;
  tsan)
    # What has threads, and only what it needs is compiled.
    configure tsan
    threaded=(core_test thread_pool_test row_steps_test kv_disk_tier_test kv_nccl_test kv_transport_test weights_test engine_test overlap_test
      step_executor_test speculation_test prefix_store_test packed_weights_test nccl_test parallel_test tensor_parallel_test
      determinism_test kv_event_publisher_test sampler_test grammar_engine_test
      server_http_test server_router_test kv_control_stream_test offline_run_test load_run_test load_tls_test)
    ninja -C build-tsan "${threaded[@]}"
    export TSAN_OPTIONS="suppressions=$PWD/tests/tsan_suppressions.txt"
    # What takes long here and looks for unequal bits, or has one thread, is the long tier's.
    if [[ -z "${SLUICE_FULL:-}" ]]; then
      GTEST_FILTER="-Determinism.TokensAndLogprobs*:Determinism.ScarceMemory*:Determinism.*Int8*"
      GTEST_FILTER+=":Speculation.IsNotToBeSeen*:Speculation.Methods*:Speculation.*Equal*"
      GTEST_FILTER+=":Speculation.AcceptanceDoesNot*:PackChecked.*:Gguf.EveryByteChanged*"
      GTEST_FILTER+=":PrefixOnDisk.PreemptedRequests*:*/KvTransportTest.FramesOfAnySize*"
      GTEST_FILTER+=":PoisonedModel.*:TensorParallel.Every*:RowSteps.TakeAnyNumber*"
      export GTEST_FILTER
    fi
    run_tests build-tsan -R "^($(IFS='|' && echo "${threaded[*]}"))\$"
    ;;
  clang)
    configure clang
    ninja -C build-clang
    run_tests build-clang -L unit
    ;;
  routers)
    if ! SLUICE_ROUTER_PYTHON="$(tests/python_venv.sh tests/router_requirements.txt)"; then
      echo "skipped: the packages of tests/router_requirements.txt cannot be installed (no network?)"
      exit 77
    fi
    export SLUICE_ROUTER_PYTHON
    for test in router router_pair; do
      "$SLUICE_ROUTER_PYTHON" "tests/server/${test}_test.py" build/sluice \
        tests/golden/tiny/tiny-llama.gguf
    done
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
    python3 tests/scheduler/mutations.py build
    python3 tests/engine/handoff_mutations.py build
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
    # The folder of the other sanitizer stage: every library is compiled for both at once.
    configure asan
    ninja -C build-sanitize fuzz_targets
    found="$(mktemp -d)"
    trap 'rm -rf "$found"' EXIT
    export found
    # Its corpus and log are its own; what a target finds is left in the build folder.
    fuzz_one() { # target
      local corpora=("$found/$1")
      mkdir "${corpora[0]}"
      if [[ -d "tests/fuzz/corpus/$1" ]]; then corpora+=("tests/fuzz/corpus/$1"); fi
      # Commits are judged on the same inputs; the long tier looks for new ones (seed 0: random).
      if "build-sanitize/tests/fuzz/$1" -seed="${SLUICE_FUZZ_SEED:-1}" -max_total_time="${SLUICE_FUZZ_SECONDS:-8}" -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix=build-sanitize/ "${corpora[@]}" \
        >"$found/$1.log" 2>&1; then
        echo "$1: $(grep -o 'stat::number_of_executed_units: *[0-9]*' "$found/$1.log" || true)"
      else
        cat "$found/$1.log"
        echo "$1: FAILED"
        return 1
      fi
    }
    export -f fuzz_one
    xargs -P "$(nproc)" -I '{}' bash -c 'fuzz_one {}' <build-sanitize/fuzz_targets.txt
    ;;
  *)
    echo "stage.sh: unknown stage $stage" >&2
    exit 2
    ;;
esac
