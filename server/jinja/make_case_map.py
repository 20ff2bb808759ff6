#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes case_map.cpp: runs of code points that share one distance to their other case."""
import pathlib
import unicodedata


def runs(mapping):
    found = []
    for code in range(0x110000):
        mapped = mapping(chr(code))
        if len(mapped) != 1 or ord(mapped) == code:
            continue
        delta = ord(mapped) - code
        if found and found[-1][3] == delta:
            first, last, stride, _ = found[-1]
            step = code - last
            if step <= 2 and (first == last or step == stride):
                found[-1] = (first, code, step, delta)
                continue
        found.append((code, code, 1, delta))
    return found


def table(name, mapping):
    rows = runs(mapping)
    cells = [f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}" for a, b, s, d in rows]
    lines = []
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 99:
            lines.append(line)
            line = "   "
        line += f" {cell},"
    lines.append(line)
    body = "\n".join(lines)
    return f"constexpr std::array<Run, {len(rows)}> {name} = {{{{\n{body}\n}}}};\n"


def main():
    text = f"""// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py from Unicode {unicodedata.unidata_version}.
#include "server/jinja/case_map.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace sluice::jinja {{
namespace {{

// Code points first, first + stride, ..., last map to themselves plus delta.
struct Run {{
  char32_t first;
  char32_t last;
  uint32_t stride;
  int32_t delta;
}};

// clang-format off
{table("kUpper", str.upper)}
{table("kLower", str.lower)}// clang-format on

template <size_t N>
char32_t map(const std::array<Run, N>& runs, char32_t value) {{
  const auto run = std::lower_bound(
      runs.begin(), runs.end(), value, [](const Run& r, char32_t v) {{ return r.last < v; }});
  if (run == runs.end() || value < run->first || (value - run->first) % run->stride != 0) {{
    return value;
  }}
  return static_cast<char32_t>(static_cast<int32_t>(value) + run->delta);
}}

}}  // namespace

char32_t to_upper(char32_t value) {{ return map(kUpper, value); }}

char32_t to_lower(char32_t value) {{ return map(kLower, value); }}

}}  // namespace sluice::jinja
"""
    pathlib.Path(__file__).with_name("case_map.cpp").write_text(text)


main()
