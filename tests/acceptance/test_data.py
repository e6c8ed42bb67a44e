"""Data for train: rows of chat, and Megatron's .bin/.idx, written here by the format's description."""

import json

import acceptance
from acceptance import Case, fixture, metrics, np, run
from test_score import left_padded


def write_indexed(prefix, documents, dtype=np.uint16):
    """PREFIX.bin and PREFIX.idx of documents of one sequence each."""
    codes = {np.uint16: 8, np.int32: 4}
    size = np.dtype(dtype).itemsize
    lengths = np.array([len(document) for document in documents], np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]]).astype(np.int64) * size
    bounds = np.arange(len(documents) + 1, dtype=np.int64)
    index = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([codes[dtype]])
    index += np.uint64(len(lengths)).tobytes() + np.uint64(len(bounds)).tobytes()
    index += lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    with open(f"{prefix}.idx", "wb") as file:
        file.write(index)
    with open(f"{prefix}.bin", "wb") as file:
        file.write(b"".join(np.array(document, dtype).tobytes() for document in documents))


class Data(Case):
    def losses(self, model, data, *flags, iterations=1, batch=1, ranks=1):
        """The losses of a training run that changes nothing (lr 0), and the lines of its log."""
        log = self.path("-log")
        data = data if isinstance(data, (list, tuple)) else [data]
        run(
            "train",
            "--load-hf",
            acceptance.DATA / model,
            "--data",
            *data,
            "--train-iters",
            iterations,
            "--global-batch-size",
            batch,
            "--lr",
            0,
            "--weight-decay",
            0,
            "--log-dir",
            log,
            *flags,
            ranks=ranks,
        )
        lines = metrics(log)
        return [line["loss"] for line in lines], lines


class Rows(Data):
    def rows(self, expected):
        bounds = expected["packed.cu_seqlens"]
        for begin, end in zip(bounds[:-1], bounds[1:]):
            yield (
                expected["packed.input_ids"][0, begin:end],
                expected["packed.labels"][0, begin:end],
                expected["packed.token_loss"][0, begin:end],
            )

    def jsonl(self, rows):
        path = self.path(".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def test_unlike_lengths(self):
        for model in ("llama", "mistral"):
            expected = fixture(model)
            rows = [
                {"input_ids": ids.tolist(), "labels": labels.tolist()}
                for ids, labels, _ in self.rows(expected)
            ]
            data = self.jsonl(rows)
            norm = float(expected["packed.grad_norm"][0])
            for ranks, flags in (
                (1, ()),
                (1, ("--micro-batch-size", 2)),
                (1, ("--max-tokens-per-micro-batch", 30)),
                (2, ()),
            ):
                batch = len(rows) if ranks == 1 or len(rows) % 2 == 0 else None
                if batch is None or (flags and flags[0] == "--micro-batch-size" and batch % 2):
                    continue
                with self.subTest(model=model, ranks=ranks, flags=flags):
                    losses, lines = self.losses(model, data, "--no-shuffle", *flags, batch=batch, ranks=ranks)
                    self.near(losses, expected["packed.mean_loss"], 1e-5)
                    self.near([lines[0]["grad_norm"]], [norm], 1e-4 * norm)

    def test_padded_rows_are_their_tokens(self):
        """At the right, at the left and on both sides, as integers and as bool, as score reads the same file."""
        expected = fixture("qwen3")
        names = ("input_ids", "labels", "attention_mask")
        right = {name: expected[f"padded.{name}"] for name in names}
        left, _ = left_padded(expected)
        both = {name: np.pad(left[name], ((0, 0), (0, 3))) for name in names}
        weights = np.where(np.arange(both["input_ids"].size) % 3, 1, 0.5).astype(np.float32)
        weighted = {**both, "loss_mask": weights.reshape(both["input_ids"].shape)}
        weighted["loss_mask"][both["attention_mask"] == 0] = np.float32("nan")  # not looked at
        sources = {"right": right, "left": left, "both": both, "weighted": weighted}
        sources["bool"] = {**left, "attention_mask": left["attention_mask"].astype(bool)}
        sources["no labels"] = {name: tensor for name, tensor in left.items() if name != "labels"}
        batch, cap = len(right["input_ids"]), ("--max-tokens-per-micro-batch", 60)
        for what, source in sources.items():
            file = self.file(source)
            wanted = self.score("qwen3", file, "--fp64")
            if what not in ("weighted", "no labels"):
                self.near(wanted["mean_loss"], expected["packed.mean_loss"], 1e-5)
            for ranks, flags in ((1, ()), (1, cap), (2, cap)):
                with self.subTest(padding=what, ranks=ranks, flags=flags):
                    flags = ("--no-shuffle", "--fp64", *flags)
                    losses, lines = self.losses("qwen3", file, *flags, batch=batch, ranks=ranks)
                    self.near(losses, wanted["mean_loss"], 1e-12)
                    self.assertEqual(lines[0]["tokens"], right["attention_mask"].sum())

    def test_ranks_share_by_cost_under_a_token_cap(self):
        """Five rows on two ranks: every token once, and loss, norm and weights of one rank, in double."""
        expected = fixture("qwen3")
        stream = expected["train.input_ids"].reshape(-1)
        bounds = np.cumsum([0, 30, 3, 4, 5, 6, 29, 7, 8, 2, 9])
        data = self.jsonl([{"input_ids": stream[a:b].tolist()} for a, b in zip(bounds[:-1], bounds[1:])])
        held_out = self.jsonl([{"input_ids": stream[a : a + 9].tolist()} for a in (110, 120, 130)])
        runs = []
        for ranks in (1, 2):
            log, out = self.path("-log"), self.path("-hf")
            words = ("train", "--load-hf", acceptance.DATA / "qwen3", "--data", data, "--eval-data", held_out)
            words += ("--fp64", "--lr", 1e-3, "--train-iters", 2, "--global-batch-size", 5, "--no-shuffle")
            words += ("--max-tokens-per-micro-batch", 30, "--log-dir", log, "--save-hf", out)
            run(*words, ranks=ranks)
            runs.append((metrics(log), acceptance.read_model(out)[0]))
        for one, two in zip(runs[0][0], runs[1][0]):
            self.assertEqual(two["tokens"], one["tokens"])
            for name in ("loss", "grad_norm", "eval_loss"):
                if one.get(name) is not None:
                    self.near([two[name]], [one[name]], 1e-12, name)
        self.assertEqual([line["tokens"] for line in runs[0][0][1:]], [48, 55])
        for name, weight in runs[0][1].items():
            self.near(runs[1][1][name], weight, 1e-10, name)

    def test_chat_with_masked_prompts(self):
        """Labels -100 over the prompts: the mean is over the answers' tokens of all rows together."""
        expected = fixture("llama")
        rows, total, count = [], 0.0, 0
        for number, (ids, labels, loss) in enumerate(self.rows(expected)):
            kept = np.arange(len(ids)) >= (0, 1, 12, 3)[number]
            rows.append({"input_ids": ids.tolist(), "labels": np.where(kept, labels, -100).tolist()})
            total += float(loss[kept].astype(np.float64).sum())
            count += int(kept.sum())
        for ranks in (1, 2):
            losses, lines = self.losses("llama", self.jsonl(rows), "--no-shuffle", batch=4, ranks=ranks)
            self.near(losses, [total / count], 1e-5)

    def test_loss_mask_and_default_labels(self):
        expected = fixture("llama")
        rows, total, count = [], 0.0, 0
        for ids, _, loss in self.rows(expected):
            mask = (np.arange(len(ids)) % 3 > 0).astype(int)
            rows.append({"input_ids": ids.tolist(), "loss_mask": mask.tolist()})
            kept = mask[:-1].astype(bool)
            total += float(loss[:-1][kept].astype(np.float64).sum())
            count += int(kept.sum())
        losses, _ = self.losses("llama", self.jsonl(rows), "--no-shuffle", batch=4)
        self.near(losses, [total / count], 1e-5)

    def test_a_batch_without_a_counted_token(self):
        """A4: one all-masked row adds nothing; on one rank and on two."""
        expected = fixture("llama")
        cut = list(self.rows(expected))
        masked = lambda row: {"input_ids": row[0].tolist(), "labels": [-100] * len(row[0])}
        plain = lambda row: {"input_ids": row[0].tolist(), "labels": row[1].tolist()}
        data = self.jsonl([masked(cut[0]), plain(cut[2])])
        wanted = float(cut[2][2].astype(np.float64).mean())
        for ranks in (1, 2):
            losses, _ = self.losses("llama", data, "--no-shuffle", batch=2, ranks=ranks)
            self.near(losses, [wanted], 1e-5)


class Indexed(Data):
    def test_own_files_in_file_order(self):
        expected = fixture("llama", double=True)
        first = np.append(expected["input_ids"][0], expected["labels"][0, -1])
        length = len(first) - 1
        rest = expected["train.input_ids"][0].reshape(-1)
        stream = np.concatenate([first, rest])
        samples = [stream[k * length : (k + 1) * length + 1] for k in range(4)]
        source = {
            "input_ids": np.stack([sample[:-1] for sample in samples]),
            "labels": np.stack([sample[1:] for sample in samples]),
        }
        wanted = self.score("llama", source)["token_loss"].astype(np.float64).mean(1)
        self.near([wanted[0]], [expected["token_loss"][0].mean()], 1e-5)
        for dtype in (np.uint16, np.int32):
            for documents in ([first, rest[:25], rest[25:]], [stream[:3], stream[3:]]):
                prefix = self.path("-data")
                write_indexed(prefix, documents, dtype)
                flags = ("--seq-length", length, "--no-shuffle")
                losses, lines = self.losses("llama", prefix, *flags, iterations=4)
                self.near(losses, wanted, 2e-5)
                self.assertEqual([line["tokens"] for line in lines], [length] * 4)

    def test_empty_document_does_no_harm(self):
        expected = fixture("llama")
        stream = expected["train.input_ids"][0].reshape(-1)[:101]
        plain, holed = self.path("-plain"), self.path("-holed")
        write_indexed(plain, [stream[:40], stream[40:]])
        write_indexed(holed, [stream[:40], [], stream[40:]])
        flags = ("--seq-length", 25, "--no-shuffle")
        wanted, _ = self.losses("llama", plain, *flags, iterations=4)
        got, _ = self.losses("llama", holed, *flags, iterations=4)
        self.assertEqual(got, wanted)

    def test_shuffled_order_is_megatrons(self):
        """The samples of megatron-core's GPTDataset, seen through the loss of each in turn."""
        described = json.loads((acceptance.DATA / "megatron" / "indexed_dataset.json").read_text())[
            "ids_uint16"
        ]
        for seen in described["gpt_dataset_runs"]:
            if seen["name"] not in ("some epochs", "final epoch apart"):
                continue
            with self.subTest(run=seen["name"]):
                samples = seen["samples"]
                count = min(seen["num_samples"], len(samples))
                source = {
                    "input_ids": np.array([sample["tokens"] for sample in samples[:count]]),
                    "labels": np.array([sample["labels"] for sample in samples[:count]]),
                }
                scores = self.score("llama", source, "--micro-batch-size", 4)["token_loss"]
                flags = ("--seq-length", seen["sequence_length"], "--seed", seen["random_seed"])
                losses, _ = self.losses(
                    "llama",
                    acceptance.DATA / "megatron" / "ids_uint16",
                    *flags,
                    iterations=seen["num_samples"],
                )
                self.near(losses[:count], scores.astype(np.float64).mean(1), 2e-5)

    def test_blend(self):
        """Weighted sources: with 0.3 and 0.7 each sample comes from the source that is furthest behind."""
        expected = fixture("llama")
        stream = expected["train.input_ids"].reshape(-1)
        prefixes = [self.path("-a"), self.path("-b")]
        write_indexed(prefixes[0], [stream[:161]])
        write_indexed(prefixes[1], [stream[200:361]])
        flags = ("--seq-length", 16, "--no-shuffle")
        alone = [self.losses("llama", prefix, *flags, iterations=7)[0] for prefix in prefixes]
        mixed, _ = self.losses("llama", [0.3, prefixes[0], 0.7, prefixes[1]], *flags, iterations=8)
        drawn, wanted, weights = [0, 0], [], (0.3, 0.7)
        for k in range(8):
            behind = [weights[i] * max(k, 1) - drawn[i] for i in range(2)]
            source = int(np.argmax(behind))
            wanted.append(alone[source][drawn[source]])
            drawn[source] += 1
        self.near(mixed, wanted, 1e-6)


if __name__ == "__main__":
    acceptance.main()
