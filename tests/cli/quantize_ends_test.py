#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How `sluice quantize` ends: quantize_ends_test.py SLUICE. Signals, a full disk and wrong options leave nothing
beside the output's name; what SIGKILL leaves, the next run removes."""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

HIDDEN, WIDTH, HEADS, TOKENS = 512, 4096, 8, 64


def write_model(folder):
    """A model of Llama's architecture that takes some seconds."""
    os.mkdir(folder)
    config = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": 2,
              "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": TOKENS, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 512, "tie_word_embeddings": True}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    shapes = {"model.embed_tokens.weight": (TOKENS, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(2):
        name = f"model.layers.{layer}."
        shapes |= {f"{name}self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{name}mlp.gate_proj.weight": (WIDTH, HIDDEN), f"{name}mlp.up_proj.weight": (WIDTH, HIDDEN),
                   f"{name}mlp.down_proj.weight": (HIDDEN, WIDTH), f"{name}input_layernorm.weight": (HIDDEN,),
                   f"{name}post_attention_layernorm.weight": (HIDDEN,)}
    random.seed(1)
    # BF16: the upper halves of floats.
    pattern = b"".join(struct.pack("<f", random.gauss(0, 0.02))[2:] for _ in range(HIDDEN))
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        begin = len(data)
        data += pattern * (shape[0] if len(shape) == 2 else 1) * (shape[-1] // HIDDEN)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def start(sluice, model, *more, **options):
    return subprocess.Popen([sluice, "quantize", model, *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, **options)


def wait_for(folder, part):
    for _ in range(3000):
        if any(part in name for name in os.listdir(folder)):
            return
        time.sleep(0.02)
    raise AssertionError(f"{part} did not come: {os.listdir(folder)}")


def main():
    sluice = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_model("model")
        slow = ("out", "--to", "int4", "--threads", "1")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = start(sluice, "model", *slow)
            wait_for(folder, "unfinished")
            process.send_signal(number)
            assert process.wait(60) == 128 + number, process.returncode
            assert os.listdir(folder) == ["model"], (number, os.listdir(folder))

        limit = (1 << 20, 1 << 20)
        process = start(sluice, "model", *slow, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        error = process.communicate(timeout=60)[1]
        assert process.returncode == 1 and "File too large" in error, (process.returncode, error)
        assert os.listdir(folder) == ["model"], os.listdir(folder)

        process = start(sluice, "model", *slow)
        wait_for(folder, "unfinished")
        process.kill()
        process.wait()
        assert any("unfinished" in name for name in os.listdir(folder))
        done = start(sluice, "model", "out", "--to", "int8", "--report", "out/report.json")
        assert done.wait(60) == 0, done.communicate()
        assert sorted(os.listdir(folder)) == ["model", "out"], os.listdir(folder)
        with open("out/report.json", encoding="utf-8") as file:
            assert json.load(file)["calibration"] == "none"

        for report in ("no/such/report.json", "model"):
            process = start(sluice, "model", "other", "--to", "int4", "--report", report)
            error = process.communicate(timeout=60)[1]
            assert process.returncode != 0 and "--report " + report in error, error
            assert not os.path.exists("other")
    print("ok")


if __name__ == "__main__":
    main()
