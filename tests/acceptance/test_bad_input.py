"""Wrong input: status 1 (2 for failures while running), one sentence that names the fault, nothing left half-written."""

import json
import re
import resource
import shutil
import subprocess

import acceptance
from acceptance import Case, environment, fixture, np, run, train_rows, write_bytes


class Refusal(Case):
    def setUp(self):
        super().setUp()
        self.expected = fixture("llama")
        self.main = {name: self.expected[name] for name in ("input_ids", "labels", "loss_mask")}
        # Everything that a command writes goes here, and after a refusal nothing may be here.
        self.out = self.path("-out")
        self.out.mkdir()

    def judge(self, result, patterns, status, ranks):
        self.assertIn(result.status, status if isinstance(status, tuple) else (status,), f"\n{result}")
        lines = [line for line in result.err.splitlines() if line.strip()]
        messages = [line for line in lines if line.startswith("mgfl")]
        self.assertEqual(len(messages), 1, f"one message that starts with mgfl\n{result}")
        if ranks == 1:
            self.assertEqual(len(lines), 1, f"one line\n{result}")
        for pattern in patterns:
            self.assertRegex(messages[0], re.compile(pattern, re.IGNORECASE), f"\n{result}")
        for trace in ("terminate called", "what():", "frame #", "Exception raised from", "c10::", "Aborted", ".cpp:", "enforce fail"):
            self.assertNotIn(trace, result.err, f"\n{result}")
        left = [str(path.relative_to(self.out)) for path in self.out.rglob("*")]
        self.assertEqual(left, [], f"left behind\n{result}")

    def refused(self, arguments, *patterns, status=1, ranks=1, env=None):
        self.judge(run(*arguments, ranks=ranks, status=None, env=env, cwd=self.out), patterns, status, ranks)

    def score_refused(self, *patterns, model=None, source=None, flags=(), **options):
        source = self.main if source is None else source
        source = self.file(source) if isinstance(source, dict) else source
        model = model or acceptance.DATA / "llama"
        words = ("score", "--load-hf", model, "--input", source, "--output", self.out / "o.safetensors", *flags)
        self.refused(words, *patterns, **options)

    def train_refused(self, *patterns, data=None, load="--load-hf", source=None, flags=(), **options):
        given = {"--train-iters": 2, "--lr": 1e-3, "--save": self.out / "ck", "--save-hf": self.out / "hf"}
        given["--log-dir"] = self.out / "log"
        words = ["train", load, source or acceptance.DATA / "llama"]
        if data is None:
            data = train_rows(self.expected)
        data = self.file(data) if isinstance(data, dict) else data
        words += ["--data", *(data if isinstance(data, list) else [data])]
        for flag, value in given.items():
            if flag not in flags:
                words += [flag, value]
        self.refused([*words, *flags], *patterns, **options)

    def each(self, cases, refuse):
        """refuse(*case) for each named case, each as a test of its own."""
        for name, case in cases.items():
            with self.subTest(case=name):
                refuse(*case) if isinstance(case, tuple) else refuse(case)
            for path in self.out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


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
            "a list": ("[1, 2]",),
            "duplicate key": (text.replace('"vocab_size": 320', '"vocab_size": 320,\n"vocab_size": 320'), "vocab_size"),
            "duplicate nested key": (text.replace('"factor": 8.0', '"factor": 8.0, "factor": 8.0'), "factor"),
            "text after the end": (text + "}",),
        }

        def refuse(content, *patterns):
            folder = self.model_copy("llama")
            (folder / "config.json").write_text(content)
            self.score_refused("config.json", *patterns, model=folder)

        self.each(cases, refuse)

    def test_config_values(self):
        scaling = {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
        cases = {
            "unknown architecture": ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM"),
            "no architecture": ({"architectures": ...}, "architectures"),
            "architectures empty": ({"architectures": []}, "architectures"),
            "unknown rope type": ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "foo"),
            "unknown rope type, old key": ({"rope_scaling": {"type": "foo", "factor": 2.0}}, "foo"),
            "unknown rope type, new spelling": (
                {"rope_scaling": ..., "rope_theta": ..., "rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}},
                "foo",
            ),
            "llama3 without low_freq_factor": ({"rope_scaling": scaling}, "low_freq_factor"),
            "two thetas": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta"),
            "theta a string": ({"rope_theta": "10000"}, "rope_theta"),
            "theta zero": ({"rope_theta": 0}, "rope_theta"),
            "heads do not divide hidden": ({"head_dim": ..., "num_attention_heads": 10}, "48", "10"),
            "hidden 6, heads 4, no head_dim": ({"head_dim": None, "hidden_size": 6, "num_attention_heads": 4}, "6", "4"),
            "head_dim zero": ({"head_dim": 0}, "head_dim"),
            "head_dim negative": ({"head_dim": -8}, "head_dim"),
            "head_dim odd": ({"head_dim": 7}, "head_dim"),
            "head_dim a string": ({"head_dim": "8"}, "head_dim"),
            "head_dim other than the weights'": ({"head_dim": 16}, "q_proj|k_proj|v_proj|o_proj"),
            "kv heads 0": ({"num_key_value_heads": 0}, "num_key_value_heads"),
            "kv heads 4 of 6": ({"num_key_value_heads": 4}, "4", "6"),
            "no hidden_size": ({"hidden_size": ...}, "hidden_size"),
            "hidden_size null": ({"hidden_size": None}, "hidden_size"),
            "hidden_size negative": ({"hidden_size": -48}, "hidden_size"),
            "hidden_size real": ({"hidden_size": 48.5}, "hidden_size"),
            "hidden_size huge": ({"hidden_size": 2**62}, "hidden_size|embed_tokens"),
            "layers a string": ({"num_hidden_layers": "4"}, "num_hidden_layers"),
            "layers one more than the file's": ({"num_hidden_layers": 5}, r"model\.layers\.4\."),
            "layers one fewer than the file's": ({"num_hidden_layers": 3}, r"model\.layers\.3\."),
            "vocabulary 0": ({"vocab_size": 0}, "vocab_size"),
            "vocabulary other than the file's": ({"vocab_size": 319}, "319", "320"),
            "eps a string": ({"rms_norm_eps": "small"}, "rms_norm_eps"),
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
            "transposed": (put(q, lambda t: t["model.layers.1.mlp.up_proj.weight"].T), re.escape(q), "48", "96"),
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
            "same key twice": (two([entry("a", "[1]", "[16,20]"), entry("a", "[1]", "[20,24]")]), 8, "duplicate", "a"),
            "same shape twice": (
                '"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[16,20]}',
                4,
                "duplicate",
                "shape",
            ),
            "overlap": (two([entry("a", "[2]", "[16,24]"), entry("b", "[2]", "[20,28]")]), 12, "a|b"),
            "hole": (two([entry("a", "[1]", "[16,20]"), entry("b", "[1]", "[24,28]")]), 12, "b|8|20|24"),
            "trailing bytes": (entry("a", "[1]", "[16,20]"), 8, "20|24|4"),
            "the same bytes twice": (two([entry("a", "[1]", "[16,20]"), entry("b", "[1]", "[16,20]")]), 4, "a|b"),
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
            "two negative dimensions": (entry("a", "[-1,-1]", "[16,20]"), 4, "a", "-1"),
            "dimension real": (entry("a", "[1.0]", "[16,20]"), 4, "a"),
            "shape a number": (entry("a", "1", "[16,20]"), 4, "a"),
            "empty bytes of one element": (entry("a", "[1]", "[16,16]"), 0, "a"),
            "unknown dtype": (entry("a", "[1]", "[16,20]", "F31"), 4, "a", "F31"),
            "dtype missing": ('"a":{"shape":[1],"data_offsets":[16,20]}', 4, "a", "dtype"),
            "entry a number": ('"a":7', 0, "a"),
        }
        self.each(cases, self.refuse)

    def test_faulty_files(self):
        good = self.file({"input_ids": np.array([[5, 6]])}).read_bytes()
        cases = {
            "empty": b"",
            "seven bytes": good[:7],
            "length beyond the file": (10**15).to_bytes(8, "little") + good[8:],
            "length of 2^64 - 1": b"\xff" * 8 + good[8:],
            "length 0": bytes(8),
            "cut in the header": good[:30],
            "cut in the data": good[:-1],
            "not JSON": (4).to_bytes(8, "little") + b"abcd",
            "a list": (2).to_bytes(8, "little") + b"[]",
            "JSON cut": (9).to_bytes(8, "little") + b'{"a":{"dt',
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


class ScoreInput(Refusal):
    def test_tokens_out_of_range(self):
        def source(name, value, row=1, place=7):
            tensors = {key: tensor.copy() for key, tensor in self.main.items()}
            tensors[name][row, place] = value
            return tensors

        for name, value in (("input_ids", 320), ("input_ids", -1), ("input_ids", 2**40), ("labels", 320), ("labels", -5)):
            for ranks in (1, 2) if value == 320 else (1,):
                with self.subTest(name=name, value=value, ranks=ranks):
                    self.score_refused(str(value), "320", source=source(name, value), ranks=ranks)

    def test_shapes_and_names(self):
        ids = self.main["input_ids"]
        packed = {name: self.expected[f"packed.{name}"] for name in ("input_ids", "labels", "cu_seqlens")}
        bounds = packed["cu_seqlens"]

        def changed(**change):
            return {**packed, **{k: np.array(v) for k, v in change.items()}}

        mask = np.ones_like(ids)
        hole = mask.copy()
        hole[0, 5] = 0
        cases = {
            "no input_ids": ({"labels": ids}, "input_ids"),
            "real input_ids": ({"input_ids": ids.astype(np.float32)}, "input_ids", "F32|float"),
            "three dimensions": ({"input_ids": ids[None]}, "input_ids"),
            "labels of another shape": ({"input_ids": ids, "labels": ids[:, :-1]}, "labels"),
            "labels real": ({"input_ids": ids, "labels": ids.astype(np.float32)}, "labels"),
            "loss_mask of another shape": ({**self.main, "loss_mask": self.main["loss_mask"][:1]}, "loss_mask"),
            "loss_mask NaN": ({**self.main, "loss_mask": self.main["loss_mask"] * np.float32("nan")}, "loss_mask"),
            "position_ids of another shape": ({**self.main, "position_ids": ids[:, :3]}, "position_ids"),
            "mask with a hole": ({**self.main, "attention_mask": hole}, "attention_mask"),
            "mask of another shape": ({**self.main, "attention_mask": mask[:, :3]}, "attention_mask"),
            "mask of twos": ({**self.main, "attention_mask": mask * 2}, "attention_mask", "2"),
            "mask and cu_seqlens": ({**packed, "attention_mask": np.ones_like(packed["input_ids"])}, "attention_mask"),
            "bounds from 1": (changed(cu_seqlens=np.append(1, bounds[1:]).astype(np.int32)), "cu_seqlens"),
            "bounds decreasing": (changed(cu_seqlens=bounds[[0, 2, 1, 3, 4]]), "cu_seqlens"),
            "bounds too short": (changed(cu_seqlens=bounds[:-1]), "cu_seqlens", "27", "40"),
            "bounds too long": (changed(cu_seqlens=np.append(bounds, 41).astype(np.int32)), "cu_seqlens", "41", "40"),
            "bounds empty": (changed(cu_seqlens=bounds[:0]), "cu_seqlens"),
            "bounds with two rows": ({**self.main, "cu_seqlens": bounds}, "cu_seqlens"),
        }
        self.each(cases, lambda source, *patterns: self.score_refused(*patterns, source=source))
        self.score_refused("input_ids", "absent", flags=("--prefix", "absent."))

    def test_flags(self):
        cases = {
            "temperature 0": (("--temperature", 0), "temperature"),
            "temperature negative": (("--temperature", -1), "temperature"),
            "temperature nan": (("--temperature", "nan"), "temperature"),
            "micro-batch 0": (("--micro-batch-size", 0), "micro-batch-size"),
            "cap below the longest": (("--max-tokens-per-micro-batch", 39), "39", "40"),
            "cap 0": (("--max-tokens-per-micro-batch", 0), "max-tokens-per-micro-batch"),
            "two batch flags": (("--micro-batch-size", 1, "--max-tokens-per-micro-batch", 99), "micro-batch"),
            "two precisions": (("--bf16", "--fp16"), "bf16", "fp16"),
            "threads 0": (("--threads", 0), "threads"),
            "timeout negative": (("--timeout-seconds", -1), "timeout"),
            "unknown flag": (("--micro-batchsize", 1), "--micro-batchsize", "--micro-batch-size"),
            "misspelt flag": (("--temprature", 1), "--temprature", "--temperature"),
            "not a number": (("--temperature", "warm"), "temperature", "warm"),
            "no value": (("--prefix",), "prefix"),
            "tensor parallel": (("--tensor-model-parallel-size", 2), "tensor-model-parallel-size"),
            "pipeline parallel": (("--pipeline-model-parallel-size", 2), "pipeline-model-parallel-size"),
            "context parallel": (("--context-parallel-size", 2), "context-parallel-size"),
            "value head": (("--value-head",), "value-head"),
            "two sources": (("--load", acceptance.DATA / "llama"), "--load"),
            "two values": (("--temperature", 1, 2), "temperature|2"),
            "stray word": (("stray",), "stray"),
            "stray word before a flag": (("stray", "--logits"), "stray"),
        }
        self.each(cases, lambda flags, *patterns: self.score_refused(*patterns, flags=flags))

    def test_commands_and_required_flags(self):
        self.refused(("scroe", "--input", "x"), "scroe", "score")
        self.refused(("score", "--load-hf", acceptance.DATA / "llama", "--output", self.out / "o"), "--input")
        self.refused(("score", "--input", self.file(self.main), "--output", self.out / "o"), "--load-hf")

    def test_config_file(self):
        cases = {
            "unknown key": ("temprature = 1\n", "temprature", "temperature"),
            "not TOML": ("= = =\n", ".toml"),
            "not a number": ('temperature = "warm"\n', "temperature", "warm"),
            "a table that is no command": ("[scroe]\ntemperature = 1\n", "scroe|line 1"),
        }

        def refuse(text, *patterns):
            path = self.path(".toml")
            path.write_text(text)
            self.score_refused(*patterns, flags=("--config", path))

        self.each(cases, refuse)
        self.score_refused("nowhere.toml", flags=("--config", self.folder / "nowhere.toml"))

    def test_config_file_that_is_right(self):
        path = self.path(".toml")
        path.write_text("temperature = 0.5\nmicro-batch-size = 2\n")
        got = self.score("llama", self.main, "--config", path)
        self.same_bits(got, self.score("llama", self.main, "--temperature", 0.5, "--micro-batch-size", 2))
        over = self.score("llama", self.main, "--config", path, "--temperature", 2)
        self.same_bits(over, self.score("llama", self.main, "--temperature", 2, "--micro-batch-size", 2))
        printed = run(
            "score", "--load-hf", acceptance.DATA / "llama", "--input", self.file(self.main), "--output", "o",
            "--config", path, "--temperature", 2, "--print-config")  # fmt: skip
        again = self.path(".toml")
        again.write_text(printed.out)
        output = self.path(".safetensors")
        run("score", "--config", again, "--output", output)
        self.same_bits(acceptance.read(output), over)

    def test_vendor_that_is_not_there(self):
        self.score_refused("musa", env={"MG_FL_PREFER": "musa"})
        self.score_refused("musa", env={"MG_FL_PREFER": "musa"}, ranks=2)

    def test_generate(self):
        ids = self.main["input_ids"][:, :5].copy()

        def refuse(source, flags, *patterns):
            words = ("generate", "--load-hf", acceptance.DATA / "llama", "--input", self.file(source))
            self.refused((*words, "--output", self.out / "o.safetensors", *flags), *patterns)

        new = ("--max-new-tokens", 2)
        cases = {
            "no length": ({"input_ids": ids}, (), "max-new-tokens"),
            "length negative": ({"input_ids": ids}, ("--max-new-tokens", -1), "max-new-tokens"),
            "token": ({"input_ids": np.where(ids == ids[1, 2], 999, ids)}, new, "999", "320"),
            "top-p 2": ({"input_ids": ids}, (*new, "--top-p", 2), "top-p"),
            "top-k negative": ({"input_ids": ids}, (*new, "--top-k", -1), "top-k"),
            "empty prompt": ({"input_ids": ids, "attention_mask": 0 * ids}, new, "attention_mask|prompt|empty"),
        }
        self.each(cases, refuse)

    def test_generate_beyond_all_memory(self):
        words = ("generate", "--load-hf", acceptance.DATA / "llama", "--input", self.file(self.main))
        words = (*words, "--output", self.out / "o.safetensors", "--max-new-tokens", 10**12)
        self.refused(words, "memory|max-new-tokens|max_position_embeddings", status=(1, 2))


class TrainInput(Refusal):
    def test_tokens_out_of_range(self):
        """Named before anything is trained on it, also where another rank or a later step would meet it."""
        for ranks in (1, 2):
            for name, value in (("input_ids", 320), ("labels", -7)):
                with self.subTest(name=name, value=value, ranks=ranks):
                    rows = {key: tensor.copy() for key, tensor in train_rows(self.expected).items()}
                    rows[name][1, 3] = value
                    flags = ("--no-shuffle", "--global-batch-size", 2)
                    self.train_refused(str(value), "320", data=rows, flags=flags, ranks=ranks)

    def test_jsonl(self):
        good = json.dumps({"input_ids": [5, 6, 7, 8]})
        cases = {
            "token": ('{"input_ids": [5, 999, 7]}', "999", "320"),
            "token negative": ('{"input_ids": [5, -1, 7]}', "-1"),
            "label": ('{"input_ids": [5, 6], "labels": [6, 999]}', "999", "320"),
            "broken": ('{"input_ids": [5, 6', "2"),
            "trailing comma": ('{"input_ids": [5, 6,]}', "2"),
            "duplicate key": ('{"input_ids": [5, 6], "input_ids": [5, 6]}', "2", "input_ids"),
            "no input_ids": ('{"text": "hello"}', "2", "input_ids"),
            "labels of another length": ('{"input_ids": [5, 6], "labels": [6]}', "2", "labels"),
            "mask of another length": ('{"input_ids": [5, 6], "loss_mask": [1]}', "2", "loss_mask"),
            "real token": ('{"input_ids": [5, 6.5]}', "2", "input_ids"),
            "token a string": ('{"input_ids": ["5"]}', "2", "input_ids"),
            "a list": ("[5, 6]", "2"),
            "token beyond 64 bits": ('{"input_ids": [5, 36893488147419103232]}', "2|36893488147419103232"),
        }

        def refuse(line, *patterns):
            path = self.path(".jsonl")
            path.write_text(f"{good}\n{line}\n{good}\n")
            self.train_refused(re.escape(path.name), *patterns, data=path, flags=("--no-shuffle", "--global-batch-size", 3))

        self.each(cases, refuse)
        empty = self.path(".jsonl")
        empty.write_text("")
        self.train_refused(re.escape(empty.name), data=empty)

    def test_rows(self):
        rows = train_rows(self.expected)
        cases = {
            "no input_ids": ({"labels": rows["labels"]}, "input_ids"),
            "labels of another shape": ({**rows, "labels": rows["labels"][:, 1:]}, "labels"),
            "no rows": ({"input_ids": rows["input_ids"][:0]}, "input_ids|rows|samples|empty"),
        }
        self.each(cases, lambda data, *patterns: self.train_refused(*patterns, data=data))

    def test_missing_files(self):
        self.train_refused("nowhere", data=self.folder / "nowhere")
        self.train_refused("nowhere.jsonl", data=self.folder / "nowhere.jsonl")
        self.train_refused("nowhere.safetensors", data=self.folder / "nowhere.safetensors")
        self.train_refused("nowhere", flags=("--eval-data", self.folder / "nowhere.jsonl"))
        self.train_refused("nowhere", source=self.folder / "nowhere")
        self.train_refused("nowhere", load="--load", source=self.folder / "nowhere")
        self.train_refused("nowhere", load="--init-from", source=self.folder / "nowhere.json")

    def test_flags(self):
        cases = {
            "batch 3 of micro-batches of 2": (("--global-batch-size", 3, "--micro-batch-size", 2), "3", "2"),
            "batch 0": (("--global-batch-size", 0), "global-batch-size"),
            "iterations negative": (("--train-iters", -1), "train-iters"),
            "lr negative": (("--lr", -1), "--lr"),
            "lr nan": (("--lr", "nan"), "--lr"),
            "lr infinite": (("--lr", "inf"), "--lr"),
            "floor above the peak": (("--min-lr", 1), "min.lr"),
            "warm-up negative": (("--lr-warmup-iters", -1), "lr-warmup-iters"),
            "decay negative": (("--lr-decay-iters", -1), "lr-decay-iters"),
            "unknown style": (("--lr-decay-style", "cosin"), "cosin", "cosine"),
            "WSD without its length": (("--lr-decay-style", "WSD"), "wsd"),
            "beta 1.5": (("--adam-beta2", 1.5), "adam-beta2"),
            "decay of weights negative": (("--weight-decay", -0.1), "weight-decay"),
            "clip negative": (("--clip-grad", -1), "clip-grad"),
            "eps negative": (("--adam-eps", -1e-8), "adam-eps"),
            "interval 0": (("--save-interval", 0), "save-interval"),
            "tensor parallel": (("--tensor-model-parallel-size", 2), "tensor-model-parallel-size"),
            "dropout": (("--attention-dropout", 0.1), "attention-dropout"),
        }
        self.each(cases, lambda flags, *patterns: self.train_refused(*patterns, flags=flags))
        self.train_refused("3", "2", flags=("--global-batch-size", 3), ranks=2)

    def test_degenerate_schedules_are_refused_or_finite(self):
        """L2: warm-up as long as the decay or longer, no decay at all: an error or finite numbers, never NaN."""
        for number, flags in enumerate(
            (
                ("--lr-warmup-iters", 2, "--lr-decay-iters", 2),
                ("--lr-warmup-iters", 3, "--lr-decay-iters", 2),
                ("--lr-decay-iters", 0),
                ("--lr-decay-style", "WSD", "--lr-wsd-decay-iters", 0),
            )
        ):
            with self.subTest(flags=flags):
                log = self.folder / f"log{number}"
                words = ["train", "--load-hf", acceptance.DATA / "llama", "--data", self.file(train_rows(self.expected))]
                result = run(*words, "--train-iters", 3, "--lr", 1e-3, "--log-dir", log, *flags, status=None)
                if result.status == 0:
                    for line in acceptance.metrics(log):
                        self.assertTrue(np.isfinite(line["lr"]) and np.isfinite(line["loss"]), line)
                else:
                    self.judge(result, ("warmup|decay",), 1, 1)

    def test_checkpoints(self):
        save = self.folder / "save"
        rows = self.file(train_rows(self.expected))
        words = ["train", "--load-hf", acceptance.DATA / "llama", "--data", rows, "--train-iters", 2, "--lr", 1e-3]
        run(*words, "--save", save, "--save-interval", 1)
        latest = max(path for path in save.iterdir() if path.is_dir())
        files = [path for path in sorted(latest.iterdir()) if path.is_file()]

        def refuse(spoil, *patterns):
            copy = self.path("-save")
            shutil.copytree(save, copy)
            spoil(copy)
            self.train_refused(*patterns, data=rows, load="--load", source=copy)

        def cut(name):
            def apply(folder):
                path = folder / latest.name / name
                path.write_bytes(path.read_bytes().rstrip(b"\n")[:-1])

            return apply

        cases = {f"{path.name} cut": (cut(path.name), re.escape(path.name)) for path in files}
        for path in files:
            if path.name not in ("manifest.json",):
                cases[f"no {path.name}"] = (
                    lambda folder, name=path.name: (folder / latest.name / name).unlink(),
                    re.escape(path.name),
                )
        cases["nothing in it"] = (lambda folder: shutil.rmtree(folder) or folder.mkdir(), "-save")
        self.each(cases, refuse)
        # What is not the newest checkpoint may be taken where that one is incomplete, but never silently.
        mark = "latest_checkpointed_iteration.txt"
        for name, spoil in {
            "the latest is not there": lambda folder: shutil.rmtree(folder / latest.name),
            "mark unreadable": lambda folder: (folder / mark).write_text("soon"),
            "mark of another iteration": lambda folder: (folder / mark).write_text("77"),
            "no manifest": lambda folder: (folder / latest.name / "manifest.json").unlink(),
        }.items():
            with self.subTest(case=name):
                copy = self.path("-save")
                shutil.copytree(save, copy)
                spoil(copy)
                again = ["train", "--load", copy, "--data", rows, "--train-iters", 2, "--lr", 1e-3]
                result = run(*again, status=None)
                self.assertIn(result.status, (0, 1), f"\n{result}")
                said = [line for line in result.err.splitlines() if line.startswith("mgfl") and copy.name in line]
                self.assertEqual(len(said), 1, f"a line about the checkpoint\n{result}")
        with self.subTest(case="two ranks"):
            copy = self.path("-save")
            shutil.copytree(save, copy)
            cut("exp_avg.safetensors" if (latest / "exp_avg.safetensors").exists() else files[0].name)(copy)
            self.train_refused(latest.name, data=rows, load="--load", source=copy, ranks=2)


class IndexedFiles(Refusal):
    """K2: two sequences of 3 and 2 int32 tokens, spoilt in every way."""

    def build(self, **change):
        parts = {
            "magic": b"MMIDIDX\0\0",
            "version": np.uint64(1).tobytes(),
            "code": bytes([4]),
            "sequences": np.uint64(2).tobytes(),
            "documents": np.uint64(3).tobytes(),
            "lengths": np.array([3, 2], np.int32).tobytes(),
            "pointers": np.array([0, 12], np.int64).tobytes(),
            "bounds": np.array([0, 1, 2], np.int64).tobytes(),
            "bin": np.arange(5, 10, dtype=np.int32).tobytes(),
            "cut": None,
            **change,
        }
        data, cut = parts.pop("bin"), parts.pop("cut")
        prefix = self.path("-data")
        if data is not None:
            prefix.with_name(prefix.name + ".bin").write_bytes(data)
        prefix.with_name(prefix.name + ".idx").write_bytes(b"".join(parts.values())[:cut])
        return prefix

    def refuse(self, change, *patterns):
        prefix = self.build(**change)
        flags = ("--seq-length", 2, "--no-shuffle")
        self.train_refused(re.escape(prefix.name), *patterns, data=prefix, flags=flags)

    def test_correct_files_are_taken(self):
        prefix = self.build()
        words = ("train", "--load-hf", acceptance.DATA / "llama", "--data", prefix, "--seq-length", 2)
        run(*words, "--no-shuffle", "--train-iters", 2, "--lr", 0)

    def test_faults(self):
        i64 = lambda *numbers: np.array(numbers, np.int64).tobytes()
        u64 = lambda number: np.uint64(number).tobytes()
        cases = {
            "bin too short": ({"bin": bytes(16)}, "20", "16"),
            "bin too long": ({"bin": bytes(24)}, "20", "24"),
            "bin empty": ({"bin": b""}, "20"),
            "bin missing": ({"bin": None}, r"\.bin"),
            "idx empty": ({"cut": 0}, r"\.idx"),
            "idx cut in the head": ({"cut": 20}, r"\.idx"),
            "idx cut after the sizes": ({"cut": 34 + 8}, r"\.idx"),
            "idx cut by a byte": ({"cut": -1}, r"\.idx"),
            "wrong magic": ({"magic": b"NNIDIDX\0\0"}, r"\.idx"),
            "version 2": ({"version": u64(2)}, r"\.idx", "version", "2"),
            "dtype code 99": ({"code": bytes([99])}, r"\.idx", "99"),
            "dtype code 6, a real": ({"code": bytes([6])}, r"\.idx|\.bin"),
            "pointer 8 for 12": ({"pointers": i64(0, 8)}, r"\.idx", "8", "12"),
            "pointer negative": ({"pointers": i64(0, -12)}, r"\.idx", "-12"),
            "pointer huge": ({"pointers": i64(0, 2**62)}, r"\.idx"),
            "length negative": ({"lengths": np.array([3, -2], np.int32).tobytes()}, r"\.idx", "-2"),
            "last document 3 of 2": ({"bounds": i64(0, 1, 3)}, r"\.idx", "3", "2"),
            "documents decreasing": ({"bounds": i64(0, 2, 1)}, r"\.idx"),
            "sequences 2^60": ({"sequences": u64(2**60)}, r"\.idx"),
            "sequences 2^63": ({"sequences": u64(2**63)}, r"\.idx"),
            "documents 2^61": ({"documents": u64(2**61)}, r"\.idx"),
            "documents 0": ({"documents": u64(0), "bounds": b""}, r"\.idx"),
            "bytes after the end": ({"bounds": i64(0, 1, 2, 2)}, r"\.idx"),
            "no document": (
                {"sequences": u64(0), "documents": u64(1), "lengths": b"", "pointers": b"", "bounds": i64(0), "bin": b""},
                "document|empty|sequence|token",
            ),
            "token of the vocabulary's size": ({"bin": np.array([5, 6, 320, 8, 9], np.int32).tobytes()}, "320"),
            "token negative": ({"bin": np.array([5, 6, -3, 8, 9], np.int32).tobytes()}, "-3", "320"),
        }
        self.each(cases, self.refuse)

    def test_prefix_and_blend(self):
        prefix = self.build()
        prefix.with_name(prefix.name + ".idx").unlink()
        self.train_refused(r"\.idx", data=prefix)
        good = self.build()
        flags = ("--seq-length", 2)
        self.train_refused("weight|prefix|blend", data=[0.3, good, 0.7], flags=flags)
        self.train_refused("-0.3|weight", data=["-0.3", good, 0.7, good], flags=flags)
        self.train_refused("nowhere", data=[0.3, good, 0.7, self.folder / "nowhere"], flags=flags)
        self.train_refused("0", data=[0, good, 0, good], flags=flags)
        self.train_refused("seq-length", data=good, flags=("--seq-length", 0))


class Output(Refusal):
    def limited(self, arguments, size):
        """Runs the program where no file may grow beyond size bytes: a full disk, as far as it can tell."""
        words = acceptance.command(arguments)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        # Python ignores SIGXFSZ; the program inherits that, so that its writes fail with an error number.
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(),
                              preexec_fn=limit, restore_signals=False, timeout=60)  # fmt: skip
        return acceptance.Result(words, done.returncode, done.stdout, done.stderr)

    def test_places_that_cannot_be_written(self):
        source = self.file(self.main)
        plain = self.path("-plain")
        plain.write_text("kept")
        folder = self.path("-folder")
        folder.mkdir()
        words = ("score", "--load-hf", acceptance.DATA / "llama", "--input", source, "--output")
        self.refused((*words, plain / "o.safetensors"), "o.safetensors", status=(1, 2))
        self.refused((*words, folder), re.escape(folder.name), status=(1, 2))
        self.refused((*words, self.folder / "nowhere" / "o.safetensors"), "nowhere", status=(1, 2))
        for flag in ("--save", "--save-hf", "--log-dir"):
            with self.subTest(flag=flag):
                self.train_refused(re.escape(plain.name), flags=(flag, plain / "inside"), status=(1, 2))
                self.train_refused(re.escape(plain.name), flags=(flag, plain), status=(1, 2))
        self.train_refused(re.escape(plain.name), flags=("--save", plain / "inside"), ranks=2, status=(1, 2))
        self.assertEqual(plain.read_text(), "kept")
        self.assertEqual(list(folder.iterdir()), [])

    def test_full_disk_leaves_what_was_there(self):
        source = self.file(self.main)
        output = self.folder / "kept.safetensors"
        output.write_bytes(b"an older result")
        words = ("score", "--load-hf", acceptance.DATA / "llama", "--input", source, "--output", output, "--logits")
        self.judge(self.limited(words, 4096), ("kept.safetensors",), 2, 1)
        self.assertEqual(output.read_bytes(), b"an older result")
        others = [path.name for path in self.folder.iterdir() if path.name.startswith("kept") or path.name[0] == "."]
        self.assertEqual(others, ["kept.safetensors"])

    def test_full_disk_while_saving(self):
        rows = self.file(train_rows(self.expected))
        words = ["train", "--load-hf", acceptance.DATA / "llama", "--data", rows, "--train-iters", 1, "--lr", 1e-3]
        for flag in ("--save", "--save-hf"):
            with self.subTest(flag=flag):
                target = self.folder / f"target{flag}"
                run(*words, flag, target)
                before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
                words[words.index("--train-iters") + 1] = 2
                result = self.limited([*words, flag, target], 100_000)
                self.assertEqual(result.status, 2, f"{result}")
                messages = [line for line in result.err.splitlines() if line.startswith("mgfl")]
                self.assertEqual(len(messages), 1, f"{result}")
                self.assertIn(target.name, messages[0])
                after = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
                self.assertEqual(sorted(map(str, after)), sorted(map(str, before)))
                self.assertEqual(after, before)


class TwoRanks(Refusal):
    """One message, once, whichever rank meets the fault."""

    def test_faults_that_all_ranks_or_one_rank_meet(self):
        broken = self.model_copy("llama")
        (broken / "config.json").write_text("{")
        self.score_refused("config.json", model=broken, ranks=2)
        self.score_refused("nowhere", model=self.folder / "nowhere", ranks=2)
        self.score_refused("nowhere", source=self.folder / "nowhere.safetensors", ranks=2)
        short = self.model_copy("llama", weights=lambda t: t.pop("model.norm.weight"))
        self.score_refused("model.norm.weight", model=short, ranks=2)
        self.score_refused("--nonsense", flags=("--nonsense",), ranks=2)
        self.train_refused("nowhere", data=self.folder / "nowhere", ranks=2)
        output = ("--output", self.folder / "nowhere" / "o.safetensors")
        words = ("score", "--load-hf", acceptance.DATA / "llama", "--input", self.file(self.main), *output)
        self.refused(words, "nowhere", ranks=2, status=(1, 2))


if __name__ == "__main__":
    acceptance.main()
