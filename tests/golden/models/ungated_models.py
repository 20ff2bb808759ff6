# SPDX-License-Identifier: Apache-2.0
"""Rows of make_models.py whose feed-forward halves have no gate and whose norms have biases (engine/models/ungated.cpp)."""
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Rows like those of MODELS there: (transformers class prefix, gguf architecture or None, overrides, storage type)
MODELS = {
    "phi2": ("Phi", "phi2", dict(
        num_hidden_layers=3, num_key_value_heads=4, layer_norm_eps=1e-3, hidden_act="gelu_new",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}), "F16"),
    "starcoder2": ("Starcoder2", "starcoder2", dict(
        num_hidden_layers=3, norm_epsilon=1e-3, use_bias=True, sliding_window=None,
        tie_word_embeddings=True), "F16"),
    "starcoder2-window": ("Starcoder2", None, dict(
        use_bias=False, sliding_window=9), "BF16"),
    "gpt-neox": ("GPTNeoX", "gptneox", dict(
        num_hidden_layers=3, num_key_value_heads=4, layer_norm_eps=1e-3, rope_parameters={
            "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}), "F16"),
    "gpt-neox-sequential": ("GPTNeoX", None, dict(
        num_key_value_heads=4, use_parallel_residual=False, hidden_act="gelu_new",
        attention_bias=False), "BF16"),
    "falcon": ("Falcon", "falcon", dict(
        num_hidden_layers=3, multi_query=True, parallel_attn=True, bias=False,
        new_decoder_architecture=False, layer_norm_epsilon=1e-3, ffn_hidden_size=128,
        tie_word_embeddings=True), "F16"),
    "falcon-norms": ("Falcon", "falcon", dict(
        num_kv_heads=2, new_decoder_architecture=True, bias=False, ffn_hidden_size=128), "F16"),
    "falcon-one-norm": ("Falcon", None, dict(
        num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1, bias=True,
        ffn_hidden_size=96), "BF16"),
    "gpt2": ("GPT2", "gpt2", dict(
        num_hidden_layers=3, layer_norm_epsilon=1e-3, n_positions=48, tie_word_embeddings=True), "F16"),
    "starcoder": ("GPTBigCode", "starcoder", dict(
        num_hidden_layers=3, layer_norm_epsilon=1e-3, n_positions=48, n_inner=96, tie_word_embeddings=True), "F16"),
    "gptj": ("GPTJ", None, dict(num_hidden_layers=3, layer_norm_epsilon=1e-3, rotary_dim=4), "F16"),
    "bloom": ("Bloom", "bloom", dict(
        n_embed=48, num_attention_heads=6, num_hidden_layers=3, layer_norm_epsilon=1e-3, seq_length=256,
        tie_word_embeddings=True), "F16"),
    "opt": ("OPT", None, dict(
        num_hidden_layers=3, ffn_dim=40, max_position_embeddings=48, word_embed_proj_dim=32,
        do_layer_norm_before=True, tie_word_embeddings=True), "F16"),
}
ARCHITECTURES = {row[1] for row in MODELS.values()}
PREFIXES = {row[0] for row in MODELS.values()}
# Keys of other families' configurations, which these classes would store.
FOREIGN = {"GPT2": ("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
           "OPT": ("head_dim", "num_key_value_heads", "intermediate_size"),
           "GPTBigCode": ("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
           "GPTJ": ("head_dim", "num_key_value_heads", "intermediate_size"),
           "Bloom": ("head_dim", "num_key_value_heads", "intermediate_size", "hidden_size", "max_position_embeddings"),
           "Dbrx": ("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings",
                    "hidden_size", "num_attention_heads", "num_hidden_layers"),
           "Falcon": ("head_dim", "num_key_value_heads", "intermediate_size"),
           "GPTNeoX": ("head_dim", "num_key_value_heads")}


def engines(common):
    values = {key: value for key, value in common.items() if key != "max_position_embeddings"}
    return [("engine-positions", "GPT2", "gpt2", dict(values, n_positions=2048, n_inner=64)),
            ("engine-distances", "Bloom", "bloom", dict(values, n_embed=96, num_attention_heads=6))]


def model_name(prefix):
    return "GPT2LMHeadModel" if prefix == "GPT2" else prefix + "ForCausalLM"


def common(prefix, values):
    return {key: value for key, value in values.items()
            if key not in FOREIGN.get(prefix, ()) and not (key == "head_dim" and prefix in PREFIXES)}


def converted(architecture, config, name, array, result):
    """Puts what llama.cpp's converter rearranges; None: it is done."""
    if array is None:
        return None
    if ".act_fn." in name:
        XIELU.setdefault(name.rpartition(".")[2], {})[int(name.split(".")[2])] = float(array.item())
        return None
    if "_layernorm.norms." in name:  # one of each head
        stem, _, head = name.removesuffix(".weight").partition(".norms.")
        place = "blk." + name.split(".")[2] + (".attn_q_norm" if ".q_" in stem else ".attn_k_norm") + ".weight"
        rows = [*result.get(place, ()), array]
        assert len(rows) == int(head) + 1, name
        result[place] = np.stack(rows)
        return None
    if architecture == "gpt2" and array.ndim == 2 and ".h." in name:
        return array.T
    if "query_key_value" in name:
        heads = config.num_attention_heads
        kv_heads = heads
        if architecture == "falcon":
            kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1
        rows = array.reshape(kv_heads, heads // kv_heads + 2, -1, *array.shape[1:])
        parts = [rows[:, :-2], rows[:, -2:-1], rows[:, -1:]]
        return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])
    if name.startswith("transformer.word_embeddings_layernorm"):
        result["token_embd_norm." + name.rpartition(".")[2]] = array
        return None
    layer, end = "blk." + name.split(".")[2] if ".h." in name else "", name.rpartition(".")[2]
    for stem, ours in (("ln_attn", "attn_norm_2"), ("post_attention_layernorm", "ffn_norm")):
        if architecture in ("falcon", "bloom") and f".{stem}." in name:
            result[f"{layer}.{ours}.{end}"] = array
            return None
    return array


# What stands in front of tensors' names for transformers and not in the files that were published first.
FRONT = {"gpt2": "transformer.", "bloom": "transformer.", "opt": "model."}


def publish(name, folder, config):
    """Rewrites what transformers saved as it was published: shorter names, masks beside the weights, older keys."""
    if name not in (*FRONT, "gpt-neox"):
        return
    tensors = load_file(folder / "model.safetensors")
    tensors = {key.removeprefix(FRONT.get(name, "")): tensor for key, tensor in tensors.items()}
    for layer in range(3):
        if name == "gpt2":
            tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, 48, 48))
        if name == "gpt-neox":
            place = f"gpt_neox.layers.{layer}.attention."
            tensors[place + "bias"] = torch.tril(torch.ones(1, 1, 8, 8)).bool()
            tensors[place + "masked_bias"] = torch.tensor(-1e9)
            tensors[place + "rotary_emb.inv_freq"] = torch.ones(2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if name == "gpt-neox":
        rope = config.pop("rope_parameters")
        config.update(rotary_pct=rope["partial_rotary_factor"], rotary_emb_base=rope["rope_theta"])


def usual_place(name):
    """A layer's experts where most families have them."""
    for place in (".feed_forward", ".block_sparse_moe", ".mixer"):
        name = name.replace(place, ".mlp")
    return name.replace("backbone.", "model.")


def with_long_factors(config, model, count):
    """transformers' Phi-3.5-MoE takes short factors and the scale of long ones; its own code does not."""
    if config.model_type == "phimoe":
        model.model.rotary_emb.rope_init_fn = lambda config: ROPE_INIT_FUNCTIONS["longrope"](
            config, seq_len=count)
    return model


def distant(config, model):
    """Makes scores fall with distance instead of rotating, as Baichuan's 13B does (its
    modeling_baichuan.py: _get_interleave(), _gen_alibi_mask())."""
    if not getattr(config, "has_distances", False):
        return model
    heads = config.num_attention_heads
    whole = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2 ** (-4 * (i + 1) / whole) for i in range(0, 2 * whole, 2)][:heads - whole]
    forward = model.forward

    def masked(tokens):
        count = tokens.shape[1]
        future = torch.triu(torch.full((count, count), -torch.inf), 1)
        return forward(tokens, attention_mask=(
            torch.tensor(slopes)[:, None, None] * torch.arange(count) + future)[None])

    model.forward = masked
    model.model.rotary_emb.forward = lambda x, position_ids: (
        torch.ones(1, x.shape[1], config.head_dim), torch.zeros(1, x.shape[1], config.head_dim))
    return model


def is_norm(name, weight):
    """Whether weights are near 1, those of each head too."""
    is_of_heads = name.endswith(("q_norm.weight", "k_norm.weight"))
    return (weight.dim() == 1 or is_of_heads) and "norm" in name and name.endswith("weight")


def fill_buffer(name, values):
    if name.endswith("act_fn.beta"):  # each layer's own
        values.fill_(0.25 + int(name.split(".")[2]) / 8)


XIELU = {}  # numbers by key and layer


def add_xielu(writer):
    for key, add in (("alpha_p", writer.add_xielu_alpha_p), ("alpha_n", writer.add_xielu_alpha_n),
                     ("beta", writer.add_xielu_beta), ("eps", writer.add_xielu_eps)):
        add([XIELU[key][layer] for layer in sorted(XIELU[key])])


def add_keys(writer, architecture, config):
    if architecture == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)


def kv_heads(architecture, config):
    if architecture == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    if architecture == "starcoder":
        return 1
    return config.num_attention_heads if architecture in ("gpt2", "bloom") else None
