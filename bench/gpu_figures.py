#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sluice's own figures on a GPU as one JSON file, which gpu_report.py makes a chapter of bench/gpu.md
of: a model of 8B's shape with random weights, in BF16 and INT8.

  python3 gpu_figures.py --bin FOLDER --tokenizer tokenizer.json [--seconds N] [part ...]

  steps    `sluice bench`: 1, 16 and 64 streams behind prompts of 512 for 128 tokens, 256 for 512,
           prefill of 512, 2048, 8000
  profile  a decode step of one stream by kernel, by ncu where there is one: launches, us, share of the
           read rate. Without graphs, as ncu sees them one by one; its caches are cold.
  serve    `sluice serve` under `sluice bench serve`: 256 prompts of 1024 tokens, 128 out, 128 at once.
           Its tokenizer has a word for each of the model's ids: a token without text is no event, and
           a client sees neither the first nor the next one
  links    NCCL to itself, CUDA IPC between two processes, pinned memory

--bin has `sluice`, `gpu_kernels` and `gpu_links` (bin/ of the archive that deploy/gpu_archive.sh
makes). What gpu_kernels wrote to PREFIX-linear.json and so on (--kernels PREFIX) becomes tables of the
file. A part that fails costs its own figures, and its reason is in the file; another call fills in what
a file of the day lacks. Exit code 1: a part failed; 77: there is no GPU.
"""
import argparse
import csv
import datetime
import glob
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from gpu_peers import Failed, NoGpu, Peers, Programs, Report, last_lines

PARTS = ("steps", "profile", "serve", "links")
STREAMS = [1, 16, 64, 256]
PROMPTS = [512, 2048, 8000]
# Tokens of an answer. So many prompts take longer to compute, beside requests that decode, than the
# first of these would take for 128: there would be no step in which all decode.
OUTPUT_LEN = 128
MANY_STREAMS = 128
LONG_OUTPUT_LEN = 512
SERVED = {"request_throughput": "requests/s", "output_throughput": "tokens out/s",
          "median_ttft_ms": "median TTFT, ms", "p99_ttft_ms": "p99 TTFT, ms",
          "median_tpot_ms": "median TPOT, ms", "p99_tpot_ms": "p99 TPOT, ms",
          "completed": "completed"}
FIRST_KERNEL = "embedding"  # begins a step


def step_of(launches):
    """Of what ncu saw the last whole step: from one embedding to the next, or to the end."""
    begins = [i for i, launch in enumerate(launches) if FIRST_KERNEL in launch["kernel"]]
    if len(begins) < 3:
        raise Failed(f"ncu saw {len(launches)} launches and {len(begins)} steps")
    return launches[begins[-2]:begins[-1]]


def launches_of(text):
    """ncu's lines of CSV, one for each launch and metric, behind lines of its own."""
    lines = text.split("\n")
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise Failed("ncu printed no table")
    launches = {}
    for row in csv.DictReader(lines[begin:]):
        if not (row["ID"] or "").isdigit():
            continue
        name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|^void ", "", row["Kernel Name"])
        name = re.sub(r"[<(].*", "", name).split("::")[-1].removesuffix("_kernel")
        launch = launches.setdefault(int(row["ID"]), {"kernel": name})
        value = float(row["Metric Value"].replace(",", ""))
        scale = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3,
                 "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}[row["Metric Unit"]]
        launch["us" if "time" in row["Metric Name"] else "read"] = value * scale
    return [launches[number] for number in sorted(launches)]


def profile_of(launches, read_per_second):
    kernels = {}
    for launch in launches:
        row = kernels.setdefault(launch["kernel"], {"launches": 0, "us": 0.0, "read": 0.0})
        row["launches"] += 1
        row["us"] += launch["us"]
        row["read"] += launch.get("read", 0)
    rows = []
    for name, row in sorted(kernels.items(), key=lambda item: -item[1]["us"]):
        share = row["read"] / (1e-6 * row["us"]) / read_per_second if read_per_second else None
        rows.append({"kernel": name, "launches": row["launches"], "us": round(row["us"], 2),
                     "of_read": share and round(share, 3)})
    return rows


def find_ncu():
    folders = sorted(glob.glob("/usr/local/cuda*/bin/ncu") + glob.glob("/opt/nvidia/*/*/ncu"))
    return shutil.which("ncu") or (folders[-1] if folders else None)


def linear_row(row):
    theirs = round(row["cublaslt_us"] / row["us"], 2) if row["cublaslt_us"] else None
    return [row["type"], row["layer"], row["rows"], round(row["us"], 1), theirs]


def attention_row(row):
    share = f"{100 * row['of_read']:.1f}%"
    return [row["requests"], row["context"], round(row["us"], 1), share]


def kernel_tables(prefix):
    """Of gpu_kernels' files, those that there are; gpu_report.py finds columns by these names."""
    def figures(only):
        path = pathlib.Path(f"{prefix}-{only}.json")
        return json.loads(path.read_text())[only] if path.exists() else []

    tables = [
        {"title": "Linear layers, `gpu_kernels --only linear`",
         "columns": ["type", "layer", "rows", "us", "cuBLASLt's time / ours"],
         "rows": list(map(linear_row, figures("linear")))},
        {"title": "Decode attention over BF16, `gpu_kernels --only attention`",
         "columns": ["requests", "context", "us", "of read"],
         "rows": list(map(attention_row, dict(figures("attention")).get("decode", [])))}]
    return [table for table in tables if table["rows"]]


class Figures(Peers):
    """The parts; each returns what goes into the file."""

    def steps(self):
        found = {"decode": [], "prefill": []}
        few = [streams for streams in self.options.streams if streams <= MANY_STREAMS]
        many = [streams for streams in self.options.streams if streams > MANY_STREAMS]
        for kind in ("bf16", "int8"):
            prompts = self.options.prompts
            for streams, output_len in ((few, OUTPUT_LEN), (many, LONG_OUTPUT_LEN)):
                if not streams:
                    continue
                figures = self.bench(kind, prompts, streams, output_len)
                found["decode"] += [
                    {"type": kind.upper(), "streams": row["concurrency"],
                     "prompt": row["prompt_len"], "output": row["output_len"],
                     "tokens_per_second": row["tokens_per_second"],
                     "ms_per_step": 1e3 * row["concurrency"] / row["tokens_per_second"],
                     "idle_us": row.get("device_idle_us_per_step")} for row in figures["decode"]]
                if prompts:
                    found["prefill"] += [
                        {"type": kind.upper(), "tokens": row["prompt_len"],
                         "tokens_per_second": row["tokens_per_second"]}
                        for row in figures["prefill"]]
                prompts = []
        return found

    def bench(self, kind, prompts, streams, output_len):
        """What `sluice bench` wrote; without prompts its prefill is of no use."""
        out = self.folder / f"{kind}.json"
        self.programs.run(
            [self.bin / "sluice", "bench", self.models[kind], "--device", self.options.device,
             "--load-format", "dummy", "--max-num-batched-tokens", 8192, "--rounds", 1,
             "--max-num-seqs", max(streams), "--prefill", ",".join(map(str, prompts or [16])),
             "--concurrency", ",".join(map(str, streams)), "--prompt-len", self.options.prompts[0],
             "--output-len", output_len, "--json", out], self.folder / "sluice.txt", 240)
        return json.loads(out.read_text())

    def profile(self):
        ncu = find_ncu()
        if ncu is None:
            raise Failed("no ncu")
        out = self.folder / "ncu.csv"
        metrics = "gpu__time_duration.sum,dram__bytes_read.sum"
        self.programs.run(
            [ncu, "--csv", "--target-processes", "all", "--metrics", metrics, self.bin / "sluice",
             "bench", self.models["bf16"], "--device", self.options.device, "--load-format", "dummy",
             "--enforce-eager", "--max-num-batched-tokens", 512, "--concurrency", 1, "--rounds", 1,
             "--prefill", 16, "--prompt-len", 16, "--output-len", 4], out, 300)
        return {"profile": profile_of(step_of(launches_of(out.read_text())), self.read)}

    def speak(self, model):
        """Gives the model's tokenizer a word for each id that it lacks."""
        path = self.models[model] / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        words = tokenizer["model"]["vocab"]
        known = set(words.values()) | {token["id"] for token in tokenizer["added_tokens"]}
        words.update({f"x{number}": number for number in range(self.shape["vocab_size"])
                      if number not in known})
        path.write_text(json.dumps(tokenizer))

    def serve(self):
        self.speak("bf16")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        out, log = self.folder / "served.json", self.folder / "serve.txt"
        with open(log, "wb") as said:
            server = subprocess.Popen(
                [str(self.bin / "sluice"), "serve", str(self.models["bf16"]), "--device",
                 self.options.device, "--load-format", "dummy", "--host", "127.0.0.1", "--port",
                 str(port)], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            begin = time.monotonic()
            while not self.is_ready(port):
                if server.poll() is not None or time.monotonic() > begin + 120:
                    raise Failed(f"serve was not ready\n    {last_lines(log)}")
                time.sleep(0.05)
            ready = time.monotonic() - begin
            self.programs.run(
                [self.bin / "sluice", "bench", "serve", "--port", port, "--num-prompts", 256,
                 "--random-input-len", 1024, "--random-output-len", 128, "--max-concurrency", 128,
                 "--ignore-eos", "--save-result", "--result-dir", self.folder, "--result-filename",
                 out.name], self.folder / "bench_serve.txt", 200)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        figures = json.loads(out.read_text())
        served = {name: figures[key] for key, name in SERVED.items() if key in figures}
        return {"serve": {"ready after, s": round(ready, 2), **served}}

    @staticmethod
    def is_ready(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def links(self):
        out = self.folder / "links.txt"
        why = None
        try:
            self.programs.run([self.bin / "gpu_links"], out, 60, self.kernels_environment())
        except NoGpu:
            raise
        except Failed as error:
            why = error
        lines = [json.loads(line) for line in (out.read_text() if out.exists() else "").split("\n")
                 if line.startswith("{")]
        if why and not lines:
            raise why
        found = {"links": [line for line in lines if "what" in line]}
        failed = {f"links: {line['failed']}": line["why"] for line in lines if "failed" in line}
        if why and not failed:
            failed = {"links, a part of it": str(why)}
        return {**found, **({"failed": failed} if failed else {})}


def card():
    """What nvidia-smi says; the names of what is not known are missing."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
        name, driver = said.strip().split("\n")[0].split(", ")
        return {"card": name, "driver": driver}
    except (OSError, subprocess.SubprocessError, ValueError):
        return {"card": "an unknown GPU"}


def measure(figures, parts, run, write):
    """Fills `run` part by part and writes it after each; whether none failed."""
    complete = True
    for part in ("read rate", *parts):
        try:
            if part == "read rate":
                figures.probe()
                found = {"read_gb_per_second": figures.read / 1e9}
            else:
                found = getattr(figures, part)()
        except NoGpu:
            raise
        except Failed as error:
            found = {"failed": {part: str(error).split("\n", maxsplit=1)[0]}}
            print(f"{part}: FAILED, {error}", flush=True)
        except Exception as error:  # one part's, whatever it is; the others are to come
            found = {"failed": {part: repr(error)}}
            print(f"{part}: FAILED, {error!r}", flush=True)
        failed = {name: why for name, why in run.get("failed", {}).items()
                  if name.split(":")[0].split(",")[0] != part}
        complete = complete and "failed" not in found
        run.update(found)
        run["failed"] = {**failed, **found.get("failed", {})}
        write(run)
        if "failed" not in found:
            print(f"{part}: done", flush=True)
    return complete


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help="steps, profile, serve, links (all)")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--seconds", type=float, default=540, help="for all of it (540)")
    parser.add_argument("--out", default=".", help="the folder of the JSON file (.)")
    parser.add_argument("--tree", default="unknown", help="the commit, for the file")
    parser.add_argument("--day", metavar="YYYY-MM-DD", help="when the run began, for the file (today)",
                        default=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"))
    parser.add_argument("--libraries", default="", help="folders to find NCCL in, with colons")
    parser.add_argument("--kernels", default="", metavar="PREFIX", help="of gpu_kernels' files")
    for name, numbers in (("streams", STREAMS), ("prompts", PROMPTS)):
        parser.add_argument(f"--{name}", default=numbers, metavar="N,N",
                            type=lambda text: [int(one) for one in text.split(",")],
                            help=f"of `steps` ({','.join(map(str, numbers))})")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a small shape on the GPU, too")
    options = parser.parse_args()
    parts = options.parts or PARTS
    if set(parts) - set(PARTS):
        parser.error(f"no part {sorted(set(parts) - set(PARTS))[0]}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{options.day}-gpu-figures.json"
    run = json.loads(path.read_text()) if path.exists() else {}
    run.update({**card(), "date": options.day, "tree": options.tree})
    new = kernel_tables(options.kernels)
    titles = [table["title"] for table in new]
    run["tables"] = new + [one for one in run.get("tables", []) if one["title"] not in titles]
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(pathlib.Path(folder), Report(out), options.seconds)
        try:
            complete = measure(Figures(options, pathlib.Path(folder), programs.report, programs),
                               parts, run, lambda run: path.write_text(json.dumps(run, indent=1)))
        except NoGpu as error:
            print(error if str(error).startswith("skipped") else f"skipped: {error}")
            sys.exit(77)
        finally:
            programs.stop()
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
