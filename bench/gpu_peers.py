#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPU's figures beside torch and cuBLASLt, in turns in one run: decode and prefill of a model of
8B's shape with random weights, attention of prompts, what the GPU waits for the host, the first
token of a file, joules a token.

  python3 gpu_peers.py --bin FOLDER --tokenizer tokenizer.json [--rounds N] [--seconds N]

--bin has `sluice` and `gpu_kernels` (bin/ of the archive that deploy/gpu_archive.sh makes); any
tokenizer of at most 128256 tokens does. torch's side is gpu_torch.py beside this file. Each figure
is printed when it is known, and in --out as a line of JSON: a program that fails, hangs or is
missing costs its own figures alone. Another round begins only where --seconds has room for it.

  decode / torch.compile    the fastest of torch's steps: compiled layers (inductor, tuned) in one
                            CUDA graph over a static cache, by two ways of sharing KV heads; the
                            note says which. Both sides take 480 tokens behind 32.
  attention of N / SDPA     the better of FlashAttention and cuDNN; both sides in CUDA graphs
  INT8 ... / cuBLASLt       the least over the layers that are INT8 in a model, so not the head
  fixed order of sums       our five layers over the faster of ours and cuBLASLt's, less 1: a bound,
  costs at most             as it has whatever else cuBLASLt does better
  first token               a whole process; the file is in memory or in the page cache
  tokens a joule            by NVML, of the tokens that one run has more than another

--device cpu runs sluice and torch on a small shape without a GPU, to see that all of it works.
Exit code 1: a figure failed or got no time; 77: there is no GPU.
"""
import argparse
import concurrent.futures
import ctypes
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from gpu_torch import CONTEXT, PROMPT, SHAPE, SMALL

INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True,
                        "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token",
                                  "symmetric": True, "dynamic": True},
        }
    },
}
LEAST_SECONDS = 3  # no program is started with less

# How a figure's name begins, and what is asked of it.
ASKED = (
    ("decode / torch.compile", ">=", 1.1),
    ("decode / read rate", ">=", 0.75),
    ("idle us a step", "<=", 20),
    ("attention behind", ">=", 0.85),
    ("attention of", ">=", 0.75),
    ("INT8 at 2048 rows / cuBLASLt", ">=", 0.9),
    ("fixed order", "<=", 0.1),
    ("first token of", "<=", 4),
)


class Failed(Exception):
    """Why a figure is not there."""


class NoGpu(Failed):
    pass


def weight_bytes(shape):
    """Of what a decode step reads, in BF16: everything but the embedding's other rows."""
    width = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    layer = hidden * (2 * width + 2 * kv) + 3 * hidden * ffn
    return 2 * (shape["num_hidden_layers"] * layer + hidden * shape["vocab_size"])


class Energy:
    """Joules of the first GPU since its driver was loaded, by NVML; None where it does not say."""

    def __init__(self):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(
                0, ctypes.byref(self.device)):
            self.nvml = None

    def joules(self):
        total = ctypes.c_ulonglong()
        if self.nvml is None or self.nvml.nvmlDeviceGetTotalEnergyConsumption(
                self.device, ctypes.byref(total)):
            return None
        return total.value / 1e3


class Report:
    """Figures as they become known: printed, and appended to a file."""

    def __init__(self, folder):
        day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        self.prefix = folder / f"{day}-gpu-peers"
        self.values = {}
        self.round = 0
        self.complete = True

    def path(self, suffix):
        return self.prefix.with_name(self.prefix.name + suffix)

    def write(self, **values):
        with open(self.path(".jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"round": self.round, **values}) + "\n")

    def figure(self, name, value, note=""):
        relation, asked = next((row[1:] for row in ASKED if name.startswith(row[0])), (None, None))
        text = f"{name}: {value:.4g}"
        met = None
        if relation:
            met = value >= asked if relation == ">=" else value <= asked
            text += f" (asked: {relation} {asked}, {'met' if met else 'MISSED'})"
        print(text + (f" [{note}]" if note else ""), flush=True)
        self.write(figure=name, value=value, asked=relation and f"{relation} {asked}", met=met,
                   note=note)
        self.values.setdefault(name, []).append(value)

    def failed(self, name, reason):
        self.complete = False
        print(f"{name}: FAILED, {reason}", flush=True)
        self.write(figure=name, failed=str(reason))

    def table(self):
        print(f"\n| figure, {self.round} rounds | median [least, most] |\n|---|---|")
        for name, values in self.values.items():
            print(f"| {name} | {statistics.median(values):.4g} "
                  f"[{min(values):.4g}, {max(values):.4g}] |")
        print(flush=True)


def last_lines(path, count=8):
    text = path.read_text(encoding="utf-8", errors="replace")[-4000:]
    return "\n    ".join(line[:300] for line in text.strip().split("\n")[-count:] if line)


class Programs:
    """Starts programs one after the other, none past the deadline; their output goes to files, so
    that nothing is lost and nobody waits for a pipe that an orphan holds."""

    def __init__(self, folder, report, seconds):
        self.folder = folder
        self.report = report
        self.end = time.monotonic() + seconds
        self.process = None

    def left(self):
        return self.end - time.monotonic()

    def stop(self):
        """With what it started, torch's compilers."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None

    def start(self, command, out, environment=None):
        """Its stdout in `out`; stderr in the file that run() and failure() read."""
        self.errors = self.folder / "stderr.txt"
        with open(out, "wb") as stdout, open(self.errors, "wb") as stderr:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                            stdout=stdout, stderr=stderr, env=environment,
                                            start_new_session=True)

    def failure(self, what):
        with open(self.report.path("-stderr.txt"), "a", encoding="utf-8") as file:
            file.write(f"{what}\n    {last_lines(self.errors, 60)}\n")
        return f"{what}\n    {last_lines(self.errors)}".rstrip()

    def run(self, command, out, most, environment=None):
        seconds = min(most, self.left())
        if seconds < LEAST_SECONDS:
            raise Failed("not run, no time left")
        name = pathlib.Path(command[0]).name
        try:
            self.start(command, out, environment)
            code = self.process.wait(seconds)
        except OSError as error:
            raise Failed(f"{name}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise Failed(self.failure(f"{name} stopped after {seconds:.0f} s")) from error
        finally:
            self.stop()
        if code == 77:
            raise NoGpu(last_lines(out, 1))
        if code:
            raise Failed(self.failure(f"{name} ended with {code}"))


def kernels_of_text(text):
    """What gpu_kernels printed before it failed, as in its JSON."""
    figures = {"linear": [], "attention": {"decode": [], "prefill": []}}
    number = r" +([\d.]+)"
    read = re.search(r"(?m)^read ([\d.]+) GB/s", text)
    if read:
        figures["read_bytes_per_second"] = 1e9 * float(read[1])
    linear = rf"(?m)^(BF16|INT8) +(\S.*?) +(\d+){number}{number}%{number}{number}%{number}{number}$"
    for row in re.finditer(linear, text):
        figures["linear"].append({"type": row[1], "layer": row[2], "rows": int(row[3]),
                                  "us": float(row[4]), "cublaslt_us": float(row[8])})
    decode = text.partition("\ndecode over")[2].partition("\nprefill of")[0]
    for row in re.finditer(rf"(?m)^ *(\d+) +(\d+){number}{number}%$", decode):
        figures["attention"]["decode"].append(
            {"requests": int(row[1]), "context": int(row[2]), "us": float(row[3]),
             "of_read": float(row[4]) / 100})
    prefill = text.partition("\nprefill of")[2].partition("\nsampling of")[0]
    for row in re.finditer(rf"(?m)^ *(\d+){number}{number}{number}%$", prefill):
        figures["attention"]["prefill"].append({"tokens": int(row[1]), "us": float(row[2])})
    return figures


def fixed_order(linear, rows):
    """What the one order of sums costs at most: a layer's best is no slower than the faster of the
    two, and the rest of the difference is not the order's. None where cuBLASLt lacks a layer."""
    layers = [row for row in linear if row["type"] == "BF16" and row["rows"] == rows]
    if len(layers) < 5 or not all(row["cublaslt_us"] > 0 for row in layers):
        return None
    ours = sum(row["us"] for row in layers)
    return ours / sum(min(row["us"], row["cublaslt_us"]) for row in layers) - 1


def shapes_of(shape):
    """Of the file's tensors."""
    hidden, ffn, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    width = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden)}
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes.update({
            at + "input_layernorm.weight": (hidden,),
            at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (width, hidden),
            at + "self_attn.k_proj.weight": (kv, hidden),
            at + "self_attn.v_proj.weight": (kv, hidden),
            at + "self_attn.o_proj.weight": (hidden, width),
            at + "mlp.gate_proj.weight": (ffn, hidden),
            at + "mlp.up_proj.weight": (ffn, hidden),
            at + "mlp.down_proj.weight": (hidden, ffn)})
    return shapes


def folder_for(size):
    """Where a file of that size is read fastest: in memory, if it has room for it and the rest."""
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in file}
    room = 1.25 * size
    shared = pathlib.Path("/dev/shm")
    if (shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > room
            and memory.get("MemAvailable", 0) > 2 * room):
        return shared
    folders = [path for path in (tempfile.gettempdir(), "/var/tmp", os.getcwd())
               if os.path.isdir(path) and os.access(path, os.W_OK)]
    best = max(folders, key=lambda path: shutil.disk_usage(path).free)
    if shutil.disk_usage(best).free < room:
        raise Failed(f"no folder has room for {size / 1e9:.1f} GB")
    return pathlib.Path(best)


def write_model(folder, shape, tokenizer, left):
    """A safetensors file of small random numbers of both signs, and what else a model needs.
    left(): the seconds that there are."""
    header, size = {}, 0
    for name, dims in shapes_of(shape).items():
        begin, size = size, size + 2 * math.prod(dims)
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [begin, size]}
    text = json.dumps(header).encode()
    first = struct.pack("<Q", len(text)) + text
    # BF16 of about 0.01: a low byte of mantissa, and a high byte that is the sign and the exponent.
    piece = bytearray(os.urandom(8 << 20))
    piece[0::2] = piece[0::2].translate(bytes(b & 0x7F for b in range(256)))
    piece[1::2] = piece[1::2].translate(bytes(b & 0x80 | 0x3C for b in range(256)))
    (folder / "config.json").write_text(json.dumps(shape))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    with open(folder / "model.safetensors", "wb") as file, \
            concurrent.futures.ThreadPoolExecutor(8) as threads:
        file.truncate(len(first) + size)
        os.pwrite(file.fileno(), first, 0)

        def write(at):
            if left() < 20:
                raise Failed(f"no time left after {at / 1e9:.1f} GB of the file")
            os.pwrite(file.fileno(), memoryview(piece)[:size - at], len(first) + at)

        list(threads.map(write, range(0, size, len(piece))))
        # Read once, so that a run finds it in the page cache.
        with open(folder / "model.safetensors", "rb") as again:
            list(threads.map(lambda at: len(os.pread(again.fileno(), len(piece), at)),
                             range(0, size, len(piece))))
    return size


class Peers:
    """The figures of a round. Each method is one program's."""

    def __init__(self, options, folder, report, programs):
        self.options = options
        self.folder = folder
        self.report = report
        self.programs = programs
        self.bin = pathlib.Path(options.bin)
        self.on_gpu = options.device == "cuda"
        # With a vocabulary that tokenizers fit, which torch's side has no need of.
        small = options.small or not self.on_gpu
        self.shape = dict(SMALL, vocab_size=SHAPE["vocab_size"]) if small else SHAPE
        self.read = None    # bytes a second that the GPU reads, of this round, and so on
        self.decoded = None
        self.kernels = None
        self.models = {}
        for name, more in (("bf16", {}), ("int8", {"quantization_config": INT8})):
            model = folder / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps({**self.shape, **more}))
            shutil.copy(options.tokenizer, model / "tokenizer.json")
            self.models[name] = model

    def sluice(self, model, *options, most=150):
        command = [self.bin / "sluice", "bench", model, "--device", self.options.device,
                   "--max-num-batched-tokens", 8192, "--concurrency", 1, "--rounds", 1, *options]
        self.programs.run(command, self.folder / "sluice.txt", most)

    def bench(self, model, prefill, output_len, most=150):
        out = self.folder / "sluice.json"
        self.sluice(self.models[model], "--load-format", "dummy", "--prefill", prefill,
                    "--prompt-len", PROMPT, "--output-len", output_len, "--json", out, most=most)
        return json.loads(out.read_text())

    def kernels_environment(self):
        """cuBLASLt is opened by name. The driver's own library may be reachable only through what
        LD_LIBRARY_PATH already has."""
        paths = [self.options.libraries, os.environ.get("LD_LIBRARY_PATH")]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, paths)))

    def probe(self):
        """Only gpu_kernels' first line, so that decode does not wait for its minutes."""
        out = self.folder / "probe.txt"
        until = time.monotonic() + min(60, self.programs.left())
        read = None
        try:
            self.programs.start([self.bin / "gpu_kernels"], out, self.kernels_environment())
            while not read and time.monotonic() < until:
                code = self.programs.process.poll()
                read = kernels_of_text(out.read_text()).get("read_bytes_per_second")
                if code == 77:
                    raise NoGpu(last_lines(out, 1))
                if code is not None and not read:
                    raise Failed(self.programs.failure(f"gpu_kernels ended with {code}"))
                time.sleep(0.05)
        except OSError as error:
            raise Failed(f"gpu_kernels: {error.strerror}") from error
        finally:
            self.programs.stop()
        if not read:
            raise Failed(self.programs.failure("gpu_kernels gave no read rate"))
        self.read = read
        self.report.figure("read rate, GB/s", read / 1e9)

    def decode(self):
        json_of = self.bench("bf16", 512, self.options.tokens)
        figure = json_of["decode"][0]
        self.decoded = figure["tokens_per_second"]
        self.report.figure("decode, tokens/s", self.decoded)
        if self.read:
            self.report.figure("decode / read rate",
                               self.decoded * weight_bytes(self.shape) / self.read)
        if "device_idle_us_per_step" in figure:
            self.report.figure("idle us a step", figure["device_idle_us_per_step"])
        self.report.figure("prefill of 512, tokens/s", json_of["prefill"][0]["tokens_per_second"])

    def torch(self, *arguments, most):
        """Its lines of JSON, those before a failure too."""
        out = self.folder / "torch.txt"
        out.write_text("")
        script = pathlib.Path(__file__).resolve().parent / "gpu_torch.py"
        error = None
        try:
            self.programs.run([sys.executable, script, *arguments, "--device", self.options.device],
                              out, most)
        except Failed as failed:
            error = failed
        lines = []
        for line in out.read_text().split("\n"):
            if line.startswith("{") and line.endswith("}"):
                lines.append(json.loads(line))
        if not lines:
            raise error or Failed("gpu_torch.py printed no figure")
        if error:
            self.report.failed(f"torch, {arguments[0]}, a part of it", error)
        return lines

    def torch_decode(self):
        lines = self.torch("decode", "--tokens", self.options.tokens, most=240)
        ways = [(name, max((line for line in lines if line["compiled"] == compiled),
                           key=lambda line: line["tokens_per_second"], default=None))
                for name, compiled in (("torch.compile", True), ("torch eager", False))]
        for name, best in ways:
            if best is None:
                self.report.failed(f"decode / {name}", "that way gave no figure")
                continue
            theirs = best["tokens_per_second"]
            self.report.figure(f"{name}'s decode, tokens/s", theirs, best["how"])
            if self.read:
                self.report.figure(f"{name}'s decode / read rate",
                                   theirs * weight_bytes(self.shape) / self.read)
            if self.decoded is None:
                self.report.failed(f"decode / {name}", "there is no decode of sluice's")
            else:
                self.report.figure(f"decode / {name}", self.decoded / theirs, best["how"])

    def all_kernels(self):
        out = self.report.path("-kernels.txt")
        figures = self.folder / "kernels.json"
        try:
            self.programs.run([self.bin / "gpu_kernels", figures], out, 200,
                              self.kernels_environment())
            self.kernels = json.loads(figures.read_text())
        except Failed as error:
            if isinstance(error, NoGpu) or not out.exists():
                raise
            self.report.failed("gpu_kernels, a part of it", error)
            self.kernels = kernels_of_text(out.read_text())
        linear = self.kernels["linear"]
        # The head is BF16 in an INT8 model.
        ratios = {row["layer"]: row["cublaslt_us"] / row["us"] for row in linear
                  if row["type"] == "INT8" and row["rows"] == 2048 and row["layer"] != "head"
                  and row["cublaslt_us"] > 0}
        name = "INT8 at 2048 rows / cuBLASLt, the least"
        if ratios:
            self.report.figure(name, min(ratios.values()),
                               ", ".join(f"{layer} {ratios[layer]:.2f}" for layer in ratios))
        else:
            self.report.failed(name, "no cuBLASLt" if linear else "no linear layer was measured")
        for row in self.kernels["attention"]["decode"]:
            if row["context"] == 4096:
                self.report.figure(f"attention behind 4096 of {row['requests']} / read rate",
                                   row["of_read"])
        for rows in (1, 8, 64, 2048):
            cost = fixed_order(linear, rows)
            name = f"fixed order of sums costs at most, BF16, {rows} rows"
            if cost is None:
                self.report.failed(name, "not all layers have both times")
            else:
                self.report.figure(name, cost)

    def torch_attention(self):
        ours = {row["tokens"]: row["us"] for row in (self.kernels or {"attention": {"prefill": []}})
                ["attention"]["prefill"]}
        lengths = ",".join(map(str, ours)) or "512,2048"
        lines = self.torch("attention", "--lengths", lengths, most=90)
        for length in sorted({line["length"] for line in lines}):
            best = min((line for line in lines if line["length"] == length),
                       key=lambda line: line["us"])
            name = f"attention of {length} / SDPA"
            if length in ours:
                self.report.figure(name, best["us"] / ours[length],
                                   f"{best['how']}, {best['us']:.1f} us")
            else:
                self.report.failed(name, f"none of ours; {best['how']} took {best['us']:.1f} us")

    def int8_prefill(self):
        figure = self.bench("int8", 2048, 8)["prefill"][0]
        self.report.figure("INT8 prefill of 2048, tokens/s", figure["tokens_per_second"])

    def first_token(self):
        """From the start of a process to the end of two answers of one token and two of two, the
        file in the page cache: somewhat more than the first token takes."""
        if self.programs.left() < 60 and not self.options.small:
            raise Failed("not run, no time left to write the file")
        size = 2 * sum(math.prod(dims) for dims in shapes_of(self.shape).values())
        with tempfile.TemporaryDirectory(dir=folder_for(size)) as folder:
            model = pathlib.Path(folder)
            begin = time.perf_counter()
            write_model(model, self.shape, self.options.tokenizer, self.programs.left)
            note = f"in {model.parent}, written in {time.perf_counter() - begin:.0f} s"
            begin = time.perf_counter()
            self.sluice(model, "--prefill", 16, "--prompt-len", 16, "--output-len", 2, most=90)
            seconds = time.perf_counter() - begin
            self.report.figure(f"first token of {size / 1e9:.3g} GB, s", seconds, note)

    def energy(self):
        """What loading and prompts take is in both runs, and in neither's difference."""
        meter = Energy()
        if meter.joules() is None:
            raise Failed("NVML does not say")
        few, times = self.options.tokens, 8
        answers = 2  # one of them is the round that does not count
        if self.decoded:
            # Both runs, their starts, and as much again for what is not foreseen.
            room = self.programs.left() / 2 - 20
            times = min(times, int(room * self.decoded / (answers * few)) - 1)
        if times < 2:
            raise Failed("not run, no time left")
        used = []
        for tokens in (few, few * times):
            before = meter.joules()
            self.bench("bf16", 16, tokens)
            after = meter.joules()
            if before is None or after is None:
                raise Failed("NVML does not say")
            used.append(after - before)
        joules, tokens = used[1] - used[0], answers * few * (times - 1)
        if joules <= 0:
            raise Failed(f"{tokens} tokens more took {joules:.1f} J more")
        self.report.figure("tokens a joule, decoded alone", tokens / joules,
                           f"NVML's energy of two runs: {tokens} tokens and {joules:.0f} J apart")

    def round(self):
        self.report.round += 1
        self.read = self.decoded = self.kernels = None
        for name, figure in (("read rate", self.probe), ("decode", self.decode),
                             ("torch's decode", self.torch_decode),
                             ("gpu_kernels", self.all_kernels),
                             ("attention / SDPA", self.torch_attention),
                             ("INT8 prefill", self.int8_prefill),
                             ("first token", self.first_token), ("tokens a joule", self.energy)):
            try:
                figure()
            except NoGpu as error:
                if self.on_gpu and self.report.round == 1 and not self.report.values:
                    raise
                self.report.failed(name, error)
            except Failed as error:
                self.report.failed(name, error)
            except Exception as error:  # one figure's, whatever it is; the others are to come
                self.report.failed(name, repr(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=1, help="at most (1)")
    parser.add_argument("--seconds", type=float, default=540, help="for all of it (540)")
    parser.add_argument("--out", default=".", help="a folder for the figures as JSON lines (.)")
    parser.add_argument("--libraries", default="", help="folders to find cuBLASLt in, with colons")
    parser.add_argument("--tokens", type=int, default=CONTEXT - PROMPT)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a small shape on the GPU, too")
    options = parser.parse_args()
    # Programs are in sessions of their own: who ends this one has to end what runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    report = Report(out)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(pathlib.Path(folder), report, options.seconds)
        peers = Peers(options, pathlib.Path(folder), report, programs)
        try:
            for _ in range(options.rounds):
                begin = time.monotonic()
                peers.round()
                report.table()
                if programs.left() < 1.1 * (time.monotonic() - begin):
                    break
        except NoGpu as error:
            print(error if str(error).startswith("skipped") else f"skipped: {error}")
            sys.exit(77)
        finally:
            programs.stop()
    sys.exit(0 if report.complete else 1)


if __name__ == "__main__":
    main()
