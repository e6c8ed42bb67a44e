"""Variants of config.json that no fixture has, against the model written out in numpy."""

import json

import acceptance
import reference
from acceptance import MODELS_IN_DOUBLE, Case, fixture, np, read_model, run


class Variants(Case):
    def agrees(self, model, change=None, weights=None, config="config.json", means=None, differs=True):
        """The program in double equals the reference; means: what the change amounts to."""
        ids = fixture(model)["input_ids"][0]
        folder = self.model_copy(model, config, change, weights)
        got = self.score(folder, {"input_ids": ids[None]}, "--fp64", "--logits")["logits"][0]
        content = json.loads((folder / "config.json").read_text())
        tensors = read_model(folder)[0]
        self.near(got, reference.logits({**content, **(means or {})}, tensors, ids), 1e-10)
        plain = json.loads((acceptance.DATA / model / "config.json").read_text())
        if weights is None:
            changed = np.abs(got - reference.logits(plain, tensors, ids)).max() > 1e-3
            self.assertEqual(changed, differs, "the variant tells itself from the fixture")

    def each(self, model, variants):
        for name, options in variants.items():
            with self.subTest(model=model, variant=name):
                self.agrees(model, **options)

    def test_the_reference_gives_the_fixtures(self):
        for model in MODELS_IN_DOUBLE:
            for name in ("config.json", "config_alt.json"):
                config = json.loads((acceptance.DATA / model / name).read_text())
                tensors, expected = read_model(acceptance.DATA / model)[0], fixture(model, double=True)
                for ids, logits in zip(expected["input_ids"], expected["logits"]):
                    self.near(reference.logits(config, tensors, ids), logits, 1e-10, model)

    def test_mistral_in_double(self):
        self.agrees("mistral", differs=False)
        self.agrees("mistral", config="config_alt.json", differs=False)

    def test_rope(self):
        llama3 = {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        self.each(
            "llama",
            {
                "factor 32": {"change": {"rope_scaling": llama3}},
                "the old key type": {
                    "change": {"rope_scaling": {"type": "llama3", **{**llama3, "rope_type": "llama3"}}}
                },
                "no scaling": {"change": {"rope_scaling": None}},
                "theta an integer": {"change": {"rope_scaling": None, "rope_theta": 500000}},
                "new spelling": {
                    "change": {
                        "rope_scaling": ...,
                        "rope_theta": ...,
                        "rope_parameters": {**llama3, "rope_theta": 5e5},
                    }
                },
                "no theta at all": {"change": {"rope_theta": ...}, "differs": False},
                "linear": {"change": {"rope_scaling": {"type": "linear", "factor": 2.0}}},
                "yarn": {"change": {"rope_scaling": yarn}},
                "yarn with its own betas": {
                    "change": {"rope_scaling": {**yarn, "beta_fast": 8, "beta_slow": 2}}
                },
                "yarn with its own factor": {"change": {"rope_scaling": {**yarn, "attention_factor": 1.5}}},
            },
        )
        self.each(
            "qwen3",
            {
                "theta in rope_parameters": {
                    "change": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
                },
                "both spellings that agree": {"change": {"rope_theta": 1000000}, "differs": False},
            },
        )

    def test_windows(self):
        self.each(
            "mistral",
            {
                "one key": {"change": {"sliding_window": 1}},
                "4": {"change": {"sliding_window": 4}},
                "null": {"change": {"sliding_window": None}},
                "longer than the sequence": {"change": {"sliding_window": 4096}},
            },
        )
        on = {"use_sliding_window": True, "sliding_window": 5}
        full, sliding = "full_attention", "sliding_attention"
        for model in ("qwen2", "qwen3"):
            self.each(
                model,
                {
                    "switch off": {
                        "change": {"use_sliding_window": False, "sliding_window": 5},
                        "differs": False,
                    },
                    "no layer reaches it": {
                        "change": {**on, "max_window_layers": 28, "layer_types": ...},
                        "differs": False,
                    },
                    "from layer 2": {"change": {**on, "max_window_layers": 2, "layer_types": ...}},
                    "from layer 0": {"change": {**on, "max_window_layers": 0, "layer_types": ...}},
                    "the list wins": {
                        "change": {**on, "max_window_layers": 2, "layer_types": [sliding, full, full, full]}
                    },
                },
            )

    def test_optional_keys(self):
        self.each(
            "llama",
            {
                "head_dim null": {"change": {"head_dim": None}, "differs": False},
                "head_dim absent": {"change": {"head_dim": ...}, "differs": False},
                "no attention_bias": {"change": {"attention_bias": ..., "mlp_bias": ...}, "differs": False},
                "tie absent": {"change": {"tie_word_embeddings": ...}, "differs": False},
                "eps": {"change": {"rms_norm_eps": 0.5}},
            },
        )

        def more_heads(tensors):
            for layer in range(4):
                for part in ("k_proj", "v_proj"):
                    name = f"model.layers.{layer}.self_attn.{part}.weight"
                    tensors[name] = tensors[f"model.layers.{layer}.self_attn.q_proj.weight"] * np.float32(0.5)

        for value in (None, ...):
            with self.subTest(kv_heads=value):
                self.agrees("llama", {"num_key_value_heads": value}, more_heads)

        def with_bias(tensors):
            for layer in range(4):
                for part, rows in (("q_proj", 48), ("k_proj", 16), ("v_proj", 16), ("o_proj", 48)):
                    tensors[f"model.layers.{layer}.self_attn.{part}.bias"] = np.linspace(
                        -1, 1, rows, dtype=np.float32
                    )

        self.agrees("llama", {"attention_bias": True}, with_bias)

        def wide(tensors):
            """head_dim 16 where hidden / heads is 8."""
            grow = np.random.RandomState(7)
            for layer in range(4):
                name = f"model.layers.{layer}.self_attn."
                for part, rows in (("q_proj", 96), ("k_proj", 32), ("v_proj", 32)):
                    tensors[f"{name}{part}.weight"] = grow.normal(0, 0.3, (rows, 48)).astype(np.float32)
                tensors[f"{name}o_proj.weight"] = grow.normal(0, 0.2, (48, 96)).astype(np.float32)

        self.agrees("llama", {"head_dim": 16}, wide)

    def test_random_weights_take_the_configs_shapes(self):
        """--init-from: Qwen3 without head_dim means 128, Llama hidden / heads; one seed, equal weights."""
        ids = {"input_ids": fixture("llama")["train.input_ids"].reshape(12, -1)}
        for model, heads, head_dim in (("qwen3", 4, 128), ("llama", 6, 8)):
            config = self.model_copy(model, change={"head_dim": ...}) / "config.json"
            saved = []
            for seed in (1, 1, 2):
                target = self.path("-hf")
                run(
                    "train",
                    "--init-from",
                    config,
                    "--seed",
                    seed,
                    "--data",
                    self.file(ids),
                    "--train-iters",
                    1,
                    "--lr",
                    0,
                    "--save-hf",
                    target,
                )
                saved.append(read_model(target)[0])
                after = json.loads((target / "config.json").read_text())
                self.assertEqual(after.get("head_dim", head_dim), head_dim)
            self.same_bits(saved[0], saved[1])
            self.assertEqual(saved[0]["model.layers.0.self_attn.q_proj.weight"].shape, (heads * head_dim, 48))
            self.assertTrue(
                (saved[0]["model.embed_tokens.weight"] != saved[2]["model.embed_tokens.weight"]).any()
            )
            got = self.score(target, {"input_ids": ids["input_ids"][:1]}, "--fp64", "--logits")["logits"][0]
            wanted = reference.logits(json.loads(config.read_text()), saved[2], ids["input_ids"][0])
            self.near(got, wanted, 1e-10)


if __name__ == "__main__":
    acceptance.main()
