"""chat.py: what it hands to `mgfl generate` and makes of its answer; a small program stands in for mgfl."""

import sys
import tempfile
import unittest
from pathlib import Path

import support

support.need("numpy", "safetensors", "transformers", "tokenizers", "jinja2")

# Answers with the prompt's ids in reverse and an end of turn; fails on request, as the program would.
STAND_IN = """#!{python}
import sys
import numpy as np
from safetensors.numpy import load_file, save_file
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
print("progress that must not reach standard output")
if "--seed" in sys.argv:
    sys.exit("mgfl: seed " + option("--seed") + " is refused")
assert sys.argv[1] == "generate" and "--bf16" in sys.argv
assert option("--max-new-tokens") == "9" and option("--top-k") == "3"
prompt = load_file(option("--input"))
assert prompt["input_ids"].dtype == np.int64 and prompt["cu_seqlens"].dtype == np.int32
assert prompt["cu_seqlens"].tolist() == [0, len(prompt["input_ids"])]
answer = np.append(prompt["input_ids"][::-1], 2)
lengths = np.array([0, len(answer)], dtype=np.int32)
save_file({{"output_ids": answer, "cu_seqlens": lengths}}, option("--output"))
"""


class Generate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = Path(folder.name) / "model"
        self.tokenizer = support.make_tokenizer(self.model)
        self.program = Path(folder.name) / "mgfl"
        self.program.write_text(STAND_IN.format(python=sys.executable))
        self.program.chmod(0o755)

    def ask(self, *arguments, status=0):
        return support.run_script(
            "chat.py",
            "--model",
            self.model,
            "--program",
            self.program,
            "--max-new-tokens",
            9,
            "--top-k",
            3,
            "--bf16",
            *arguments,
            status=status,
        )

    def test_plain_text(self):
        ids = self.tokenizer.encode("the sea sings").ids
        self.assertEqual(self.ask("--raw", "the sea sings"), self.tokenizer.decode(ids[::-1]) + "\n")

    def test_chat_template(self):
        text = (
            "<|im_start|>system\nto<|im_end|>\n<|im_start|>user\nthe sea<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = self.tokenizer.encode(text).ids
        self.assertEqual(self.ask("--system", "to", "the sea"), self.tokenizer.decode(ids[::-1]) + "\n")

    def test_errors(self):
        self.assertIn("prompt is empty", self.ask("--raw", "", status=1))
        self.assertIn(
            "does not exist",
            support.run_script(
                "chat.py", "--model", self.model, "--program", self.model / "none", "the", status=1
            ),
        )
        with self.assertRaisesRegex(
            AssertionError, "^1$"
        ):  # the program has told its error; only the status is handed on
            self.ask("--seed", 5, "the sea", status=1)


if __name__ == "__main__":
    unittest.main()
