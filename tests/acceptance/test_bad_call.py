"""Wrong flags and inputs of score and generate, outputs that cannot be written: refused in one sentence."""

import re
import resource
import subprocess

import acceptance
from acceptance import environment, np, run, train_rows
from refusal import Refusal


class ScoreInput(Refusal):
    def test_tokens_out_of_range(self):
        def source(name, value, row=1, place=7):
            tensors = {key: tensor.copy() for key, tensor in self.main.items()}
            tensors[name][row, place] = value
            return tensors

        for name, value in (
            ("input_ids", 320),
            ("input_ids", -1),
            ("input_ids", 2**40),
            ("labels", 320),
            ("labels", -5),
        ):
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
            "loss_mask of another shape": (
                {**self.main, "loss_mask": self.main["loss_mask"][:1]},
                "loss_mask",
            ),
            "loss_mask NaN": (
                {**self.main, "loss_mask": self.main["loss_mask"] * np.float32("nan")},
                "loss_mask",
            ),
            "position_ids of another shape": ({**self.main, "position_ids": ids[:, :3]}, "position_ids"),
            "mask with a hole": ({**self.main, "attention_mask": hole}, "attention_mask"),
            "mask of twos": ({**self.main, "attention_mask": mask * 2}, "attention_mask", "2"),
            "mask and cu_seqlens": (
                {**packed, "attention_mask": np.ones_like(packed["input_ids"])},
                "attention_mask",
            ),
            "bounds from 1": (changed(cu_seqlens=np.append(1, bounds[1:]).astype(np.int32)), "cu_seqlens"),
            "bounds decreasing": (changed(cu_seqlens=bounds[[0, 2, 1, 3, 4]]), "cu_seqlens"),
            "bounds beyond 32 bits": (
                changed(cu_seqlens=bounds.astype(np.int64) + (np.arange(len(bounds)) == 1) * 2**32),
                "cu_seqlens",
                str(int(bounds[1]) + 2**32),
                "entry 1",
            ),
            "bounds too short": (changed(cu_seqlens=bounds[:-1]), "cu_seqlens", "27", "40"),
            "bounds too long": (
                changed(cu_seqlens=np.append(bounds, 41).astype(np.int32)),
                "cu_seqlens",
                "41",
                "40",
            ),
            "bounds empty": (changed(cu_seqlens=bounds[:0]), "cu_seqlens"),
            "bounds with two rows": ({**self.main, "cu_seqlens": bounds}, "cu_seqlens"),
        }
        self.each(cases, lambda source, *patterns: self.score_refused(*patterns, source=source))
        self.score_refused("input_ids", "absent", flags=("--prefix", "absent."))

    def test_flags(self):
        cases = {
            "temperature 0": (("--temperature", 0), "temperature"),
            "temperature negative": (("--temperature", -1), "temperature"),
            "micro-batch 0": (("--micro-batch-size", 0), "micro-batch-size"),
            "cap below the longest": (("--max-tokens-per-micro-batch", 39), "39", "40"),
            "two batch flags": (("--micro-batch-size", 1, "--max-tokens-per-micro-batch", 99), "micro-batch"),
            "timeout negative": (("--timeout-seconds", -1), "timeout"),
            "unknown flag": (("--micro-batchsize", 1), "--micro-batchsize", "--micro-batch-size"),
            "misspelt flag": (("--temprature", 1), "--temprature", "--temperature"),
            "not a number": (("--temperature", "warm"), "temperature", "warm"),
            "no value": (("--prefix",), "prefix"),
            "tensor parallel": (("--tensor-model-parallel-size", 2), "tensor-model-parallel-size"),
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
            "score",
            "--load-hf",
            acceptance.DATA / "llama",
            "--input",
            self.file(self.main),
            "--output",
            "o",
            "--config",
            path,
            "--temperature",
            2,
            "--print-config",
        )
        again = self.path(".toml")
        again.write_text(printed.out)
        output = self.path(".safetensors")
        run("score", "--config", again, "--output", output)
        self.same_bits(acceptance.read(output), over)

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
            "empty prompt": (
                {"input_ids": ids, "attention_mask": 0 * ids},
                new,
                "attention_mask|prompt|empty",
            ),
        }
        self.each(cases, refuse)

    def test_generate_without_an_end_in_sight(self):
        """Memory follows what has been generated, not what might be: prompts whose continuation ends are done in no time."""
        words = ("generate", "--load-hf", acceptance.DATA / "llama", "--input", self.file(self.main))
        output = self.out / "o.safetensors"
        run(*words, "--output", output, "--max-new-tokens", 2**31 - 1)
        got = acceptance.read(output)
        last = got["output_ids"][got["cu_seqlens"][1:] - 1]
        self.assertEqual(last.tolist(), [2] * len(last))  # eos_token_id


class Output(Refusal):
    def limited(self, arguments, size):
        """Runs the program where no file may grow beyond size bytes: a full disk, as far as it can tell."""
        words = acceptance.command(arguments)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        # Python ignores SIGXFSZ; the program inherits that, so that its writes fail with an error number.
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(),
            preexec_fn=limit,
            restore_signals=False,
            timeout=60,
        )
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
        self.assertEqual(plain.read_text(), "kept")
        self.assertEqual(list(folder.iterdir()), [])

    def test_train_refuses_places_that_cannot_be_written_before_it_trains(self):
        plain = self.path("-plain")
        plain.write_text("kept")
        cases = {
            f"{flag} {name}": (flag, place)
            for flag in ("--save", "--save-hf", "--log-dir")
            for name, place in (("below a file", plain / "inside"), ("a file", plain))
        }

        def refuse(flag, place, ranks=1):
            self.train_refused(re.escape(plain.name), flags=(flag, place), status=(1, 2), ranks=ranks)

        cases["two ranks"] = ("--save", plain / "inside", 2)
        self.each(cases, refuse)
        self.assertEqual(plain.read_text(), "kept")

    def test_full_disk_leaves_what_was_there(self):
        source = self.file(self.main)
        output = self.folder / "kept.safetensors"
        output.write_bytes(b"an older result")
        words = (
            "score",
            "--load-hf",
            acceptance.DATA / "llama",
            "--input",
            source,
            "--output",
            output,
            "--logits",
        )
        self.judge(self.limited(words, 4096), ("kept.safetensors",), 2, 1)
        self.assertEqual(output.read_bytes(), b"an older result")
        others = [
            path.name for path in self.folder.iterdir() if path.name.startswith("kept") or path.name[0] == "."
        ]
        self.assertEqual(others, ["kept.safetensors"])

    def test_full_disk_while_saving(self):
        rows = self.file(train_rows(self.expected))
        words = [
            "train",
            "--load-hf",
            acceptance.DATA / "llama",
            "--data",
            rows,
            "--train-iters",
            1,
            "--lr",
            1e-3,
        ]
        for flag in ("--save", "--save-hf"):
            with self.subTest(flag=flag):
                target = self.folder / f"target{flag}"
                run(*words, flag, target)
                before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
                again = list(words)
                again[again.index("--train-iters") + 1] = 2
                if flag == "--save":  # the same run goes on; a new one would be refused
                    again[1:3] = ["--load", target]
                    again.append("--use-checkpoint-opt-param-scheduler")
                result = self.limited([*again, flag, target], 100_000)
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
