#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of an H100's tensor cores, from the recorded vectors of
github.com/north-numerical-computing/MATLAB-tensor-core (Khattak and Mikaitis; BSD 2-Clause, data
only, LICENCE is theirs): every 40th of its 5,000 of a type. A line: type, 16 a, 16 b (16-bit words),
c, d (32-bit words). h200.txt beside it is by record.cu, which says how.
Usage: make.py CLONE > h100.txt
"""
import struct
import sys


def word16(text, kind):
    bits = int(text, 16)
    if kind == "bf16":
        return bits >> 16
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    return struct.unpack("<H", struct.pack("<e", value))[0]


def main():
    for kind in ("bf16", "fp16"):
        folder = f"{sys.argv[1]}/model_validation/H100/{kind}"
        columns = []
        for name in (f"a_H100_{kind}", f"b_H100_{kind}", "c_H100_fp32", "d_H100_fp32"):
            with open(f"{folder}/{name}.txt", encoding="ascii") as file:
                columns.append([line.split() for line in file if line.strip()])
        for a, b, c, d in list(zip(*columns))[::40]:
            words = [f"{word16(x, kind):04x}" for x in a + b] + [f"{int(x[0], 2):08x}" for x in (c, d)]
            print(kind, *words)


if __name__ == "__main__":
    main()
