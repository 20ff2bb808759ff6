#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens of cached int8 and fp8 rows from the PyPI packages numpy and torch.

    pip install numpy torch && python make_kv_goldens.py

Raw little-endian; the arithmetic is numpy's in float32, the e4m3 codes are torch.float8_e4m3fn's:
  kv.f32    rows of 64 floats     kv.int8 / kv.e4m3  their codes     kv.int8_scale / kv.e4m3_scale
  e4m3.f32  the value of each of the 256 codes
"""
import json
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20261121
WIDTH = 64


def save(name, array):
    (HERE / name).write_bytes(np.ascontiguousarray(array).tobytes())


def make_rows(rng):
    rows = rng.normal(0, 1, (200, WIDTH)).astype(np.float32)
    rows *= np.exp2(rng.integers(-40, 40, (200, 1))).astype(np.float32)
    rows[0] = 0
    rows[1] = -0.0
    rows[2] = np.float32(1e-45)  # 1 / scale overflows
    rows[3] = np.float32(3e38) * np.sign(rows[3])
    rows[4, 7] = np.inf
    rows[5, 63] = -np.inf
    rows[6, 0] = np.nan
    # Every half-way point of int8 (scale 1) and of e4m3 (scale 1), as far as a row has room.
    rows[7] = np.arange(WIDTH, dtype=np.float32) + np.float32(0.5)
    rows[7, 0] = 127
    rows[8] = -rows[7]
    values = np.array(codes_to_float(np.arange(0x7F, dtype=np.uint8)), np.float32)
    middles = (values[1:] + values[:-1]) / 2
    rows[9, :63], rows[9, 63] = middles[:63], 448
    rows[10, :63], rows[10, 63] = -middles[63:], 448
    rows[11] = 2.0 ** -np.arange(WIDTH)
    rows[12] = np.float32(1.2e-36)  # 1 / scale is finite, scale is near the smallest normal
    return rows


def codes_to_float(codes):
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()


def encode(rows, largest_code, to_codes):
    finite = np.isfinite(rows).all(axis=1)
    top = np.where(finite, np.abs(rows).max(axis=1), np.float32(0)).astype(np.float32)
    scale = top / np.float32(largest_code)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    usable = finite & np.isfinite(inverse)
    scaled = np.where(usable[:, None], rows, 0).astype(np.float32)
    scaled = scaled * np.where(usable, inverse, 0).astype(np.float32)[:, None]
    codes = to_codes(scaled)
    codes[~usable] = 0
    kept = np.where(usable, scale, np.float32(0)).astype(np.float32)
    kept[~finite] = np.nan
    return codes, kept


def main():
    rows = make_rows(np.random.default_rng(SEED))
    save("kv.f32", rows)
    codes, scale = encode(rows, 127, lambda x: np.rint(x).astype(np.int8))
    save("kv.int8", codes)
    save("kv.int8_scale", scale)
    codes, scale = encode(rows, 448, lambda x: torch.from_numpy(x).to(torch.float8_e4m3fn)
                          .view(torch.uint8).numpy().copy())
    save("kv.e4m3", codes)
    save("kv.e4m3_scale", scale)
    save("e4m3.f32", codes_to_float(np.arange(256, dtype=np.uint8)))
    (HERE / "kv_provenance.json").write_text(json.dumps(
        {"script": "tests/golden/quant/make_kv_goldens.py", "seed": SEED,
         "numpy": np.__version__, "torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
