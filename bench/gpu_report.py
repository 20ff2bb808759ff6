#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/gpu.md from the JSON of runs on GPUs: what gpu_figures.py wrote there, and tables that a
person added. Each file is a chapter, the newest first; of files of one day the last given.
Usage: bench/gpu_report.py bench/gpu/*.json > bench/gpu.md

A file: card, driver, cuda, date, tree (the commit), notes (sentences); read_gb_per_second; decode
[{type, streams, prompt, output, tokens_per_second, ms_per_step, idle_us}], prefill [{type, tokens,
tokens_per_second}], profile [{kernel, launches, us, of_read}], serve {name: value}, links [{what,
bytes, us, gb_per_second}], failed {part: why}; tables [{title, note, columns, rows}]. All but card,
date and tree may be missing. A decode step is put beside its linear layers and attention where tables
have the columns of gpu_figures.py's kernel_tables.
"""
import json
import sys

HEAD = """# Figures of GPUs

Made by `python3 bench/gpu_report.py bench/gpu/*.json > bench/gpu.md`; a run of
[deploy](../deploy/README.md#on-a-machine-with-a-gpu) writes such a file. Each chapter is one card and says
of which commit its figures are; the newest is first. Random weights of Llama 8B's shape where no table says otherwise.
"""


def number(value):
    """As many digits as are worth reading; text as it is, a dash where nothing was measured."""
    if value is None:
        return "-"
    if not isinstance(value, (int, float)):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(columns, rows):
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(map(number, row)) + " |"
    yield ""


LAYERS = 32  # of Llama 8B's shape
OF_A_LAYER = ("qkv", "attention out", "gate and up", "down")


def microseconds(tables, columns):
    """What is in the tables' column `us`, by the columns in front of it, which these are."""
    found = {}
    for one in tables:
        width = len(columns)
        if one["columns"][:width + 1] == [*columns, "us"]:
            found.update({tuple(row[:width]): row[width] for row in one["rows"]})
    return found


def beside_kernels(run):
    """Of each decode step whose parts are in the tables: them alone in ms, and how much longer the
    step takes. The head is BF16 in every model."""
    linear = microseconds(run.get("tables", []), ["type", "layer", "rows"])
    attention = microseconds(run.get("tables", []), ["requests", "context"])
    for step in run.get("decode", []):
        streams = step["streams"]
        parts = [linear.get((step["type"], name, streams)) for name in OF_A_LAYER]
        parts.append(attention.get((streams, step.get("prompt"))))
        head = linear.get(("BF16", "head", streams))
        if head is None or None in parts:
            continue
        alone = 1e-3 * (LAYERS * sum(parts) + head)
        yield [step["type"], streams, step["ms_per_step"], alone, step["ms_per_step"] / alone]


def rows_of(entries, *keys):
    return [[entry.get(key) for key in keys] for entry in entries]


def chapter(run):
    yield f"## {run['card']}, {run['date']}"
    yield ""
    machine = [f"driver {run['driver']}" if "driver" in run else None,
               f"CUDA {run['cuda']}" if "cuda" in run else None, f"commit {run['tree']}"]
    yield ", ".join(filter(None, machine)) + "."
    if "read_gb_per_second" in run:
        yield f"A kernel that reads alone gets {number(run['read_gb_per_second'])} GB/s."
    yield from run.get("notes", [])
    yield ""
    if run.get("decode"):
        yield from table(
            ["decode", "streams", "prompt", "out", "tokens/s", "ms a step", "idle us a step"],
            rows_of(run["decode"], "type", "streams", "prompt", "output", "tokens_per_second",
                    "ms_per_step", "idle_us"))
    alone = list(beside_kernels(run))
    if alone:
        yield ("The same beside what its linear layers and attention take, each launched again and "
               "again by itself, over caches as long as the prompt:")
        yield ""
        yield from table(["decode", "streams", "ms a step", "layers and attention alone, ms",
                          "step / alone"], alone)
    if run.get("prefill"):
        yield from table(["prefill", "tokens", "tokens/s"],
                         rows_of(run["prefill"], "type", "tokens", "tokens_per_second"))
    if run.get("profile"):
        yield "A decode step of one stream by kernel (ncu: caches cold, clocks fixed, no graph):"
        yield ""
        total = sum(row["us"] for row in run["profile"])
        rows = [[f"`{row['kernel']}`", row["launches"], row["us"],
                 f"{100 * row['us'] / total:.1f}%",
                 None if row.get("of_read") is None else f"{100 * row['of_read']:.0f}%"]
                for row in run["profile"]]
        yield from table(["kernel", "launches", "us", "of the step", "of read"], rows)
    if run.get("serve"):
        yield from table(["under `bench serve`", ""], sorted(run["serve"].items()))
    if run.get("links"):
        yield from table(["between", "bytes", "us", "GB/s"],
                         rows_of(run["links"], "what", "bytes", "us", "gb_per_second"))
    if run.get("failed"):
        yield from table(["what has no figure", "why"], sorted(run["failed"].items()))
    for one in run.get("tables", []):
        yield f"### {one['title']}"
        yield ""
        if one.get("note"):
            yield one["note"]
            yield ""
        yield from table(one["columns"], one["rows"])


def report(runs):
    lines = [HEAD]
    for run in sorted(reversed(runs), key=lambda run: run["date"], reverse=True):
        lines.extend(chapter(run))
    return "\n".join(lines).rstrip() + "\n"


def main():
    runs = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            runs.append(json.load(file))
    sys.stdout.write(report(runs))


if __name__ == "__main__":
    main()
