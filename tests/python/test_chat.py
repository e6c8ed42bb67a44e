"""prepare_data.py chat: ids as the model meets them, loss on the assistant's tokens alone."""

import json
import tempfile
import unittest
from pathlib import Path

import support

support.need("numpy", "transformers", "tokenizers", "jinja2")


def message(role, content):
    return {"role": role, "content": content}


class Chat(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model = self.folder / "model"
        self.tokenizer = support.make_tokenizer(self.model)

    def prepare(self, *conversations, status=0, flags=()):
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        source.write_text(
            "".join(
                (line if isinstance(line, str) else json.dumps({"messages": line})) + "\n"
                for line in conversations
            )
        )
        text = support.run_script(
            "prepare_data.py",
            "chat",
            "--tokenizer",
            self.model,
            "--output",
            target,
            source,
            *flags,
            status=status,
        )
        return text if status else [json.loads(line) for line in target.read_text().splitlines()]

    def expected(self, *parts):
        """The sample of (text, is learned) parts, each tokenised by itself, by the definition of labels."""
        ids, learned = [], []
        for text, learns in parts:
            part = self.tokenizer.encode(text).ids
            ids += part
            learned += [learns] * len(part)
        labels = [ids[t + 1] if t + 1 < len(ids) and learned[t + 1] else -100 for t in range(len(ids))]
        return {"input_ids": ids, "labels": labels}

    def test_two_turns(self):
        samples = self.prepare(
            [
                message("system", "sings"),
                message("user", "the sea"),
                message("assistant", "the ship sails"),
                message("user", "to"),
                message("assistant", "na\u00efve \u20ac"),
            ]
        )
        self.assertEqual(
            samples,
            [
                self.expected(
                    (
                        "<|im_start|>system\nsings<|im_end|>\n"
                        "<|im_start|>user\nthe sea<|im_end|>\n<|im_start|>assistant\n",
                        False,
                    ),
                    ("the ship sails<|im_end|>", True),
                    ("\n<|im_start|>user\nto<|im_end|>\n<|im_start|>assistant\n", False),
                    ("na\u00efve \u20ac<|im_end|>", True),
                    ("\n", False),
                )
            ],
        )
        ids, labels = samples[0]["input_ids"], samples[0]["labels"]
        self.assertEqual(labels.count(2), 2)  # both ends of turn are learned
        self.assertTrue(all(label in (-100, following) for label, following in zip(labels, ids[1:] + [None])))

    def test_answer_that_begins_with_line_breaks_keeps_the_prompts_ids(self):
        # Whole-text tokenising would join the header's line break with the answer's first one.
        self.assertEqual(
            len(self.tokenizer.encode("\n\n\nthe").ids), 1 + len(self.tokenizer.encode("\nthe").ids)
        )
        samples = self.prepare([message("user", "to"), message("assistant", "\n\nthe ship")])
        self.assertEqual(
            samples,
            [
                self.expected(
                    ("<|im_start|>user\nto<|im_end|>\n<|im_start|>assistant\n", False),
                    ("\n\nthe ship<|im_end|>", True),
                    ("\n", False),
                )
            ],
        )

    def test_blank_lines_and_long_conversations_are_left_out(self):
        short = [message("user", "to"), message("assistant", "the")]
        long = [message("user", "the ship sails " * 50), message("assistant", "the")]
        samples = self.prepare(short, "", long, flags=("--max-length", 40))
        self.assertEqual(len(samples), 1)
        self.assertLess(len(samples[0]["input_ids"]), 40)

    def test_wrong_input_is_one_sentence_with_its_line(self):
        good = [message("user", "to"), message("assistant", "the")]
        for line, words in (
            ("{", "not JSON"),
            ('{"text": "x"}', '"messages"'),
            ([message("user", "to")], "no assistant"),
            ([{"content": "x"}], '"role"'),
            ([{"role": "user"}], '"content"'),
        ):
            with self.subTest(words):
                text = self.prepare(good, line, status=1)
                self.assertIn("in.jsonl, line 2: ", text)
                self.assertIn(words, text)
                self.assertEqual([path.name for path in self.folder.glob("out*")], [])
        self.assertIn("empty", self.prepare(status=1))

    def test_template_that_rewrites_earlier_turns_is_refused(self):
        template = (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
            "{% if loop.last or m['role'] != 'assistant' %}"
            "{{ m['content'] }}{% else %}left out{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        support.make_tokenizer(self.model, template)
        once = [message("user", "to"), message("assistant", "the")]
        self.assertEqual(len(self.prepare(once)), 1)
        self.assertIn("not prefix-stable", self.prepare(once + once, status=1))

    def test_template_errors_are_told(self):
        support.make_tokenizer(self.model, "{{ raise_exception('roles must alternate') }}")
        self.assertIn(
            "roles must alternate",
            self.prepare([message("user", "to"), message("assistant", "the")], status=1),
        )
        support.make_tokenizer(self.model, None)
        self.assertIn(
            "no chat template", self.prepare([message("user", "to"), message("assistant", "the")], status=1)
        )


if __name__ == "__main__":
    unittest.main()
