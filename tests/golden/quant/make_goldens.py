#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the goldens of tests/quant from the PyPI packages gguf and numpy.

    pip install gguf==0.19.0 numpy && python make_goldens.py

Every file is raw little-endian:
  <format>.blocks  blocks as a GGUF file stores them     <format>.f32  gguf.quants.dequantize of them
  encode.f32       rows of 32 floats                     encode.<format>  gguf.quants.quantize of them
  convert.f32      floats                                convert.f16 / convert.bf16  rounded to nearest even
"""
import json
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TYPES = {
    "f16": gguf.GGMLQuantizationType.F16,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
# Formats of which only decoding is held to gguf: {name: (type, offsets of the fp16 scales)}.
DECODED = {
    "bf16": (gguf.GGMLQuantizationType.BF16, []),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, [0]),
    "q5_0": (gguf.GGMLQuantizationType.Q5_0, [0]),
    "q5_1": (gguf.GGMLQuantizationType.Q5_1, [0, 2]),
    "q2_k": (gguf.GGMLQuantizationType.Q2_K, [80, 82]),
    "q3_k": (gguf.GGMLQuantizationType.Q3_K, [108]),
    "q4_k": (gguf.GGMLQuantizationType.Q4_K, [0, 2]),
    "q5_k": (gguf.GGMLQuantizationType.Q5_K, [0, 2]),
    "q6_k": (gguf.GGMLQuantizationType.Q6_K, [208]),
    "iq4_nl": (gguf.GGMLQuantizationType.IQ4_NL, [0]),
    "iq4_xs": (gguf.GGMLQuantizationType.IQ4_XS, [0]),
    "mxfp4": (gguf.GGMLQuantizationType.MXFP4, []),
}
# Zero, subnormals, normals, the largest, infinities, a quiet NaN; both signs.
EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF,
                  0x7C00, 0xFC00, 0x7E00]


def save(name, array):
    (HERE / name).write_bytes(np.ascontiguousarray(array).tobytes())


def q4_1_blocks(rng):
    halves = np.array(EXTREME_HALVES, np.uint16)
    scale, low = (a.reshape(-1) for a in np.meshgrid(halves, halves))
    usual = rng.normal(0, 0.1, (100, 2)).astype(np.float16).view(np.uint16)
    scale, low = np.concatenate([scale, usual[:, 0]]), np.concatenate([low, usual[:, 1]])
    codes = rng.integers(0, 256, (len(scale), 16), dtype=np.uint8)
    codes[0::7], codes[1::7] = 0x00, 0xFF
    return np.concatenate([scale[:, None].view(np.uint8), low[:, None].view(np.uint8), codes], axis=1)


def q8_0_blocks(rng):
    scale = np.concatenate([np.array(EXTREME_HALVES * 4, np.uint16),
                            rng.normal(0, 0.01, 100).astype(np.float16).view(np.uint16)])
    codes = rng.integers(-128, 128, (len(scale), 32), dtype=np.int8)
    codes[0::7], codes[1::7], codes[2::7] = -128, 127, 0
    return np.concatenate([scale[:, None].view(np.uint8), codes.view(np.uint8)], axis=1)


def f16_blocks(rng):
    # 1024 patterns spread over all 65536 (both signs, subnormals, infinities), without NaNs.
    halves = np.concatenate([np.array(EXTREME_HALVES[:-1], np.uint16),
                             np.arange(0, 65536, 64, dtype=np.uint32).astype(np.uint16)])
    halves = halves[~np.isnan(halves.view(np.float16))]
    return halves[None, : len(halves) // 2 * 2].view(np.uint8)


def random_blocks(rng, kind, scale_offsets):
    """Random bytes with blocks of all zeros and all ones, extreme scales in half of the blocks."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if elements == 1:
        return rng.integers(0, 256, (1, 2048), dtype=np.uint8)
    num_extreme = len(EXTREME_HALVES)
    count = 2 * num_extreme if elements == 256 else 6 * num_extreme
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[3], blocks[4] = 0, 0xFF
    usual = rng.normal(0, 0.02, (count, 2)).astype(np.float16).view(np.uint16)
    for i, offset in enumerate(scale_offsets):
        scales = usual[:, i].copy()
        # Both scales run through the extremes at different paces, so that pairs differ.
        scales[:num_extreme] = np.roll(EXTREME_HALVES, 5 * i)
        blocks[:, offset:offset + 2] = scales[:, None].view(np.uint8)
    if kind == gguf.GGMLQuantizationType.MXFP4:
        blocks[:8, 0] = [0, 1, 2, 3, 127, 128, 254, 255]
    return blocks


def encode_rows(rng):
    rows = rng.normal(0, 1, (96, 32)).astype(np.float32)
    rows *= np.exp2(rng.integers(-12, 10, (96, 1))).astype(np.float32)
    rows[0], rows[1], rows[2] = 0, 3.25, -0.0
    rows[3] = np.arange(32) - 16
    rows[4] = np.arange(32) * 0.5          # halves: the direction of rounding shows
    rows[5, :] = 0
    rows[5, 7] = 127                       # scale exactly 1
    rows[6] = np.linspace(-127, 127, 32) + 0.5
    rows[7] = rows[8] * 1e-6               # scales become fp16 subnormals
    return rows


def convert_floats(rng):
    bits = rng.integers(0, 2**32, 1500, dtype=np.uint64).astype(np.uint32)
    near = (rng.integers(0, 0x7C00, 1500).astype(np.uint16).view(np.float16).astype(np.float32))
    step = near.view(np.uint32)
    around = [step, step + 1, step + 0x0FFF, step + 0x1000, step + 0x1001, step | 0x80000000]
    edges = np.array([0, 0x80000000, 1, 0x33000000, 0x33000001, 0x32FFFFFF, 0x387FC000, 0x387FE000,
                      0x387FFFFF, 0x38800000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x7F7FFFFF,
                      0x7F800000, 0xFF800000, 0x7F7F8000, 0x7F7F7FFF, 0x00007FFF, 0x00008000,
                      0x00018000], np.uint32)
    floats = np.concatenate([bits, *around, edges]).view(np.float32)
    return floats[~np.isnan(floats)]


def to_bf16(floats):
    bits = floats.view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (high & 1 == 1))
    return (high + up).astype(np.uint16)


def main():
    rng = np.random.default_rng(20250101)
    with np.errstate(all="ignore"):
        for name, blocks in [("f16", f16_blocks(rng)), ("q4_1", q4_1_blocks(rng)),
                             ("q8_0", q8_0_blocks(rng))]:
            save(f"{name}.blocks", blocks)
            save(f"{name}.f32", gguf.quants.dequantize(blocks, TYPES[name]).astype(np.float32))
        for name, (kind, offsets) in DECODED.items():
            blocks = random_blocks(np.random.default_rng(int(kind)), kind, offsets)
            save(f"{name}.blocks", blocks)
            save(f"{name}.f32", gguf.quants.dequantize(blocks, kind).astype(np.float32))
        rows = encode_rows(rng)
        save("encode.f32", rows)
        for name, kind in TYPES.items():
            save(f"encode.{name}", gguf.quants.quantize(rows, kind))
        floats = convert_floats(rng)
        save("convert.f32", floats)
        save("convert.f16", floats.astype(np.float16))
        save("convert.bf16", to_bf16(floats))
    provenance = {"script": "tests/golden/quant/make_goldens.py", "seed": 20250101,
                  "numpy": np.__version__, "gguf": __import__("importlib.metadata").metadata.version("gguf")}
    (HERE / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
