#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The two pictures of README.md: throughput over streams, and the path of a request.

usage: bench/pictures.py [--check]

The plot has the rows of cpu.md's table of EPYC Zen 5. Writes bench/throughput.svg and server/path.svg;
--check compares them with what would be written, and ends with status 1 where they differ.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FONT = 'font-family="sans-serif"'
INK, FAINT = "#24292f", "#d0d7de"
COLOURS = {"Sluice": "#0969da", "llama.cpp, same file": "#bc4c00", "its best file": "#9a6700",
           "vLLM": "#8250df"}


def table():
    """{name: {streams: tokens/s}} of the decode rows of the table below the heading's words."""
    text = (ROOT / "bench/cpu.md").read_text(encoding="utf-8")
    text = text[text.index("EPYC Zen 5 (family 26, model 2)"):]
    lines = [line for line in text[text.index("\n| |"):].split("\n\n")[0].splitlines() if line]
    names = [cell.strip() for cell in lines[0].strip("|").split("|")]
    series = {name: {} for name in COLOURS}
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        streams = re.match(r"decode, (\d+) stream", cells[0])
        for name, cell in zip(names, cells):
            if streams and name in series:
                series[name][int(streams[1])] = float(cell.split()[0])
    return series


def document(width, height, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">', f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts,
        "</svg>", ""])


def text(x, y, words, size=13, anchor="start", colour=INK, weight="normal"):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return (f'<text x="{x:g}" y="{y:g}" {FONT} font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}" fill="{colour}">{words}</text>')


def line(x1, y1, x2, y2, colour=FAINT, width=1, marker=""):
    return (f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
            f'stroke-width="{width}"{marker}/>')


def throughput():
    series = table()
    streams = sorted(next(iter(series.values())))
    left, right, top, bottom = 70, 560, 50, 320
    most = 3500

    def at(number, value):
        return (left + (right - left) * streams.index(number) / (len(streams) - 1),
                bottom - (bottom - top) * value / most)

    parts = [text(left, 24, "Tokens a second over streams", 15, weight="bold"),
             text(left, 41, "SmolLM2-135M, two cores of an EPYC Zen 5", 12)]
    for value in range(0, most + 1, 500):
        y = at(streams[0], value)[1]
        parts += [line(left, y, right, y), text(left - 8, y + 4, f"{value:,}", 12, "end")]
    for number in streams:
        parts.append(text(at(number, 0)[0], bottom + 20, str(number), 12, "middle"))
    parts.append(text((left + right) / 2, bottom + 42, "streams", 12, "middle"))
    lowest = 0
    for name, values in sorted(series.items(), key=lambda item: -item[1][streams[-1]]):
        colour = COLOURS[name]
        points = [at(number, value) for number, value in sorted(values.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        label = {"its best file": "llama.cpp, its best file", "vLLM": "vLLM, BF16",
                 "Sluice": "Sluice, Q4_1", "llama.cpp, same file": "llama.cpp, Q4_1"}[name]
        lowest = max(points[-1][1] + 4, lowest + 16)
        parts.append(text(right + 12, lowest, label, 12, colour=colour, weight="bold"))
    return document(740, 380, parts)


PATH = [
    # column, row, title, below
    (0, 0, "client", "HTTP or gRPC"),
    (1, 0, "server/", "checks, template, tokenizer"),
    (2, 0, "engine/", "one thread, one step after another"),
    (2, 1, "scheduler/", "who gets how many tokens"),
    (2, 2, "kvcache/", "blocks, cached prefixes"),
    (3, 1, "kernels/", "the batch, CPU or GPU"),
    (3, 2, "quant/", "weights' formats"),
    (1, 1, "server/", "tokens to text, streams"),
]
ARROWS = [((0, 0), (1, 0), "request"), ((1, 0), (2, 0), "ValidRequest"), ((2, 0), (2, 1), ""),
          ((2, 1), (2, 2), ""), ((2, 1), (3, 1), "batch"), ((3, 1), (3, 2), ""),
          ((2, 0), (1, 1), "outputs"), ((1, 1), (0, 0), "events")]


def path():
    width, height, gap_x, gap_y, left, top = 200, 62, 90, 46, 20, 20

    def corner(cell):
        return left + cell[0] * (width + gap_x), top + cell[1] * (height + gap_y)

    parts = ['<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
             'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#57606a"/></marker>'
             "</defs>"]
    for start, end, words in ARROWS:
        (x1, y1), (x2, y2) = corner(start), corner(end)
        if start[0] == end[0]:
            x1, x2, y1 = x1 + width / 2, x2 + width / 2, y1 + height
        elif start[1] == end[1]:
            x1, y1, y2 = x1 + width, y1 + height / 2, y2 + height / 2
        else:  # back, one row below or above
            is_down = end[1] > start[1]
            x1, y1 = x1 + (20 if is_down else 0), y1 + (height if is_down else height / 2)
            x2, y2 = x2 + (width if is_down else width - 40), y2 + (height / 2 if is_down else height)
        parts.append(line(x1, y1, x2, y2, "#57606a", 1.5, ' marker-end="url(#head)"'))
        if words:
            is_back = start[0] > end[0]
            parts.append(text((x1 + x2) / 2 - (10 if is_back else 0),
                              (y1 + y2) / 2 - (2 if is_back else 6), words, 11,
                              "end" if is_back else "middle", "#57606a"))
    for column, row, title, below in PATH:
        x, y = corner((column, row))
        parts += [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#f6f8fa" '
                  f'stroke="#57606a"/>',
                  text(x + width / 2, y + 26, title, 15, "middle", weight="bold"),
                  text(x + width / 2, y + 46, below, 11, "middle")]
    return document(4 * width + 3 * gap_x + 2 * left, 3 * height + 2 * gap_y + 2 * top, parts)


def main():
    wrong = 0
    for name, made in (("bench/throughput.svg", throughput()), ("server/path.svg", path())):
        file = ROOT / name
        if "--check" not in sys.argv:
            file.write_text(made, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != made:
            print(f"{name} is not what bench/pictures.py makes", file=sys.stderr)
            wrong = 1
    sys.exit(wrong)


if __name__ == "__main__":
    main()
