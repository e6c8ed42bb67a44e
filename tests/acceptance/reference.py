"""The dense decoder written out in numpy and float64: what the variants of a config must give.

Follows the published definitions (Llama, Mistral, Qwen2, Qwen3), one sequence at a time, forward only.
"""

import math

from acceptance import np


def inverse_frequencies(config, head_dim):
    """(inverse frequencies [head_dim / 2], factor on cos and sin): default, linear, llama3 and yarn."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    plain = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if kind == "default":
        return plain, 1.0
    factor = rope["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    original = rope["original_max_position_embeddings"]
    if kind == "llama3":
        wavelength = 2 * math.pi / plain
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = np.clip((original / wavelength - low) / (high - low), 0, 1)
        return share * plain + (1 - share) * plain / factor, 1.0
    if kind == "yarn":
        fast, slow = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1

        def dimension(rotations):
            return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        first, last = dimension(fast), dimension(slow)
        if rope.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        ramp = np.clip((np.arange(head_dim // 2) - first) / max(last - first, 0.001), 0, 1)
        return (1 - ramp) * plain + ramp * plain / factor, rope.get("attention_factor") or 0.1 * math.log(
            factor
        ) + 1
    raise ValueError(kind)


def windows(config):
    """The sliding window of each layer, None where it sees everything before it."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config["model_type"] == "mistral":
        return [window] * layers
    if config["model_type"] == "llama" or not config.get("use_sliding_window"):
        return [None] * layers
    kinds = config.get("layer_types")
    if kinds:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    return [window if layer >= config["max_window_layers"] else None for layer in range(layers)]


def final_hidden(config, weights, ids):
    """[length, hidden] that the head sees, for one sequence of token ids."""
    weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or (
        128 if config["model_type"] == "qwen3" else config["hidden_size"] // heads
    )
    length = len(ids)
    position = np.arange(length)
    frequencies, scale = inverse_frequencies(config, head_dim)
    angles = np.outer(position, np.concatenate([frequencies, frequencies]))
    cos, sin = scale * np.cos(angles), scale * np.sin(angles)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[name]

    def linear(x, name):
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def rotate(x):
        half = head_dim // 2
        return x * cos[:, None] + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin[:, None]

    hidden = weights["model.embed_tokens.weight"][ids]
    for layer, window in enumerate(windows(config)):
        name = f"model.layers.{layer}."
        x = norm(hidden, name + "input_layernorm.weight")
        q = linear(x, name + "self_attn.q_proj").reshape(length, heads, head_dim)
        k = linear(x, name + "self_attn.k_proj").reshape(length, kv_heads, head_dim)
        v = linear(x, name + "self_attn.v_proj").reshape(length, kv_heads, head_dim)
        if name + "self_attn.q_norm.weight" in weights:
            q, k = norm(q, name + "self_attn.q_norm.weight"), norm(k, name + "self_attn.k_norm.weight")
        q, k = rotate(q), np.repeat(rotate(k), heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
        distance = position[:, None] - position[None]
        seen = (distance >= 0) & (distance < (window or length))
        scores = np.where(seen, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, np.repeat(v, heads // kv_heads, 1)).reshape(length, -1)
        hidden = hidden + linear(mixed, name + "self_attn.o_proj")
        x = norm(hidden, name + "post_attention_layernorm.weight")
        gate = linear(x, name + "mlp.gate_proj")
        hidden = hidden + linear(
            gate / (1 + np.exp(-gate)) * linear(x, name + "mlp.up_proj"), name + "mlp.down_proj"
        )
    return norm(hidden, "model.norm.weight")


def logits(config, weights, ids):
    """[length, vocabulary] for one sequence of token ids."""
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return final_hidden(config, weights, ids) @ head.astype(np.float64).T
