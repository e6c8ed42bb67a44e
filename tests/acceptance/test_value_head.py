"""--value-head: a critic's values, losses, gradients and training as in the fixture; critics of language models."""

import json

import acceptance
import reference
from acceptance import Case, fixture, metrics, np, read_model, run, train_rows, without_timing
from refusal import Refusal
from test_score import left_padded
from test_train import Training

CRITIC = "qwen3_value"
HEAD = "score.weight"


class Critic(Case):
    def values(self, source, *flags, model=CRITIC, **options):
        return self.score(model, source, "--value-head", *flags, **options)


class FixtureNumbers(Critic):
    def test_both_spellings_precisions_and_ranks(self):
        """The bounds hold for fp64 too: the fixture's own noise is a tenth of them."""
        expected = fixture(CRITIC)
        for config in ("config.json", "config_alt.json"):
            folder = self.model_copy(CRITIC, config)
            for ranks, flags in ((1, ()), (2, ()), (1, ("--fp64",)), (2, ("--fp64",))):
                with self.subTest(config=config, ranks=ranks, flags=flags):
                    source = acceptance.DATA / CRITIC / "expected.safetensors"
                    got = self.values(source, "--grads", *flags, model=folder, ranks=ranks)
                    self.assertEqual(got["values"].dtype, np.float64 if flags else np.float32)
                    self.near(got["values"], expected["values"], 5e-5)
                    self.near(got["mean_loss"], expected["mean_loss"], 1e-5)
                    self.assertEqual(got["num_tokens"].tolist(), expected["num_tokens"].tolist())
                    self.near_gradients(got, expected)
                    names = {name for name in got if not name.startswith("grad")}
                    self.assertEqual(names, {"values", "mean_loss", "num_tokens"})

    def test_the_clipped_loss(self):
        expected = fixture(CRITIC)
        norm = float(expected["value_loss_clipped_grad_norm"][0])
        for ranks, flags in ((1, ()), (2, ()), (1, ("--fp64",))):
            with self.subTest(ranks=ranks, flags=flags):
                source = acceptance.DATA / CRITIC / "expected.safetensors"
                got = self.values(source, "--value-clip", 0.2, "--grads", *flags, ranks=ranks)
                self.near(got["values"], expected["values"], 5e-5)
                self.near(got["mean_loss"], expected["value_loss_clipped"], 1e-5)
                self.near(got["grad_norm"], [norm], 1e-4 * norm)

    def test_loss_in_double_from_the_values(self):
        """The definitions by hand, from the values that the program writes."""
        expected = fixture(CRITIC)
        source = acceptance.DATA / CRITIC / "expected.safetensors"
        returns, old, mask = (expected[name].astype(np.float64) for name in ("returns", "old_values", "loss_mask"))
        got = self.values(source, "--fp64")
        plain = (got["values"] - returns) ** 2
        self.near(got["mean_loss"], [0.5 * (mask * plain).sum() / mask.sum()], 1e-12)
        clipped = (np.clip(got["values"], old - 0.3, old + 0.3) - returns) ** 2
        wanted = 0.5 * (mask * np.maximum(plain, clipped)).sum() / mask.sum()
        self.near(self.values(source, "--fp64", "--value-clip", 0.3)["mean_loss"], [wanted], 1e-12)

    def test_returns_and_old_values_in_double(self):
        """F64 numbers that fp32 cannot hold keep all their digits: in score, and in train's rows and lines."""
        expected = fixture(CRITIC)
        source = {name: expected[name] for name in ("input_ids", "loss_mask")}
        mask = source["loss_mask"].astype(np.float64)
        source["returns"] = expected["returns"] + 1e-3 * np.sin(np.arange(mask.size)).reshape(mask.shape)
        source["old_values"] = expected["old_values"] + 1e-3 * np.cos(np.arange(mask.size)).reshape(mask.shape)
        values = self.values(source, "--fp64")["values"]
        plain = (values - source["returns"]) ** 2
        wanted = 0.5 * (mask * plain).sum() / mask.sum()
        bounded = np.clip(values, source["old_values"] - 1e-3, source["old_values"] + 1e-3)
        clipped = np.maximum(plain, (bounded - source["returns"]) ** 2)
        lines = self.path(".jsonl")
        rows = ({n: t[k].tolist() for n, t in source.items() if n != "old_values"} for k in range(len(mask)))
        lines.write_text("\n".join(map(json.dumps, rows)))
        for ranks in (1, 2):
            got = self.values(source, "--fp64", ranks=ranks)
            self.near(got["mean_loss"], [wanted], 1e-12)
            got = self.values(source, "--fp64", "--value-clip", 1e-3, ranks=ranks)
            self.near(got["mean_loss"], [0.5 * (mask * clipped).sum() / mask.sum()], 1e-12)
            for data in (self.file(source), lines):
                log = self.path("-log")
                words = ("train", "--load-hf", acceptance.DATA / CRITIC, "--value-head", "--fp64", "--data", data)
                words += ("--train-iters", 1, "--global-batch-size", len(mask), "--lr", 0, "--log-dir", log)
                run(*words, ranks=ranks)
                self.near([metrics(log)[0]["loss"]], [wanted], 1e-12)

    def test_a_row_of_packed_sequences(self):
        expected = fixture(CRITIC)
        norm = float(expected["packed.grad_norm"][0])
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                source = acceptance.DATA / CRITIC / "expected.safetensors"
                got = self.values(source, "--prefix", "packed.", "--grads", ranks=ranks)
                self.near(got["values"], expected["packed.values"], 5e-5)
                self.near(got["mean_loss"], expected["packed.mean_loss"], 1e-5)
                self.near(got["grad_norm"], [norm], 1e-4 * norm)

    def test_padded_rows(self):
        """At the right as in the fixture and at the left; returns at padding, NaN here, are none of the loss."""
        expected = fixture(CRITIC)
        mask = expected["padded.attention_mask"]
        returns = np.full(mask.shape, np.float32("nan"))
        returns[mask == 1] = expected["packed.returns"][0]
        left, roll = left_padded(expected)
        right = {name: expected[f"padded.{name}"] for name in left}
        for what, source, place in (("right", right, lambda rows: rows), ("left", left, roll)):
            for ranks in (1, 2):
                with self.subTest(padding=what, ranks=ranks):
                    got = self.values({**source, "returns": place(returns)}, "--grads", ranks=ranks)
                    self.near(got["values"], place(expected["padded.values"]), 5e-5)
                    self.assertEqual(np.abs(got["values"][source["attention_mask"] == 0]).max(), 0)
                    self.near(got["mean_loss"], expected["packed.mean_loss"], 1e-5)
                    norm = float(expected["packed.grad_norm"][0])
                    self.near(got["grad_norm"], [norm], 1e-4 * norm)

    def test_values_need_neither_labels_nor_returns(self):
        expected = fixture(CRITIC)
        for ranks in (1, 2):
            got = self.values({"input_ids": expected["input_ids"]}, ranks=ranks)
            self.assertEqual(sorted(got), ["values"])
            self.near(got["values"], expected["values"], 5e-5)
        alone = self.values({"input_ids": expected["input_ids"][:1]}, ranks=2)
        self.near(alone["values"], expected["values"][:1], 5e-5)

    def test_without_labels_every_position_counts_and_ignored_labels_do_not(self):
        expected = fixture(CRITIC)
        source = {name: expected[name] for name in ("input_ids", "returns")}
        error = 0.5 * (expected["values"].astype(np.float64) - expected["returns"]) ** 2
        got = self.values(source)
        self.near(got["mean_loss"], [error.mean()], 1e-4)
        self.assertEqual(int(got["num_tokens"][0]), error.size)
        labels = expected["labels"].copy()
        labels[:, ::3] = -100
        got = self.values({**source, "labels": labels})
        kept = labels >= 0
        self.near(got["values"], np.where(kept, expected["values"], 0), 5e-5)
        self.near(got["mean_loss"], [error[kept].mean()], 1e-4)
        self.assertEqual(int(got["num_tokens"][0]), kept.sum())

    def test_micro_batches_agree(self):
        """Rows of very unequal numbers of counted tokens, so that a mean of means would show."""
        expected = fixture(CRITIC)
        source = {name: expected[f"train.{name}"][1] for name in ("input_ids", "returns", "old_values")}
        mask = np.ones_like(source["returns"])
        mask[0, 3:], mask[1] = 0, 0
        source["loss_mask"] = mask
        first = self.values(source, "--fp64", "--grads", "--value-clip", 0.2)
        for flags, ranks in (
            (("--micro-batch-size", 3), 1),
            (("--max-tokens-per-micro-batch", 70), 1),
            (("--micro-batch-size", 2), 2),
        ):
            got = self.values(source, "--fp64", "--grads", "--value-clip", 0.2, *flags, ranks=ranks)
            for name in first:
                self.near(got[name], first[name], 1e-11, f"{flags} {name}")


class ThreeSteps(Training):
    def rows(self, expected, *more):
        names = ("input_ids", "loss_mask", "returns", *more)
        return {name: expected[f"train.{name}"].reshape(12, -1) for name in names}

    def judge(self, folder, expected):
        lines = metrics(folder / "log")
        norms = expected["train.grad_norm"].astype(np.float64)
        self.near([line["loss"] for line in lines], expected["train.loss"], 3e-5)
        self.near([line["grad_norm"] for line in lines] / norms, np.ones(3), 1e-4)
        distance = self.step3_distance(read_model(folder / "hf")[0], expected)
        self.assertTrue(self.within_step3(distance), f"{distance}")

    def test_losses_norms_and_weights(self):
        """As the fixture was made, two micro-batches of two, and otherwise; labels are not needed."""
        expected = fixture(CRITIC)
        for ranks, micro, flags, more in (
            (1, 2, (), ()),
            (1, 2, (), ("labels", "old_values")),
            (1, 4, (), ()),
            (2, 1, (), ()),
            (2, 2, (), ()),
            (1, 2, ("--fp64",), ()),
            (2, 2, ("--fp64",), ()),
        ):
            with self.subTest(ranks=ranks, micro=micro, flags=flags, more=more):
                flags = ("--value-head", "--micro-batch-size", micro, *flags)
                folder = self.train(CRITIC, self.rows(expected, *more), *flags, ranks=ranks)
                self.judge(folder, expected)
                source = acceptance.DATA / CRITIC / "expected.safetensors"
                got = self.score(folder / "hf", source, "--value-head")
                self.near(got["mean_loss"], expected["train.main_loss_after"], 1e-4)

    def test_rows_of_a_jsonl_file_under_a_token_cap(self):
        expected = fixture(CRITIC)
        rows = self.rows(expected)
        data = self.path(".jsonl")
        lines = ({name: tensor[k].tolist() for name, tensor in rows.items()} for k in range(12))
        data.write_text("\n".join(map(json.dumps, lines)))
        for ranks in (1, 2):
            flags = ("--value-head", "--max-tokens-per-micro-batch", 70)
            self.judge(self.train(CRITIC, data, *flags, ranks=ranks), expected)

    def test_padded_rows(self):
        """The loss that score finds in the same file; returns at padding, NaN here, are none of it."""
        expected = fixture(CRITIC)
        mask = expected["padded.attention_mask"]
        returns = np.full(mask.shape, np.float32("nan"))
        returns[mask == 1] = expected["packed.returns"][0]
        left, roll = left_padded(expected)
        right = {name: expected[f"padded.{name}"] for name in left}
        for what, source in (("right", {**right, "returns": returns}), ("left", {**left, "returns": roll(returns)})):
            with self.subTest(padding=what):
                rows = self.file(source)
                wanted = self.score(CRITIC, rows, "--value-head", "--fp64")
                self.near(wanted["mean_loss"], expected["packed.mean_loss"], 1e-5)
                folder = self.train(CRITIC, rows, "--value-head", "--fp64", iterations=1, batch=len(mask), lr=0)
                self.near([metrics(folder / "log")[0]["loss"]], wanted["mean_loss"], 1e-12)

    def test_every_position_counts_without_labels_and_mask(self):
        expected = fixture(CRITIC)
        rows = {name: tensor[:4] for name, tensor in self.rows(expected).items() if name != "loss_mask"}
        scored = self.score(CRITIC, rows, "--value-head", "--fp64")
        error = 0.5 * (scored["values"] - rows["returns"]) ** 2
        folder = self.train(CRITIC, rows, "--value-head", "--fp64", iterations=1)
        self.near([metrics(folder / "log")[0]["loss"]], [error.mean()], 1e-12)

    def test_the_distributed_optimizer_trains_the_same(self):
        rows = self.file(self.rows(fixture(CRITIC)))
        flags = ("--value-head", "--clip-grad", 0)
        plain = self.train(CRITIC, rows, *flags, ranks=2)
        split = self.train(CRITIC, rows, *flags, "--use-distributed-optimizer", ranks=2)
        self.same_bits(*(read_model(folder / "hf")[0] for folder in (split, plain)))
        self.judge(self.train(CRITIC, rows, "--value-head", "--use-distributed-optimizer", ranks=2), fixture(CRITIC))

    def test_evaluation(self):
        expected = fixture(CRITIC)
        held_out = self.file({name: expected[name] for name in ("input_ids", "loss_mask", "returns")})
        for ranks in (1, 2):
            flags = ("--value-head", "--eval-data", held_out, "--eval-interval", 3, "--eval-iters", 1)
            folder = self.train(CRITIC, self.rows(expected), *flags, ranks=ranks)
            losses = {line["iteration"]: line.get("eval_loss") for line in metrics(folder / "log")}
            self.near([losses[0]], expected["mean_loss"], 1e-5)
            self.near([losses[3]], expected["train.main_loss_after"], 1e-4)

    def test_a_restart_goes_on_bit_for_bit(self):
        rows = self.file(self.rows(fixture(CRITIC)))
        for ranks, flags in ((1, ()), (2, ("--bf16",))):
            with self.subTest(ranks=ranks, flags=flags):
                flags = ("--value-head", "--shuffle", *flags)
                whole_save, save = self.path("-whole"), self.path("-save")
                whole = self.train(CRITIC, rows, *flags, "--save", whole_save, ranks=ranks, iterations=4)
                first = self.train(CRITIC, rows, *flags, "--save", save, ranks=ranks, iterations=2)
                again = (*flags, "--override-opt-param-scheduler", "--save", save)
                second = self.train(save, rows, *again, ranks=ranks, iterations=4, load="--load")
                lines = without_timing(metrics(first / "log")) + without_timing(metrics(second / "log"))
                self.assertEqual(lines, without_timing(metrics(whole / "log")))
                files = sorted(
                    path.relative_to(whole_save) for path in whole_save.glob("iter_0000004/**/*.safetensors")
                )
                self.assertTrue(files)
                for file in files:
                    self.same_bits(acceptance.read(save / file), acceptance.read(whole_save / file), file)
                self.same_bits(read_model(second / "hf")[0], read_model(whole / "hf")[0])

    def test_from_a_configuration_alone(self):
        rows = self.file(self.rows(fixture(CRITIC)))
        for model in (CRITIC, "qwen3"):
            source = acceptance.DATA / model / "config.json"
            heads = []
            for seed in (1, 1, 2):
                flags = ("--value-head", "--seed", seed)
                folder = self.train(source, rows, *flags, iterations=1, lr=0, load="--init-from")
                heads.append(read_model(folder / "hf")[0][HEAD])
            self.assertEqual(heads[0].shape, (1, 48))
            self.assertEqual(heads[0].tobytes(), heads[1].tobytes())
            self.assertNotEqual(heads[0].tobytes(), heads[2].tobytes())


class OfALanguageModel(Training):
    """N1: the head is [1, hidden], new, tied to nothing and padded by nothing; the rest is the file's."""

    def critic(self, source, *flags, **options):
        rows = {name: tensor[:2] for name, tensor in train_rows(fixture("qwen3")).items() if name != "labels"}
        rows["returns"] = np.ones_like(rows["loss_mask"])
        return self.train(source, rows, "--value-head", *flags, iterations=1, batch=2, **options)

    def test_a_new_head_and_the_rest_as_it_is(self):
        untied = self.model_copy(
            "qwen3",
            change={"tie_word_embeddings": False},
            weights=lambda t: t.update({"lm_head.weight": -t["model.embed_tokens.weight"]}),
        )
        for what, source in (("tied", acceptance.DATA / "qwen3"), ("untied", untied)):
            with self.subTest(head=what):
                before = {n: t for n, t in read_model(source)[0].items() if n != "lm_head.weight"}
                folders = [self.critic(source, "--weight-decay", 0, lr=0, ranks=ranks) for ranks in (1, 1, 2)]
                weights = [read_model(folder / "hf")[0] for folder in folders]
                for other in weights[1:]:
                    self.same_bits(other, weights[0])
                head = weights[0].pop(HEAD)
                self.same_bits(weights[0], before)
                self.assertEqual((head.shape, head.dtype), ((1, 48), np.float32))
                self.assertGreater(np.abs(head).min(), 0)
                rows = before["model.embed_tokens.weight"]
                self.assertGreater(np.abs(np.abs(rows) - np.abs(head)).max(1).min(), 1e-3)
                config = json.loads((folders[0] / "hf" / "config.json").read_text())
                self.assertEqual(config["architectures"], ["Qwen3ForTokenClassification"])

                other = read_model(self.critic(source, "--seed", 7, "--weight-decay", 0, lr=0) / "hf")[0]
                self.assertNotEqual(other[HEAD].tobytes(), head.tobytes())

    def test_its_values_are_the_last_hidden_state_times_the_head(self):
        """Score draws the head that train drew; the hidden state is that of a decoder written in numpy."""
        expected = fixture("qwen3")
        source = {"input_ids": expected["input_ids"]}
        exported = self.critic(acceptance.DATA / "qwen3", "--fp64", "--weight-decay", 0, lr=0) / "hf"
        head = read_model(exported)[0][HEAD].astype(np.float64)
        config = json.loads((acceptance.DATA / "qwen3" / "config.json").read_text())
        weights = read_model(acceptance.DATA / "qwen3")[0]
        wanted = [reference.final_hidden(config, weights, ids) @ head[0] for ids in expected["input_ids"]]
        for ranks in (1, 2):
            got = self.score("qwen3", source, "--value-head", "--fp64", ranks=ranks)
            self.near(got["values"], wanted, 1e-10)
            self.same_bits(self.score(exported, source, "--value-head", "--fp64", ranks=ranks), got)

    def test_a_trained_head_comes_back_from_the_checkpoint(self):
        save = self.path("-save")
        folder = self.critic(acceptance.DATA / "qwen3", "--save", save)
        again = self.train(
            save,
            {name: np.ones((2, 3), kind) for name, kind in (("input_ids", np.int64), ("returns", np.float32))},
            "--value-head",
            "--override-opt-param-scheduler",
            iterations=1,
            batch=2,
            load="--load",
        )
        self.same_bits(read_model(again / "hf")[0], read_model(folder / "hf")[0])
        source = self.file({"input_ids": fixture("qwen3")["input_ids"]})
        output = self.path(".safetensors")
        result = run("score", "--value-head", "--load", save, "--input", source, "--output", output)
        self.same_bits(acceptance.read(output), self.score(folder / "hf", source, "--value-head"))
        self.assertNotIn("no value head", result.err)

    def test_the_new_head_is_told_once(self):
        source = self.file({"input_ids": fixture(CRITIC)["input_ids"]})
        for model, ranks, times in (("qwen3", 1, 1), ("qwen3", 2, 1), (CRITIC, 1, 0)):
            words = ("score", "--value-head", "--load-hf", acceptance.DATA / model, "--input", source)
            result = run(*words, "--output", self.path(".safetensors"), ranks=ranks)
            self.assertEqual(result.err.count("has no value head; it gets a new one, random by --seed"), times, result)


class Refused(Refusal):
    def setUp(self):
        super().setUp()
        self.expected = fixture(CRITIC)
        self.main = {n: self.expected[n] for n in ("input_ids", "loss_mask", "returns", "old_values")}
        names = ("input_ids", "loss_mask", "returns")
        self.rows = {name: self.expected[f"train.{name}"].reshape(12, -1) for name in names}

    def without(self, *names):
        return {name: tensor for name, tensor in self.main.items() if name not in names}

    def changed(self, rows, name, value, dtype=np.float32):
        return {**rows, name: np.where(np.arange(rows[name].shape[1]) == 5, dtype(value), rows[name])}

    def test_score(self):
        counted = {**self.main, "loss_mask": np.ones_like(self.main["loss_mask"])}
        cases = {
            "clip without old values": (self.without("old_values"), ("--value-clip", 0.2), "old_values", "--value-clip"),
            "clip without returns": (self.without("returns"), ("--value-clip", 0.2), "'returns'", "--value-clip"),
            "gradients without returns": (self.without("returns"), ("--grads",), "'returns'", "--grads"),
            "logits": (self.main, ("--logits",), "--logits", "--value-head"),
            "temperature": (self.main, ("--temperature", 2), "--temperature", "--value-head"),
            "returns of another shape": ({**self.main, "returns": self.main["returns"][:1]}, (), "returns"),
            "returns NaN": (self.changed(counted, "returns", "nan"), (), "returns", "nan", "position 5"),
            "returns beyond fp32": (self.changed(counted, "returns", 1e39, np.float64), (), "returns", "1e\\+39"),
            "old values inf": (self.changed(counted, "old_values", "inf"), (), "old_values", "inf", "position 5"),
            "half a position": (self.changed(self.main, "loss_mask", 0.5), (), "loss_mask", "0.5"),
            "token": ({**self.main, "input_ids": self.main["input_ids"] + 320}, (), ".safetensors: ", "320"),
        }

        def refuse(source, flags, *patterns, ranks=1):
            flags = ("--value-head", *flags)
            self.score_refused(*patterns, model=acceptance.DATA / CRITIC, source=source, flags=flags, ranks=ranks)

        self.each(cases, refuse)
        refuse(self.without("returns"), ("--grads",), "'returns'", ranks=2)
        vast = self.changed(counted, "returns", 1e30)
        for ranks in (1, 2):
            told = ("mean_loss", "not finite", "fp32")
            flags = ("--value-head", "--grads", "--fp16")
            self.score_refused(
                *told, model=acceptance.DATA / CRITIC, source=vast, flags=flags, ranks=ranks, status=2
            )
        self.score_refused(
            "--value-clip", "--value-head", model=acceptance.DATA / CRITIC, source=self.main, flags=("--value-clip", 0.2)
        )

    def test_a_critic_is_no_language_model(self):
        for ranks in (1, 2):
            told = ("value model", "mgfl score and mgfl train take it with --value-head")
            self.score_refused(*told, model=acceptance.DATA / CRITIC, source=self.main, ranks=ranks)
        self.train_refused(*told, source=acceptance.DATA / CRITIC)
        words = ("generate", "--load-hf", acceptance.DATA / CRITIC, "--max-new-tokens", 1)
        words += ("--input", self.file(self.main), "--output", self.out / "o.safetensors")
        self.refused(words, *told)

    def test_a_language_models_checkpoint_is_no_critics(self):
        save = self.folder / "save"
        rows = self.file(train_rows(fixture("qwen3")))
        words = ("train", "--load-hf", acceptance.DATA / "qwen3", "--data", rows, "--train-iters", 1, "--lr", 0)
        run(*words, "--save", save)
        flags = ("--value-head", "--override-opt-param-scheduler")
        rows = self.file({name: tensor[:, :20] for name, tensor in self.rows.items()})
        self.train_refused("language model", "--load-hf .*iter_", data=rows, load="--load", source=save, flags=flags)

    def test_train(self):
        jsonl = self.folder / "rows.jsonl"
        jsonl.write_text('{"input_ids": [5, 6], "returns": [1, 2]}\n{"input_ids": [5, 6]}\n')
        counted = {**self.rows, "loss_mask": np.ones_like(self.rows["loss_mask"])}
        no_returns = {name: tensor for name, tensor in self.rows.items() if name != "returns"}
        cases = {
            "no returns": (no_returns, "'returns'", "--value-head"),
            "no returns in a line": (jsonl, "line 2", "returns"),
            "indexed": (acceptance.DATA / "megatron" / "ids_uint16", "returns", "ids_uint16", "--value-head"),
            "blend": (["0.5", acceptance.DATA / "megatron" / "ids_uint16", "0.5", "x"], "returns", "--value-head"),
            "returns of another shape": ({**self.rows, "returns": self.rows["returns"][:3]}, "returns"),
            "returns NaN": (self.changed(counted, "returns", "nan"), "returns", "nan", "sample", "position 5"),
            "half a position": (self.changed(self.rows, "loss_mask", 0.5), "loss_mask", "0.5", "sample"),
        }

        def refuse(data, *patterns, flags=(), ranks=1):
            flags = ("--value-head", *flags)
            self.train_refused(*patterns, data=data, source=acceptance.DATA / CRITIC, flags=flags, ranks=ranks)

        self.each(cases, refuse)
        refuse(no_returns, "'returns'", ranks=2)
        refuse(self.rows, "'returns'", flags=("--eval-data", self.file(no_returns)))


if __name__ == "__main__":
    acceptance.main()
