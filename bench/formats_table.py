#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which number format runs where, how fast and how exact: measures, and makes bench/formats.md.

    python3 bench/formats_table.py measure build --quality Q.json ... > bench/formats/DATE.json
    python3 bench/formats_table.py table bench/formats/DATE.json > bench/formats.md

measure runs `build/bench/kernels --together` (2048 x 2048, shapes in turns by processor time, so that what
else the machine does slows all alike) and takes what `bench/quality.py --json` wrote of models in these
formats. table needs neither: the page is what it makes of the committed file, which a test holds it to.
"""
import argparse
import collections
import datetime
import json
import pathlib
import platform
import subprocess
import sys

ROWS = (1, 512)
FIRST = "1B o Q4_1"  # what the others are shares of
GPU_RAN, GPU_SHIM = "yes", "shim"
# Row of the page: name, shape of build/bench/kernels, bits of activations on a CPU, scheme of bench/quality.py,
# and whether a GPU has run its kernels.
FORMATS = (
    ("BF16, F16", "1B o BF16", "32", None, GPU_RAN),
    ("INT8: a scale per row, rows of int8", "1B o W8A8", "8", "int8", GPU_RAN),
    ("INT8: a scale per 32, zero points", "1B o INT8 per 32", "8, 16, 32", None, GPU_SHIM),
    ("FP8: a scale per matrix or row", "1B o FP8", "8, 16, 32", "fp8", GPU_SHIM),
    ("FP8: a scale per 128 x 128", "1B o FP8 block", "8, 16, 32", "fp8-block", GPU_SHIM),
    ("NVFP4", "1B o NVFP4", "8, 16, 32", "nvfp4", GPU_SHIM),
    ("MXFP4", "1B o MXFP4", "8, 16, 32", "mxfp4", GPU_SHIM),
    ("INT4: groups of 128 and longer", "1B o INT4", "8, 16, 32", "int4", GPU_SHIM),
    ("INT4: groups of 32 and 64", "1B o INT4 per 32", "8, 16, 32", None, GPU_SHIM),
    ("Q8_0", "1B o Q8_0", "8, 16, 32", "Q8_0", GPU_SHIM),
    ("Q6_K", "1B o Q6_K", "8, 16, 32", "Q6_K", GPU_SHIM),
    ("Q5_K", "1B o Q5_K", "8, 16, 32", "Q5_K_M", GPU_SHIM),
    ("Q5_0", "1B o Q5_0", "8, 16, 32", None, GPU_SHIM),
    ("Q4_K", "1B o Q4_K", "8, 16, 32", "Q4_K_M", GPU_SHIM),
    ("Q4_1", "1B o Q4_1", "8, 16, 32", None, GPU_SHIM),
    ("Q4_0", "1B o Q4_0", "8, 16, 32", "Q4_0", GPU_SHIM),
    ("IQ4_XS", "1B o IQ4_XS", "8, 16, 32", None, GPU_SHIM),
    ("Q3_K", "1B o Q3_K", "8, 16, 32", None, GPU_SHIM),
    ("Q2_K", "1B o Q2_K", "8, 16, 32", None, GPU_SHIM),
)
HEAD = """# Number formats

{date}, {machine}, {threads}, `build/bench/kernels --together`.

Bits a weight are those that kernels read, scales included. Speeds are a layer's of 2048 x 2048, of Q4_1's in
the same minutes: products a second with one row, where memory is the limit, and with 512. Activations are
what `--activation-bits` gives on a CPU, where every format runs; speeds are of its default. A GPU takes 8 bits
and, but for INT8 rows and FP8, 16 (BF16), of BF16 and F16 their own; *yes*: an H200 has run the kernels,
*shim*: the tests run them on the CPU, and no GPU has run them as they are.

KL is what `sluice quantize` at its defaults loses of {base} in nats, over {positions}
of a text in 32-bit activations, with the standard error; behind it the same with `--calibrate` and another text, and of what
the field's own tool writes ([quality_peers.py](quality_peers.py)): for INT4
gptqmodel, which reads that text as well, as modelopt does for the scale of NVFP4's inputs. Decoded weights equal those of the packages that write a scheme, bit
for bit (`scheme_goldens_test`, `quant_test`); instruction sets, threads, ranks and batches give the same
bits (`scheme_array_test`). [formats_table.py](formats_table.py) makes this page.

| format | bits | GPU | activations | 1 row | 512 rows | KL to BF16 | calibrated | theirs |
|---|---|---|---|---|---|---|---|---|
"""


def measure(build, quality):
    shapes = list(dict.fromkeys([FIRST] + [row[1] for row in FORMATS]))
    command = [str(build / "bench/kernels"), "--together", "--json", "--rows", ",".join(map(str, ROWS)),
               "--only", ",".join(shapes)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    speeds = {f"{row['shape']}, {row['rows']}": row for row in map(json.loads, lines)}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")
    rows = [row for path in quality for row in json.loads(path.read_text())]
    return {"date": str(datetime.date.today()), "machine": model or platform.machine(), "speeds": speeds,
            "quality": [{key: row[key] for key in ("scheme", "side", "kl", "kl_error", "positions", "bits")}
                        for row in rows], "command": " ".join(command[1:])}


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def positions_text(quality):
    """How many most formats have, and what others have instead."""
    counts = collections.Counter(row["positions"] for row in quality)
    usual = counts.most_common(1)[0][0]
    others = {}
    for row in quality:
        if row["positions"] != usual and row["scheme"] not in others.setdefault(row["positions"], []):
            others[row["positions"]].append(row["scheme"])
    behind = "; ".join(f"{count:,}: {', '.join(schemes)}" for count, schemes in sorted(others.items()))
    return f"{usual:,} positions" + (f" ({behind})" if others else "")


def table(record):
    quality = {(row["scheme"], row["side"]): row for row in record["quality"]}
    page = HEAD.format(date=record["date"], machine=record["machine"], threads=record["threads"],
                       base=record["base"], positions=positions_text(record["quality"]))
    for name, shape, activations, scheme, gpu in FORMATS:
        rates = [record["speeds"][f"{shape}, {rows}"] for rows in ROWS]
        kl = []
        for side in ("ours", "calibrated", "theirs"):
            row = quality.get((scheme, side))
            kl.append(f"{row['kl']:.3g} ± {row['kl_error']:.1g}" if row else "")
        page += (f"| {name} | {rates[0]['bits']:.2f} | {gpu} | {activations} | "
                 + " | ".join(number(rate["of_gops"]) for rate in rates) + f" | {' | '.join(kl)} |\n")
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("path", type=pathlib.Path, help="the build's folder, or the file that measure wrote")
    parser.add_argument("--quality", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--base", default="SmolLM2-135M")
    parser.add_argument("--threads", default="all threads")
    arguments = parser.parse_args()
    if arguments.what == "table":
        sys.stdout.write(table(json.loads(arguments.path.read_text())))
        return
    record = measure(arguments.path, arguments.quality) | {"base": arguments.base, "threads": arguments.threads}
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
