"""What `mgfl train` exports, transformers loads, and it gives the same logits. Skipped where torch cannot be imported.

Run it by hand with a Python that has torch and transformers:
    python tests/acceptance/test_transformers.py build/mgfl tests/data
"""

import sys

import acceptance
from acceptance import Case, fixture, read, run, train_rows

try:
    import torch
    from transformers import AutoModelForCausalLM
except (ImportError, OSError) as error:
    print("skipped:", error)
    sys.exit(77)


class Export(Case):
    def test_trained_models(self):
        torch.set_num_threads(1)
        for model in ("llama", "mistral", "qwen2", "qwen3"):
            for config in ("config.json", "config_alt.json"):
                for precision in ((), ("--bf16",)):
                    with self.subTest(model=model, config=config, precision=precision):
                        self.check(model, config, precision)

    def check(self, model, config, precision):
        expected = fixture(model)
        source, out, scores = self.model_copy(model, config=config), self.path("-out"), self.path(".safetensors")
        words = ("train", "--load-hf", source, "--data", self.file(train_rows(expected)), "--train-iters", 3)
        run(*words, "--global-batch-size", 4, "--lr", 1e-3, "--save-hf", out, "--threads", 1, *precision)
        main = {name: expected[name] for name in ("input_ids", "labels", "loss_mask")}
        run("score", "--load-hf", out, "--input", self.file(main), "--output", scores, "--logits", "--threads", 1)
        loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            theirs = loaded(torch.from_numpy(expected["input_ids"])).logits.numpy()
        self.near(read(scores)["logits"], theirs, 5e-5)


if __name__ == "__main__":
    acceptance.main()
