"""Wrong model folders and wrong safetensors files: refused in one sentence that names the fault."""

import json
import re

import acceptance
from acceptance import fixture, np, write_bytes
from refusal import Refusal


class ModelFolder(Refusal):
    def test_missing_and_broken_files(self):
        nowhere = self.folder / "nowhere"
        self.score_refused("nowhere", model=nowhere)
        self.score_refused("model.safetensors", model=acceptance.DATA / "llama" / "model.safetensors")
        bare = self.model_copy("llama")
        (bare / "config.json").unlink()
        self.score_refused("config.json", model=bare)
        unweighted = self.model_copy("llama")
        (unweighted / "model.safetensors").unlink()
        self.score_refused("safetensors", model=unweighted)

    def test_broken_json(self):
        text = (acceptance.DATA / "llama" / "config.json").read_text()
        cases = {
            "truncated": (text[: len(text) // 2],),
            "trailing comma": (text.rstrip()[:-1].rstrip() + ",\n}",),
            "empty": ("",),
            "duplicate key": (
                text.replace('"vocab_size": 320', '"vocab_size": 320,\n"vocab_size": 320'),
                "vocab_size",
            ),
            "duplicate nested key": (text.replace('"factor": 8.0', '"factor": 8.0, "factor": 8.0'), "factor"),
            "text after the end": (text + "}",),
        }

        def refuse(content, *patterns):
            folder = self.model_copy("llama")
            (folder / "config.json").write_text(content)
            self.score_refused("config.json", *patterns, model=folder)

        self.each(cases, refuse)

    def test_config_values(self):
        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
        cases = {
            "unknown architecture": ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM"),
            "no architecture": ({"architectures": ...}, "architectures"),
            "unknown rope type": ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "foo"),
            "unknown rope type, new spelling": (
                {
                    "rope_scaling": ...,
                    "rope_theta": ...,
                    "rope_parameters": {"rope_type": "foo", "rope_theta": 1e4},
                },
                "foo",
            ),
            "llama3 without low_freq_factor": ({"rope_scaling": scaling}, "low_freq_factor"),
            "two thetas": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta"),
            "theta a string": ({"rope_theta": "10000"}, "rope_theta"),
            "heads do not divide hidden": ({"head_dim": ..., "num_attention_heads": 10}, "48", "10"),
            "hidden 6, heads 4, no head_dim": (
                {"head_dim": None, "hidden_size": 6, "num_attention_heads": 4},
                "6",
                "4",
            ),
            "head_dim zero": ({"head_dim": 0}, "head_dim"),
            "head_dim negative": ({"head_dim": -8}, "head_dim"),
            "head_dim odd": ({"head_dim": 7}, "head_dim"),
            "head_dim other than the weights'": ({"head_dim": 16}, "q_proj|k_proj|v_proj|o_proj"),
            "kv heads 0": ({"num_key_value_heads": 0}, "num_key_value_heads"),
            "kv heads 4 of 6": ({"num_key_value_heads": 4}, "4", "6"),
            "no hidden_size": ({"hidden_size": ...}, "hidden_size"),
            "hidden_size null": ({"hidden_size": None}, "hidden_size"),
            "hidden_size negative": ({"hidden_size": -48}, "hidden_size"),
            "hidden_size huge": ({"hidden_size": 2**62}, "hidden_size|embed_tokens"),
            "layers a string": ({"num_hidden_layers": "4"}, "num_hidden_layers"),
            "layers one more than the file's": ({"num_hidden_layers": 5}, r"model\.layers\.4\."),
            "layers one fewer than the file's": ({"num_hidden_layers": 3}, r"model\.layers\.3\."),
            "vocabulary other than the file's": ({"vocab_size": 319}, "319", "320"),
            "unknown activation": ({"hidden_act": "frobnicate"}, "frobnicate"),
            "tie a number": ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        }

        def refuse(change, *patterns):
            folder = self.model_copy("llama", change=change)
            self.score_refused(folder.name, *patterns, model=folder)

        self.each(cases, refuse)

    def test_weights(self):
        q = "model.layers.1.self_attn.q_proj.weight"
        bias = "model.layers.1.self_attn.q_proj.bias"
        norm = "model.layers.2.input_layernorm.weight"

        def put(name, change):
            return lambda tensors: tensors.__setitem__(name, change(tensors))

        cases = {
            "transposed": (
                put(q, lambda t: t["model.layers.1.mlp.up_proj.weight"].T),
                re.escape(q),
                "48",
                "96",
            ),
            "flat": (put(q, lambda t: t[q].ravel()), re.escape(q), "2304"),
            "norm of another size": (put(norm, lambda t: t[norm][:-1]), re.escape(norm), "47", "48"),
            "missing": (lambda t: t.pop(q), re.escape(q)),
            "missing head": (lambda t: t.pop("lm_head.weight"), "lm_head.weight"),
            "extra bias": (put(bias, lambda t: t[q][:, 0]), re.escape(bias)),
            "integers": (put(q, lambda t: t[q].astype(np.int64)), re.escape(q), "I64|int64"),
        }

        def refuse(change, *patterns):
            folder = self.model_copy("llama", weights=change)
            self.score_refused(folder.name, *patterns, model=folder)

        self.each(cases, refuse)

    def test_qwen2_without_its_bias(self):
        name = "model.layers.0.self_attn.k_proj.bias"
        self.score_refused(re.escape(name), model=self.model_copy("qwen2", weights=lambda t: t.pop(name)))

    def test_shards_and_index(self):
        second = "model-00002-of-00002.safetensors"

        def missing(folder):
            (folder / second).unlink()

        def truncated_shard(folder):
            content = (folder / second).read_bytes()
            (folder / second).write_bytes(content[:-1])

        def truncated_index(folder):
            index = folder / "model.safetensors.index.json"
            index.write_text(index.read_text()[:-20])

        def edit(change):
            def apply(folder):
                index = folder / "model.safetensors.index.json"
                content = json.loads(index.read_text())
                change(content)
                index.write_text(json.dumps(content))

            return apply

        moved = "model.norm.weight"

        def swap(content):
            other = {second: "model-00001-of-00002.safetensors"}
            content["weight_map"][moved] = other.get(content["weight_map"][moved], second)

        cases = {
            "shard missing": (missing, second, r"model\.|lm_head"),
            "shard cut by a byte": (truncated_shard, second),
            "index cut": (truncated_index, "model.safetensors.index.json"),
            "no weight_map": (edit(lambda c: c.pop("weight_map")), "index.json", "weight_map"),
            "tensor in the other shard": (edit(swap), re.escape(moved)),
            "tensor in no shard": (
                edit(lambda c: c["weight_map"].__setitem__("model.extra.weight", second)),
                r"model\.extra\.weight",
            ),
            "shard outside the folder": (
                edit(lambda c: c["weight_map"].__setitem__(moved, "../elsewhere.safetensors")),
                "elsewhere",
            ),
        }

        def refuse(spoil, *patterns):
            folder = self.model_copy("qwen3")
            spoil(folder)
            source = {"input_ids": fixture("qwen3")["input_ids"]}
            self.score_refused(*patterns, model=folder, source=source)

        self.each(cases, refuse)


class Safetensors(Refusal):
    """cases I1 to I4, with headers written by hand behind a correct input_ids."""

    ids = np.array([[5, 6]], np.int64).tobytes()

    def refuse(self, entries, size, *patterns):
        """entries: the text of more header entries; their offsets count from 16, behind input_ids."""
        path = self.path(".safetensors")
        head = '"input_ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]}'
        write_bytes(path, f"{{{head},{entries}}}", self.ids + bytes(size))
        self.score_refused(re.escape(path.name), *patterns, source=path)

    def test_faulty_headers(self):
        def entry(name, shape, offsets, dtype="F32"):
            return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'

        two = ",".join
        cases = {
            "same key twice": (
                two([entry("a", "[1]", "[16,20]"), entry("a", "[1]", "[20,24]")]),
                8,
                "duplicate",
                "a",
            ),
            "same shape twice": (
                '"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[16,20]}',
                4,
                "duplicate",
                "shape",
            ),
            "overlap": (two([entry("a", "[2]", "[16,24]"), entry("b", "[2]", "[20,28]")]), 12, "a|b"),
            "hole": (two([entry("a", "[1]", "[16,20]"), entry("b", "[1]", "[24,28]")]), 12, "b|8|20|24"),
            "trailing bytes": (entry("a", "[1]", "[16,20]"), 8, "20|24|4"),
            "the same bytes twice": (
                two([entry("a", "[1]", "[16,20]"), entry("b", "[1]", "[16,20]")]),
                4,
                "a|b",
            ),
            "shape larger than the bytes": (entry("a", "[1000,1000]", "[16,20]"), 4, "a", "1000"),
            "product wraps to 0": (entry("a", "[8589934592,8589934592]", "[16,16]"), 0, "a", "8589934592"),
            "dimension beyond 64 bits": (entry("a", "[36893488147419103232]", "[16,16]"), 0, "a"),
            "offsets reversed": (entry("a", "[1]", "[20,16]"), 4, "a", "20", "16"),
            "offset negative": (entry("a", "[1]", "[-4,0]"), 4, "a", "-4"),
            "offset real": (entry("a", "[1]", "[16,20.0]"), 4, "a"),
            "one offset": (entry("a", "[1]", "[16]"), 4, "a"),
            "three offsets": (entry("a", "[1]", "[16,20,24]"), 8, "a"),
            "offsets a string": (entry("a", "[1]", '"0"'), 4, "a"),
            "offsets behind the end": (entry("a", "[2]", "[16,24]"), 4, "a"),
            "dimension negative": (entry("a", "[-1]", "[16,20]"), 4, "a", "-1"),
            "dimension real": (entry("a", "[1.0]", "[16,20]"), 4, "a"),
            "empty bytes of one element": (entry("a", "[1]", "[16,16]"), 0, "a"),
            "unknown dtype": (entry("a", "[1]", "[16,20]", "F31"), 4, "a", "F31"),
            "dtype missing": ('"a":{"shape":[1],"data_offsets":[16,20]}', 4, "a", "dtype"),
        }
        self.each(cases, self.refuse)

    def test_faulty_files(self):
        good = self.file({"input_ids": np.array([[5, 6]])}).read_bytes()
        cases = {
            "empty": b"",
            "length beyond the file": (10**15).to_bytes(8, "little") + good[8:],
            "length of 2^64 - 1": b"\xff" * 8 + good[8:],
            "cut in the header": good[:30],
            "cut in the data": good[:-1],
            "not JSON": (4).to_bytes(8, "little") + b"abcd",
            "a list": (2).to_bytes(8, "little") + b"[]",
            "not UTF-8": (6).to_bytes(8, "little") + b'{"\xff":1',
            "deeply nested": (200000).to_bytes(8, "little") + b"[" * 200000,
        }

        def refuse(content):
            path = self.path(".safetensors")
            path.write_bytes(content)
            self.score_refused(re.escape(path.name), source=path)

        self.each(cases, refuse)
        folder = self.model_copy("llama")
        (folder / "model.safetensors").write_bytes(good[:30])
        self.score_refused("model.safetensors", model=folder)

    def test_unusual_but_right(self):
        """I2, I4: any order in the header, empty tensors in every place, scalars."""
        path = self.path(".safetensors")
        header = {
            "late": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]},
            "end": {"dtype": "F32", "shape": [3, 0], "data_offsets": [20, 20]},
            "middle": {"dtype": "F32", "shape": [0, 3], "data_offsets": [16, 16]},
            "input_ids": {"dtype": "I64", "shape": [1, 2], "data_offsets": [0, 16]},
            "first": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]},
            "__metadata__": {"format": "pt"},
        }
        write_bytes(path, header, self.ids + bytes(4))
        got = self.score("llama", path)
        wanted = self.score("llama", {"input_ids": np.array([[5, 6]])})
        self.same_bits(got, wanted)
        spaced = self.path(".safetensors")
        write_bytes(spaced, json.dumps({"input_ids": header["input_ids"]}) + "   ", self.ids)
        self.same_bits(self.score("llama", spaced), wanted)
        empty = self.path(".safetensors")
        write_bytes(empty, "{}")
        self.score_refused(re.escape(empty.name), "input_ids", source=empty)


if __name__ == "__main__":
    acceptance.main()
