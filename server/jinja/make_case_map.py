#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes case_map.cpp and char_class.cpp: what Python's str says of each code point."""
import pathlib
import unicodedata

FLAGS = ["Alpha", "Digit", "Printable", "Cased", "Ignorable"]


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


def fill(cells):
    lines = []
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 99:
            lines.append(line)
            line = "   "
        line += f" {cell},"
    lines.append(line)
    return "\n".join(lines)


def table(name, mapping):
    cells = [f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}" for a, b, s, d in runs(mapping)]
    return f"constexpr std::array<Run, {len(cells)}> {name} = {{{{\n{fill(cells)}\n}}}};\n"


def expansions(name, mapping):
    cells = []
    for code in range(0x110000):
        mapped = mapping(chr(code))
        if len(mapped) > 1:
            points = ", ".join(f"0x{ord(c):X}" for c in mapped)
            cells.append(f"{{0x{code:X}, {{{points}}}}}")
    return f"constexpr std::array<Expansion, {len(cells)}> {name} = {{{{\n{fill(cells)}\n}}}};\n"


def case_map():
    mappings = {"Upper": str.upper, "Lower": str.lower, "Title": str.title}
    tables = "\n".join(table(f"k{name}", mapping) + expansions(f"k{name}Long", mapping)
                       for name, mapping in mappings.items())
    return f"""// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py from Unicode {unicodedata.unidata_version}.
#include "server/jinja/case_map.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "server/jinja/text.h"

namespace sluice::jinja {{
namespace {{

// Code points first, first + stride, ..., last map to themselves plus delta.
struct Run {{
  char32_t first;
  char32_t last;
  uint32_t stride;
  int32_t delta;
}};

// A code point that becomes several; zeros fill up.
struct Expansion {{
  char32_t from;
  char32_t to[3];
}};

// clang-format off
{tables}// clang-format on

template <size_t N>
const Expansion* find_expansion(const std::array<Expansion, N>& expansions, char32_t value) {{
  const auto found = std::lower_bound(
      expansions.begin(), expansions.end(), value, [](const Expansion& e, char32_t v) {{
        return e.from < v;
      }});
  return found != expansions.end() && found->from == value ? &*found : nullptr;
}}

template <size_t N>
char32_t map_one(const std::array<Run, N>& runs, char32_t value) {{
  const auto run = std::lower_bound(
      runs.begin(), runs.end(), value, [](const Run& r, char32_t v) {{ return r.last < v; }});
  const bool mapped =
      run != runs.end() && value >= run->first && (value - run->first) % run->stride == 0;
  return mapped ? static_cast<char32_t>(static_cast<int32_t>(value) + run->delta) : value;
}}

template <size_t N, size_t M>
void map(const std::array<Run, N>& runs,
         const std::array<Expansion, M>& expansions,
         char32_t value,
         std::string& out) {{
  if (const Expansion* expansion = find_expansion(expansions, value)) {{
    for (const char32_t c : expansion->to) {{
      if (c != 0) append_utf8(out, c);
    }}
    return;
  }}
  append_utf8(out, map_one(runs, value));
}}

}}  // namespace

void append_case(std::string& out, char32_t value, LetterCase to) {{
  switch (to) {{
    case LetterCase::kUpper:
      return map(kUpper, kUpperLong, value, out);
    case LetterCase::kLower:
      return map(kLower, kLowerLong, value, out);
    case LetterCase::kTitle:
      return map(kTitle, kTitleLong, value, out);
  }}
}}

}}  // namespace sluice::jinja
"""


def classes(char):
    # str.lower() writes a final sigma after a cased character, ignorable ones between them or not.
    cased = (char + "Σ").lower().endswith("ς")
    ignorable = not cased and ("A" + char + "Σ").lower().endswith("ς")
    tests = [char.isalpha(), char.isdigit(), char.isprintable(), cased, ignorable]
    return sum(1 << bit for bit, test in enumerate(tests) if test)


def char_class():
    cells = []
    last = None
    for code in range(0x110000):
        flags = 0 if 0xD800 <= code < 0xE000 else classes(chr(code))
        if flags != last:
            cells.append(f"{{0x{code:X}, {flags}}}")
            last = flags
    return f"""// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py from Unicode {unicodedata.unidata_version}.
#include "server/jinja/char_class.h"

#include <algorithm>
#include <array>

namespace sluice::jinja {{
namespace {{

// From this code point on, up to the next row.
struct Row {{
  char32_t first;
  uint8_t classes;
}};

// clang-format off
constexpr std::array<Row, {len(cells)}> kRows = {{{{
{fill(cells)}
}}}};
// clang-format on

}}  // namespace

bool in_class(char32_t value, CharClass which) {{
  const auto after = std::upper_bound(
      kRows.begin(), kRows.end(), value, [](char32_t v, const Row& row) {{ return v < row.first; }});
  return ((after - 1)->classes & static_cast<uint8_t>(which)) != 0;
}}

}}  // namespace sluice::jinja
"""


def header():
    rows = "\n".join(f"  k{name} = 1U << {bit}," for bit, name in enumerate(FLAGS))
    return f"""// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py: the classes of characters that Python's str methods ask for.
#pragma once

#include <cstdint>

namespace sluice::jinja {{

enum class CharClass : uint8_t {{
{rows}
}};

bool in_class(char32_t value, CharClass which);

}}  // namespace sluice::jinja
"""


def main():
    here = pathlib.Path(__file__)
    here.with_name("case_map.cpp").write_text(case_map())
    here.with_name("char_class.cpp").write_text(char_class())
    here.with_name("char_class.h").write_text(header())


main()
