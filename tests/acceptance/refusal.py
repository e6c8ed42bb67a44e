"""How the tests of wrong input judge: status 1 (2 while running), one sentence, nothing left behind."""

import re
import shutil

import acceptance
from acceptance import Case, fixture, run, train_rows


# What a run says once its engine is built; failures after that come below it.
START = re.compile(r"vendor '\w+', kernels '\w+': \d+ of \d+ targets overridden \(\w+ \d+(, \w+ \d+)*\)")


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
        lines = [line for line in result.err.splitlines() if line.strip() and not START.fullmatch(line)]
        messages = [line for line in lines if line.startswith("mgfl")]
        self.assertEqual(len(messages), 1, f"one message that starts with mgfl\n{result}")
        if ranks == 1:
            self.assertEqual(len(lines), 1, f"one line\n{result}")
        for pattern in patterns:
            self.assertRegex(messages[0], re.compile(pattern, re.IGNORECASE), f"\n{result}")
        for trace in (
            "terminate called",
            "what():",
            "frame #",
            "Exception raised from",
            "c10::",
            "Aborted",
            ".cpp:",
            "enforce fail",
        ):
            self.assertNotIn(trace, result.err, f"\n{result}")
        left = [str(path.relative_to(self.out)) for path in self.out.rglob("*")]
        self.assertEqual(left, [], f"left behind\n{result}")

    def refused(self, arguments, *patterns, status=1, ranks=1, env=None):
        self.judge(run(*arguments, ranks=ranks, status=None, env=env, cwd=self.out), patterns, status, ranks)

    def score_refused(self, *patterns, model=None, source=None, flags=(), **options):
        source = self.main if source is None else source
        source = self.file(source) if isinstance(source, dict) else source
        model = model or acceptance.DATA / "llama"
        words = (
            "score",
            "--load-hf",
            model,
            "--input",
            source,
            "--output",
            self.out / "o.safetensors",
            *flags,
        )
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
