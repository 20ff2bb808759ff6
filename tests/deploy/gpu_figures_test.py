#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_figures.py with programs that only behave like the real ones, and gpu_report.py: what a run
measured is in its JSON and on the page, a part that fails costs its own figures, and bench/gpu.md is
what the script makes of bench/gpu."""
import json
import re
import shutil
import subprocess
import sys
import unittest

from gpu_run_test import Archive, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench"))
import gpu_report  # noqa: E402

DAY = "2026-01-31"  # of every run here
SLUICE = r"""#!/usr/bin/env python3
import http.server, json, pathlib, sys
def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
if sys.argv[1] == "serve":
    model = pathlib.Path(sys.argv[2])
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = list(tokenizer["model"]["vocab"].values()) + [t["id"] for t in tokenizer["added_tokens"]]
    if sorted(ids) != list(range(json.loads((model / "config.json").read_text())["vocab_size"])):
        sys.exit("a token without a word")
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *_):
            pass
    http.server.HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
elif sys.argv[2] == "serve":
    (pathlib.Path(option("--result-dir")) / option("--result-filename")).write_text(json.dumps(
        {"completed": int(option("--num-prompts")), "median_ttft_ms": 12.5, "p99_tpot_ms": 20}))
else:
    streams, output = option("--concurrency").split(","), int(option("--output-len"))
    if max(map(int, streams)) > 128 and output < 512:
        sys.exit("--output-len is too short")
    kind = json.loads((pathlib.Path(sys.argv[2]) / "config.json").read_text())
    scale = 2 if "quantization_config" in kind else 1
    pathlib.Path(option("--json")).write_text(json.dumps({
        "prefill": [{"prompt_len": int(n), "tokens_per_second": 16000.0 * scale}
                    for n in option("--prefill").split(",")],
        "decode": [{"concurrency": int(n), "prompt_len": int(option("--prompt-len")),
                    "output_len": output, "tokens_per_second": 100.0 * int(n) * scale,
                    "device_idle_us_per_step": 15} for n in streams]}))
"""
# Two whole steps behind a prompt's, and the beginning of another.
NCU = r"""#!/usr/bin/env python3
print('==PROF== Connected\n"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
number = 0
for step in range(4):
    names = ["sluice::kernels::cuda::(anonymous namespace)::embedding_kernel(EmbeddingWork)"]
    if step < 3:
        names += ["rms_norm_kernel(NormArgs)", "void sluice::<unnamed>::gemm_kernel<sluice::Half, 8>(sluice::Args)", "rms_norm_kernel(NormArgs)"]
    for name in names:
        for metric, unit, value in (("dram__bytes_read.sum", "Mbyte", "20.0"),
                                    ("gpu__time_duration.sum", "nsecond", "10,000" if step else "9")):
            print(f'"{number}","7","{name}","{metric}","{unit}","{value}"')
        number += 1
print("==PROF== Disconnected")
"""
LINKS = r"""#!/bin/sh
echo '{"what": "CUDA IPC, two processes of one GPU", "bytes": 1048576, "us": 2, "gb_per_second": 524.288}'
echo '{"failed": "NCCL", "why": "no libnccl.so.2"}'
exit 1
"""


class Figures(Archive):
    def setUp(self):
        super().setUp()
        shutil.copy(REPOSITORY / "tests/golden/tokenizer/json/qwen.json",
                    self.root / "golden/tokenizer/json")
        self.program("bin/sluice", SLUICE)
        self.program("bin/gpu_links", LINKS)
        self.program("tools/ncu", NCU)
        self.program("tools/nvidia-smi", "#!/bin/sh\necho 'a GPU of paper, 580.1'\n")
        # Midnight is between the day that gpu_run.sh asks for and all that it does later.
        self.program("tools/date", f"#!/bin/sh\n[ \"$2\" = +%Y-%m-%d ] && echo {DAY} || "
                                   "exec /bin/date \"$@\"\n")

    def figures(self):
        return json.loads((self.out / f"{DAY}-gpu-figures.json").read_text())

    def test_every_part_is_in_the_file_and_on_the_page(self):
        done = self.run_it("steps", "profile", "serve", "links")
        self.assertEqual(done.returncode, 1)  # NCCL is missing
        run = self.figures()
        self.assertEqual((run["card"], run["driver"], run["tree"]), ("a GPU of paper", "580.1", "abc"))
        self.assertEqual(run["read_gb_per_second"], 4000)
        self.assertEqual([(row["type"], row["streams"]) for row in run["decode"]],
                         [(kind, n) for kind in ("BF16", "INT8") for n in (1, 16, 64, 256)])
        self.assertEqual([row["output"] for row in run["decode"]], [128, 128, 128, 512] * 2)
        self.assertEqual(run["decode"][4]["ms_per_step"], 5)
        self.assertEqual([row["tokens"] for row in run["prefill"]], [512, 2048, 8000] * 2)
        # The last whole step; 20 MB in 10 us are half of 4000 GB/s.
        self.assertEqual(run["profile"],
                         [{"kernel": "rms_norm", "launches": 2, "us": 20.0, "of_read": 0.5},
                          {"kernel": "embedding", "launches": 1, "us": 10.0, "of_read": 0.5},
                          {"kernel": "gemm", "launches": 1, "us": 10.0, "of_read": 0.5}])
        self.assertEqual(run["serve"]["completed"], 256)
        self.assertEqual(run["serve"]["median TTFT, ms"], 12.5)
        self.assertEqual(run["links"][0]["gb_per_second"], 524.288)
        self.assertEqual(run["failed"], {"links: NCCL": "no libnccl.so.2"})
        page = gpu_report.report([run])
        for line in ("## a GPU of paper, ", "| INT8 | 16 | 512 | 128 | 3,200 | 5 | 15 |",
                     "| BF16 | 8,000 | 16,000 |", "| `rms_norm` | 2 | 20 | 50.0% | 50% |",
                     "| completed | 256 |", "| links: NCCL | no libnccl.so.2 |",
                     "| CUDA IPC, two processes of one GPU | 1,048,576 | 2 | 524 |"):
            self.assertIn(line, page)

    def test_a_step_is_beside_the_layers_and_the_attention_that_the_kernels_were_timed_with(self):
        logs = self.root / "logs"
        logs.mkdir()
        linear = [{"type": kind, "layer": layer, "rows": rows, "us": us, "cublaslt_us": 8}
                  for kind, us in (("BF16", 20), ("INT8", 10)) for rows in (16, 64)
                  for layer in ("qkv", "attention out", "gate and up", "down", "head")]
        (logs / f"{DAY}-gpu-linear.json").write_text(json.dumps({"linear": linear}))
        decode = [{"requests": 64, "context": 512, "us": 20, "of_read": 0.5}]
        (logs / f"{DAY}-gpu-attention.json").write_text(json.dumps({"attention": {"decode": decode}}))
        self.assertEqual(self.run_it("steps").returncode, 0, self.summary())
        run = self.figures()
        self.assertEqual(run["tables"][0]["rows"][0], ["BF16", "qkv", 16, 20, 0.4])
        self.assertEqual(run["tables"][1]["rows"], [[64, 512, 20, "50.0%"]])
        # 16 streams lack their attention; the head of an INT8 model is BF16.
        beside = [[kind, streams, step, round(alone, 6), round(ratio, 6)]
                  for kind, streams, step, alone, ratio in gpu_report.beside_kernels(run)]
        self.assertEqual(beside, [["BF16", 64, 10, 3.22, round(10 / 3.22, 6)],
                                  ["INT8", 64, 5, 1.94, round(5 / 1.94, 6)]])
        page = gpu_report.report([run])
        self.assertIn("| BF16 | 64 | 10 | 3.22 | 3.11 |", page)
        # Another call of the day has its tables once.
        self.assertEqual(self.run_it("links").returncode, 1)
        self.assertEqual(len(self.figures()["tables"]), 2)

    def test_a_part_that_fails_costs_its_own_figures_until_it_does_not(self):
        self.program("tools/ncu", "#!/bin/sh\necho 'no permission' >&2 && exit 1\n")
        self.assertEqual(self.run_it("profile", "serve").returncode, 1)
        self.assertIn("ncu ended with 1", self.figures()["failed"]["profile"])
        self.assertIn("serve", self.figures())
        self.program("tools/ncu", NCU)
        self.assertEqual(self.run_it("profile").returncode, 0, self.summary())
        run = self.figures()
        self.assertEqual(run["failed"], {})
        self.assertEqual(len(run["profile"]), 3)
        self.assertIn("serve", run)

    def test_without_a_gpu_it_is_skipped(self):
        self.program("bin/gpu_kernels", "#!/bin/sh\necho 'skipped: no GPU' && exit 77\n")
        self.assertEqual(self.run_it("links").returncode, 77)
        self.assertRegex(self.summary(), r"links +\d+ s  skipped: no GPU")


class Page(unittest.TestCase):
    def test_the_page_is_what_the_script_makes_of_the_files(self):
        files = sorted(map(str, (REPOSITORY / "bench/gpu").glob("*.json")))
        self.assertTrue(files)
        made = subprocess.run([sys.executable, REPOSITORY / "bench/gpu_report.py", *files],
                              capture_output=True, text=True, check=True).stdout
        self.assertEqual(made, (REPOSITORY / "bench/gpu.md").read_text())
        columns = [line.count("|") for line in made.split("\n") if re.match(r"\|-", line)]
        self.assertGreater(len(columns), 5)

    def test_the_newest_run_comes_first_and_of_a_day_the_last_given(self):
        runs = [{"card": card, "date": date, "tree": "abc"}
                for card, date in (("A", "2026-02-01"), ("B", "2026-02-03"), ("C", "2026-02-03"),
                                   ("D", "2026-01-02"))]
        heads = [line for line in gpu_report.report(runs).split("\n") if line.startswith("## ")]
        self.assertEqual(heads, ["## C, 2026-02-03", "## B, 2026-02-03", "## A, 2026-02-01",
                                 "## D, 2026-01-02"])

    def test_what_no_gpu_has_run_is_one_list_of_files_that_exist(self):
        page = REPOSITORY / "kernels/cuda/not_run.md"
        rows = re.findall(r"(?m)^\| (`[^|]*) \|", page.read_text())
        names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
        self.assertGreater(len(names), 1)
        self.assertEqual([name for name in names if not (page.parent / name).is_file()], [])
        for folder in ("engine", "kernels", "kvcache"):
            for path in sorted((REPOSITORY / folder).rglob("*.*")):
                if path.suffix in (".h", ".cpp", ".cu"):
                    text = re.sub(r"\s*\n\s*//\s*", " ", path.read_text())
                    said = re.search(r"(?i)\bno gpu\b[^.]{0,60}\brun\b", text)
                    self.assertIsNone(said, f"{path}: belongs to {page.name}")

    def test_every_program_that_a_part_names_is_in_the_archive(self):
        archive = (REPOSITORY / "deploy/gpu_archive.sh").read_text()
        figures = (REPOSITORY / "bench/gpu_figures.py").read_text()
        for name in set(re.findall(r'self\.bin / "(\w+)"', figures)):
            self.assertRegex(archive, rf"(?m)^  (\S+/)?{name}$")
        self.assertIn("bench/gpu_figures.py", archive)


if __name__ == "__main__":
    unittest.main()
