# SPDX-License-Identifier: Apache-2.0
"""Random experts of MXFP4 for make_models.py, as transformers and GGUF store them."""
import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def quantize_experts(model, seed):
    """Random MXFP4 experts: codes and scales by tensor name; the model gets what transformers decodes."""
    generator = torch.Generator().manual_seed(seed)
    packed = {}
    for name, weight in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, columns, rows = weight.shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=generator,
                               dtype=torch.uint8)
        scales = torch.randint(122, 126, (experts, rows, columns // 32), generator=generator,
                               dtype=torch.uint8)
        with torch.no_grad():
            weight.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        packed[name + "_blocks"] = blocks
        packed[name + "_scales"] = scales
    return packed


def replace_experts(folder, packed):
    """Puts the codes in place of the floats in the saved checkpoint."""
    path = folder / "model.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if n + "_blocks" not in packed}
    save_file({**tensors, **packed}, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4",
                                     "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def ggml_blocks(codes, scales):
    """MXFP4 as GGUF stores it: the exponent, then byte i has elements i and i + 16."""
    elements = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    blocks = np.concatenate([scales[..., None], elements[..., :16] | elements[..., 16:] << 4], -1)
    return np.ascontiguousarray(blocks.reshape(*blocks.shape[:2], -1))
