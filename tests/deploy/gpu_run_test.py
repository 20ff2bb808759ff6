#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`run` of the GPU's archive and gpu_peers.py with programs that only behave like the real ones:
what crashes, hangs or is missing costs nobody else's results, and few files come back."""
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent

# GoogleTest's command line over the tests of the file beside it, each with what it does.
GTEST = r"""#!/usr/bin/env bash
list=0
filter='*'
for argument in "$@"; do
  case "$argument" in
    --gtest_list_tests) list=1 ;;
    --gtest_filter=*) filter="${argument#*=}" ;;
  esac
done
echo "on a GPU of paper"
if [[ -n "$NO_GPU" ]]; then echo "skipped: no GPU" && exit 77; fi
if [[ -n "$NO_MANAGED" && "$SLUICE_GPU_HEAP" != host ]]; then
  echo "cudaMallocManaged: no" && exit 1
fi
matches() { # name, patterns
  local pattern
  local IFS=:
  set -f
  for pattern in $2; do
    # shellcheck disable=SC2053
    if [[ "$1" == $pattern ]]; then return 0; fi
  done
  return 1
}
suite='' sticky=0 code=0
while read -r name what; do
  matches "$name" "${filter%%-*}" || continue
  if [[ "$filter" == *-* ]] && matches "$name" "${filter#*-}"; then continue; fi
  if ((list)); then
    if [[ "${name%%.*}" != "$suite" ]]; then suite="${name%%.*}" && echo "$suite."; fi
    echo "  ${name#*.}  # GetParam() = 90"
    continue
  fi
  echo "[ RUN      ] $name"
  if ((sticky)); then what=fail; fi
  case "$what" in
    pass) echo "[       OK ] $name (1 ms)" ;;
    skip) echo "[  SKIPPED ] $name (0 ms)" ;;
    crash) echo "about to crash" && kill -SEGV $$ ;;
    hang) exec sleep 60 ;;
    slow) sleep 0.8 && echo "[       OK ] $name (800 ms)" ;;
    sticky) sticky=1 && what=fail ;;
  esac
  if [[ "$what" == fail ]]; then
    echo "the checks of $name"
    echo "[  FAILED  ] $name, where GetParam() = 90 (1 ms)"
    code=1
  fi
done <"$0.tests"
exit "$code"
"""
SANITIZER = r"""#!/usr/bin/env bash
echo "========= COMPUTE-SANITIZER $*"
while [[ "$1" == --* ]]; do shift 2; done
"$@" || exit
"""
# gpu_kernels: its lines, and its figures only where it is to end well.
KERNELS = r"""#!/usr/bin/env bash
if [[ "$1" == --only ]]; then shift 2; fi
echo "a GPU of paper"
echo "read 4000 GB/s, copy (read and written) 4200 GB/s"
for type in BF16 INT8; do
  for layer in qkv 'attention out' 'gate and up' down head; do
    for rows in 1 8 64 2048; do
      printf '%-5s %-14s %5d %10.1f %5.1f%% %8.1f %5.1f%% %10.1f %9.2f\n' \
        "$type" "$layer" "$rows" 11 50 100 10 "${CUBLAS_US:-10}" 1.1
    done
  done
done
if [[ -n "$KERNELS_FAIL" ]]; then echo "an illegal address" >&2 && exit 1; fi
printf '\ndecode over BF16 KV, 32 heads, 8 of KV, of 128\n'
printf '%5d %8d %10.1f %5.1f%%\n' 8 4096 30 90
printf '\nprefill of one prompt\n'
printf '%8d %10.1f %8.1f %5.1f%%\n' 512 20 100 10
if [[ -n "$1" ]]; then
  echo '{"read_bytes_per_second": 4e12, "linear": [],
    "attention": {"decode": [], "prefill": []}}' >"$1"
fi
"""
SLUICE = r"""#!/usr/bin/env bash
if [[ -n "$SLUICE_HANGS" ]]; then exec sleep 60; fi
while (($#)); do
  if [[ "$1" == --json ]]; then
    echo '{"prefill": [{"tokens_per_second": 9000}], "decode": [{"tokens_per_second": 200,
      "device_idle_us_per_step": 12}]}' >"$2"
  fi
  shift
done
"""


class Archive(unittest.TestCase):
    """Laid out as deploy/gpu_archive.sh does."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.root = pathlib.Path(self.temporary.name) / "sluice-gpu"
        self.out = pathlib.Path(self.temporary.name) / "out"
        tokenizers = self.root / "golden/tokenizer/json"
        tokenizers.mkdir(parents=True)
        (tokenizers / "qwen.json").write_text("{}")
        (self.root / "commit").write_text("abc\n")
        shutil.copy(REPOSITORY / "deploy/gpu_run.sh", self.root / "run")
        for name in ("gpu_figures.py", "gpu_peers.py", "gpu_torch.py"):
            shutil.copy(REPOSITORY / "bench" / name, self.root)
        self.program("bin/sluice", SLUICE)
        self.program("bin/gpu_kernels", KERNELS)
        self.program("bin/gpu_probes", "#!/bin/sh\necho 'P1  rows: 10 compared, 0 differ'\n")
        self.program("tools/compute-sanitizer", SANITIZER)
        self.program("tools/nvidia-smi", "#!/bin/sh\necho a GPU of paper\n")
        for name in ("gpu_kernels_test", "gpu_engine_test", "gpu_handoff_test", "gpu_ipc_test",
                     "gpu_determinism_array_test"):
            self.gtests(name, "CudaElementwise.Adds pass", "CudaEngine.HasTheBits pass")
        # Whatever torch is here is not asked for.
        (self.root / "torch.py").write_text("raise ImportError('not in this test')\n")

    def program(self, path, text):
        file = self.root / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def gtests(self, name, *tests):
        self.program(f"bin/{name}", GTEST)
        (self.root / f"bin/{name}.tests").write_text("\n".join(tests) + "\n")

    def run_it(self, *arguments, **environment):
        path = f"{self.root / 'tools'}:{os.environ['PATH']}"
        done = subprocess.run(
            [self.root / "run", "--suite-seconds", "2", *arguments], capture_output=True, text=True,
            env=dict(os.environ, OUT=str(self.out), PATH=path, PYTHONPATH=str(self.root),
                     **environment), timeout=60, check=False)
        self.assertEqual(done.stderr, "")
        return done

    def summary(self):
        return next(self.out.glob("*-gpu-summary.txt")).read_text()

    def log(self, part, kind="txt"):
        with tarfile.open(next(self.out.glob("*-gpu-logs.tar.gz"))) as logs:
            name = next(name for name in logs.getnames() if name.endswith(f"-gpu-{part}.{kind}"))
            return logs.extractfile(name).read().decode()


class Run(Archive):
    def test_all_parts_pass_and_few_files_come_back(self):
        # The real one writes 16 GB.
        (self.root / "gpu_peers.py").write_text("""import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for name in ("figures.jsonl", "kernels.txt", "stderr.txt"):
    (out / name).write_text(name)
print("decode / read rate: 0.8 (asked: >= 0.75, met)")
print("first token: FAILED, not run")
""")
        (self.root / "gpu_figures.py").write_text("print('a part of paper: done')\n")
        for groups in ((), ("figures",), ("sanitizers",)):  # bits without a name
            done = self.run_it(*groups)
            self.assertEqual(done.returncode, 0, done.stdout)
        for part in ("probes", "kernels", "engine", "handoff", "ipc", "array", "bench-linear", "bench-attention",
                     "bench-sampling", "steps", "profile", "serve", "links", "kv-transfer",
                     "peers", "memcheck", "memcheck-engine", "racecheck"):
            self.assertRegex(self.summary(), rf"(?m)^{part} +\d+ s  passed")
        for line in ("P1  rows: 10 compared, 0 differ", "read 4000 GB/s", "first token: FAILED",
                     "decode / read rate: 0.8"):
            self.assertIn("    " + line, self.summary())
        files = [path for path in self.out.rglob("*") if path.is_file()]
        self.assertLessEqual(len(files), 7, files)
        self.assertTrue(all(path.parent == self.out for path in files))
        self.assertIn("[       OK ] CudaElementwise.Adds", self.log("kernels"))
        self.assertIn("linear", json.loads(self.log("attention", "json")))

    def test_a_second_call_adds_to_the_summary(self):
        self.assertEqual(self.run_it("probes").returncode, 0)
        self.assertEqual(self.run_it("array").returncode, 0)
        self.assertRegex(self.summary(), r"(?s)\nprobes .*commit abc.*\narray ")
        self.assertIn("P1", self.log("probes"))

    def test_the_other_tests_of_a_suite_that_crashes_or_hangs_still_run(self):
        self.gtests("gpu_engine_test", "A.First pass", "A.Crashes crash", "A.Next pass",
                    "Devices/B.Hangs/sm_90 hang", "Devices/B.Other/sm_90 pass",
                    "Devices/B.Skips/sm_80 skip", "C.Breaks sticky", "C.Suffers pass",
                    "C.Last pass")
        done = self.run_it("engine", "array")
        self.assertEqual(done.returncode, 1)
        summary = self.summary()
        self.assertRegex(summary,
                         r"engine +\d+ s  FAILED: 5 passed, 3 failed, 1 skipped, 0 not run")
        self.assertRegex(summary, r"(?m)^array +\d+ s  passed: 2 passed")
        self.assertIn("FAILED A.Crashes: ended the process (139)", summary)
        self.assertIn("| about to crash", summary)
        self.assertIn("FAILED Devices/B.Hangs/sm_90: had no end after 2 s", summary)
        self.assertIn("FAILED C.Breaks: its checks", summary)
        self.assertIn("| the checks of C.Breaks", summary)
        self.assertNotIn("FAILED C.Suffers", summary)

    def test_tests_behind_slow_ones_are_not_taken_for_hung(self):
        self.gtests("gpu_engine_test", "A.Slow slow", "A.Slower slow", "A.Slowest slow")
        self.assertEqual(self.run_it("engine").returncode, 0, self.summary())
        self.assertIn("passed: 3 passed, 0 failed", self.summary())

    def test_a_part_without_time_is_named(self):
        self.gtests("gpu_engine_test", "A.Hangs hang", "B.Late pass")
        done = self.run_it("--seconds", "66", "--suite-seconds", "9", "engine", "array")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(self.summary(),
                         r"engine +\d+ s  FAILED: 0 passed, 1 failed, 0 skipped, 1 not run")
        self.assertIn("not run: B.Late", self.summary())
        done = self.run_it("--seconds", "2", "probes")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not run: no time left", self.summary())

    def test_where_managed_memory_fails_the_hosts_is_taken(self):
        self.assertEqual(self.run_it("kernels", NO_MANAGED="1").returncode, 0, self.summary())
        self.assertIn("managed memory fail (1): cudaMallocManaged: no", self.summary())

    def test_without_a_gpu_all_is_skipped(self):
        done = self.run_it("kernels", "engine", NO_GPU="1")
        self.assertEqual(done.returncode, 77)
        self.assertRegex(self.summary(), r"kernels +\d+ s  skipped: no GPU")

    def test_sanitizers_see_what_is_risky_and_nothing_of_other_gpus(self):
        self.gtests("gpu_kernels_test", "CudaElementwise.Adds pass",
                    "CudaAttention.PromptsHaveBits pass", "CudaAttention.Everything pass",
                    "Devices/CudaLinearTogether.Each/sm_90 pass",
                    "Devices/CudaLinearHalf.FewAnd/sm_90 crash",
                    "Devices/CudaLinearHalf.FewAnd/sm_80 pass",
                    "Formats/CudaExpertFormats.Rows/q4 pass")
        self.assertEqual(self.run_it("racecheck").returncode, 1)
        self.assertIn("FAILED: 4 passed, 1 failed, 0 skipped", self.summary())
        self.assertIn("FAILED Devices/CudaLinearHalf.FewAnd/sm_90", self.summary())
        self.assertIn("| ========= COMPUTE-SANITIZER", self.summary())

    def test_racecheck_alone_leaves_out_kernels_and_says_which(self):
        for part in ("racecheck", "memcheck"):
            self.assertEqual(self.run_it(part).returncode, 0, self.summary())
        left_out = re.search(r"--kernel-name-exclude kns=(\w+)", self.log("racecheck"))
        self.assertIn(f"racecheck leaves out {left_out[1]}", self.summary())
        self.assertNotIn("--kernel-name-exclude", self.log("memcheck"))
        kernels = "".join(path.read_text() for path in
                          (REPOSITORY / "kernels/cuda").glob("*.cu"))
        self.assertRegex(kernels, rf"__global__ [^;{{]*\b{left_out[1]}\w*\(")

    def test_the_sanitizers_tests_are_in_the_sources(self):
        """Each pattern names a test that there is."""
        sources = "".join(path.read_text() for path in
                          (REPOSITORY / "tests/kernels/cuda").glob("*_test.cpp"))
        script = (REPOSITORY / "deploy/gpu_run.sh").read_text()
        patterns = "".join(line.split("'")[1] for line in script.split("\n")
                           if line.startswith(("few=", "few+="))).split("-")[0].split(":")
        self.assertGreater(len(patterns), 10)
        for pattern in patterns:
            suite, test = pattern.split("/")[-1].split(".")
            known = rf"TEST(_P)?\({suite.replace('*', r'[A-Za-z0-9]*')},\s+{test.replace('*', '')}"
            self.assertRegex(sources, known)


class Peers(Archive):
    def peers(self, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, self.root / "gpu_peers.py", "--bin", self.root / "bin", "--tokenizer",
             self.root / "golden/tokenizer/json/qwen.json", "--small", "--out", self.out,
             *arguments], capture_output=True, text=True, timeout=60, check=False,
            env=dict(os.environ, PYTHONPATH=str(self.root), **environment))
        self.assertEqual(done.stderr, "")
        return done

    def figures(self):
        lines = next(self.out.glob("*-gpu-peers.jsonl")).read_text().split("\n")
        return {line["figure"]: line for line in map(json.loads, filter(None, lines))}

    def test_what_one_program_lacks_costs_its_figures_alone(self):
        done = self.peers(KERNELS_FAIL="1")
        self.assertEqual(done.returncode, 1)
        figures = self.figures()
        self.assertEqual(figures["decode, tokens/s"]["value"], 200)
        self.assertTrue(figures["idle us a step"]["met"])
        self.assertIn("no torch: not in this test", figures["torch's decode"]["failed"])
        self.assertIn("an illegal address", figures["gpu_kernels, a part of it"]["failed"])
        # The program printed this before it failed.
        self.assertAlmostEqual(figures["INT8 at 2048 rows / cuBLASLt, the least"]["value"], 10 / 11)
        self.assertNotIn("head", figures["INT8 at 2048 rows / cuBLASLt, the least"]["note"])
        name = "fixed order of sums costs at most, BF16, 2048 rows"
        self.assertAlmostEqual(figures[name]["value"], 0.1)
        self.assertIn("GB, s", done.stdout)
        self.assertIn("read 4000 GB/s", next(self.out.glob("*-kernels.txt")).read_text())

    def test_no_cublas_is_not_a_ratio_of_zero(self):
        self.peers(KERNELS_FAIL="1", CUBLAS_US="0")
        self.assertEqual(self.figures()["INT8 at 2048 rows / cuBLASLt, the least"]["failed"],
                         "no cuBLASLt")

    def test_a_program_that_hangs_leaves_time_and_is_ended(self):
        done = self.peers("--seconds", "4", SLUICE_HANGS="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("stopped after", self.figures()["decode"]["failed"])
        self.assertIn("no time left", self.figures()["INT8 prefill"]["failed"])
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                environment = pathlib.Path(path).read_bytes()
            except OSError:
                continue
            self.assertNotIn(f"PYTHONPATH={self.root}".encode(), environment)

    def test_without_a_gpu_it_is_skipped(self):
        self.program("bin/gpu_kernels", "#!/bin/sh\necho 'skipped: no GPU' && exit 77\n")
        done = self.peers()
        self.assertEqual((done.returncode, done.stdout), (77, "skipped: no GPU\n"))


def gpu_sources():
    """Yields the files of all programs that are tests on a GPU, then the headers of tests that they
    include."""
    files = []
    for folder in (REPOSITORY / "tests/engine/cuda", REPOSITORY / "tests/kernels/cuda"):
        text = (folder / "CMakeLists.txt").read_text()
        for names in re.findall(r"sluice_gpu_test\(\w+(.*?)\)", text, re.S):
            for variable in re.findall(r"\$\{(\w+)\}", names):
                names += " " + re.search(rf"set\({variable} (.*?)\)", text, re.S).group(1)
            files += [(folder / name).resolve() for name in re.findall(r"\S+\.cpp", names)]
    seen = set()
    while files:
        file = files.pop()
        if file not in seen:
            seen.add(file)
            files += [REPOSITORY / name
                      for name in re.findall(r'#include "(tests/[^"]+)"', file.read_text())]
            yield file


def goldens_named_by(source):
    """The files and folders of golden models and so on that a source's literals name, as a path, as
    a model, as engine-NAME.gguf, as a head of EAGLE or as a file of bits."""
    source = re.sub(r"(?ms)^#ifndef SLUICE_TESTS_ON_GPU.*?^#(?:else|endif)", "", source)
    source = re.sub(r"(?m)^\s*(#include|//).*$", "", source)
    golden = REPOSITORY / "tests/golden"
    for literal in set(re.findall(r'"([^"\n]*)"', source)):
        name = literal.removeprefix("/")
        if not re.fullmatch(r"\w.*\w", name):
            continue
        for path in (name, f"models/{name}", f"models/engine-{name}.gguf", f"eagle/{name}",
                     f"cuda/{name.replace('-', '_')}.txt"):
            if "/" in path and (golden / path).exists():
                yield path


class Goldens(unittest.TestCase):
    def test_the_archive_has_those_that_its_tests_read_and_no_others(self):
        named = {path for file in gpu_sources() for path in goldens_named_by(file.read_text())}
        self.assertIn("models/engine-latents.gguf", named)
        script = (REPOSITORY / "deploy/gpu_archive.sh").read_text()
        array = re.search(r"(?ms)^goldens=\(.*?^\)$", script).group()
        packed = subprocess.run(["bash", "-c", array + '\nprintf "%s\\n" "${goldens[@]}"'],
                                capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(sorted(packed), sorted(named))


if __name__ == "__main__":
    unittest.main()
