"""Wrong training data, schedules and checkpoints: refused in one sentence that names the fault."""

import json
import re
import shutil

import acceptance
from acceptance import np, run, train_rows
from refusal import Refusal


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
            self.train_refused(
                re.escape(path.name), *patterns, data=path, flags=("--no-shuffle", "--global-batch-size", 3)
            )

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
            "position_ids": ({**rows, "position_ids": rows["input_ids"]}, '"position_ids"', "not supported"),
            "cu_seqlens": ({**rows, "cu_seqlens": np.int32([0, 3])}, '"cu_seqlens"', "not supported"),
        }
        for slip, known in (
            ("label", "labels"),
            ("input_id", "input_ids"),
            ("loss_masks", "loss_mask"),
            ("return", "returns"),
            ("attention_mark", "attention_mask"),
        ):
            cases[slip] = ({**rows, slip: rows["labels"]}, f'"{slip}"; did you mean "{known}"')
        self.each(
            cases, lambda data, *patterns: self.train_refused(r"\.safetensors", *patterns, data=data)
        )

    def test_masks_of_padding(self):
        rows = train_rows(self.expected)
        ones = np.ones_like(rows["input_ids"])

        def mask(row, begin, end, value):
            changed = ones.copy()
            changed[row, begin:end] = value
            return {**rows, "attention_mask": changed}

        length = ones.shape[1]
        cases = {
            "hole": (mask(2, 3, 4, 0), "hole in row 2 at position 3"),
            "other number": (mask(1, 4, 5, 2), "attention_mask is 2 in row 1 at position 4"),
            "padding alone": (mask(5, 0, length, 0), "attention_mask is 0 all along row 5"),
            "real": ({**rows, "attention_mask": ones.astype(np.float32)}, "attention_mask", "integer"),
            "another shape": ({**rows, "attention_mask": ones[:, 1:]}, "attention_mask", "shape"),
        }
        self.each(
            cases, lambda data, *patterns: self.train_refused(r"\.safetensors: ", *patterns, data=data)
        )
        self.train_refused("hole in row 2", data=cases["hole"][0], ranks=2)

    def test_a_sample_above_the_token_cap(self):
        """Told with file, sample and flag, by train and by score."""
        rows = train_rows(self.expected)
        length = rows["input_ids"].shape[1]
        short = np.arange(5) != 2
        mask = np.where(short[:, None] & (np.arange(length) >= 5), 0, 1)
        rows = {**{name: tensor[:5] for name, tensor in rows.items()}, "attention_mask": mask}
        flags = ("--max-tokens-per-micro-batch", 6)
        told = (rf"\.safetensors: s\w+ 2 has {length} tokens", "more than --max-tokens-per-micro-batch 6")
        lines = self.path(".jsonl")
        lines.write_text('{"input_ids": [5, 6]}\n{"input_ids": [5, 6, 7, 8, 9, 10, 11]}\n')
        for ranks in (1, 2):
            train = (*flags, "--global-batch-size", 4, "--no-shuffle")
            self.train_refused(*told, data=rows, flags=train, ranks=ranks)
            self.score_refused(*told, source=rows, flags=flags, ranks=ranks)
            train = (*flags, "--global-batch-size", 2, "--no-shuffle")
            self.train_refused(r"\.jsonl: sample 1 has 7 tokens", told[1], data=lines, flags=train, ranks=ranks)

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
            "lr negative": (("--lr", -1), "--lr"),
            "lr nan": (("--lr", "nan"), "--lr"),
            "floor above the peak": (("--min-lr", 1), "min.lr"),
            "warm-up negative": (("--lr-warmup-iters", -1), "lr-warmup-iters"),
            "decay negative": (("--lr-decay-iters", -1), "lr-decay-iters"),
            "unknown style": (("--lr-decay-style", "cosin"), "cosin", "cosine"),
            "WSD without its length": (("--lr-decay-style", "WSD"), "wsd"),
            "beta 1.5": (("--adam-beta2", 1.5), "adam-beta2"),
            "interval 0": (("--save-interval", 0), "save-interval"),
            "tensor parallel": (("--tensor-model-parallel-size", 2), "tensor-model-parallel-size"),
        }
        self.each(cases, lambda flags, *patterns: self.train_refused(*patterns, flags=flags))
        self.train_refused("3", "2", flags=("--global-batch-size", 3), ranks=2)

    def test_degenerate_schedules_are_refused_or_finite(self):
        """L2: warm-up as long as the decay or longer, no decay: an error or finite numbers, never NaN."""
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
                words = [
                    "train",
                    "--load-hf",
                    acceptance.DATA / "llama",
                    "--data",
                    self.file(train_rows(self.expected)),
                ]
                result = run(*words, "--train-iters", 3, "--lr", 1e-3, "--log-dir", log, *flags, status=None)
                if result.status == 0:
                    for line in acceptance.metrics(log):
                        self.assertTrue(np.isfinite(line["lr"]) and np.isfinite(line["loss"]), line)
                else:
                    self.judge(result, ("warmup|decay",), 1, 1)

    def test_checkpoints(self):
        save = self.folder / "save"
        rows = self.file(train_rows(self.expected))
        words = [
            "train",
            "--load-hf",
            acceptance.DATA / "llama",
            "--data",
            rows,
            "--train-iters",
            2,
            "--lr",
            1e-3,
        ]
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
                said = [
                    line for line in result.err.splitlines() if line.startswith("mgfl") and copy.name in line
                ]
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
            "idx cut in the head": ({"cut": 20}, r"\.idx"),
            "idx cut after the sizes": ({"cut": 34 + 8}, r"\.idx"),
            "idx cut by a byte": ({"cut": -1}, r"\.idx"),
            "wrong magic": ({"magic": b"NNIDIDX\0\0"}, r"\.idx"),
            "version 2": ({"version": u64(2)}, r"\.idx", "version", "2"),
            "dtype code 99": ({"code": bytes([99])}, r"\.idx", "99"),
            "dtype code 6, a real": ({"code": bytes([6])}, r"\.idx|\.bin"),
            "pointer 8 for 12": ({"pointers": i64(0, 8)}, r"\.idx", "8", "12"),
            "length negative": ({"lengths": np.array([3, -2], np.int32).tobytes()}, r"\.idx", "-2"),
            "last document 3 of 2": ({"bounds": i64(0, 1, 3)}, r"\.idx", "3", "2"),
            "documents decreasing": ({"bounds": i64(0, 2, 1)}, r"\.idx"),
            "sequences 2^60": ({"sequences": u64(2**60)}, r"\.idx"),
            "sequences 2^63": ({"sequences": u64(2**63)}, r"\.idx"),
            "documents 0": ({"documents": u64(0), "bounds": b""}, r"\.idx"),
            "bytes after the end": ({"bounds": i64(0, 1, 2, 2)}, r"\.idx"),
            "no document": (
                {
                    "sequences": u64(0),
                    "documents": u64(1),
                    "lengths": b"",
                    "pointers": b"",
                    "bounds": i64(0),
                    "bin": b"",
                },
                "document|empty|sequence|token",
            ),
            "token of the vocabulary's size": (
                {"bin": np.array([5, 6, 320, 8, 9], np.int32).tobytes()},
                "320",
            ),
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


if __name__ == "__main__":
    acceptance.main()
