"""train: three steps as in the fixtures, restarts, the learning rate, evaluation, what is exported."""

import json

import acceptance
from acceptance import MODELS, MODELS_IN_DOUBLE, Case, fixture, meta, metrics, np, read_model, run, train_rows
from acceptance import without_timing


class Training(Case):
    def train(
        self, model, rows, *flags, ranks=1, iterations=3, batch=4, lr=1e-3, load="--load-hf", **options
    ):
        """Trains in file order with a constant learning rate; returns the folder with log/ and hf/."""
        folder = self.path("-run")
        folder.mkdir()
        if isinstance(rows, dict):
            rows = self.file(rows)
        source = model if not isinstance(model, str) else acceptance.DATA / model
        words = ["train", load, source, "--data", rows, "--train-iters", iterations]
        words += [
            "--global-batch-size",
            batch,
            "--lr",
            lr,
            "--log-dir",
            folder / "log",
            "--save-hf",
            folder / "hf",
        ]
        defaults = {"--lr-decay-style": "constant", "--adam-beta2": 0.95, "--weight-decay": 0.1}
        for flag, value in defaults.items():
            if flag not in flags:
                words += [flag, value]
        if "--shuffle" in flags:
            flags = [flag for flag in flags if flag != "--shuffle"]
        else:
            words.append("--no-shuffle")
        self.result = run(*words, *flags, ranks=ranks, **options)
        return folder


class ThreeSteps(Training):
    def test_losses_norms_and_weights(self):
        for model in MODELS:
            expected = fixture(model)
            rows = self.file(train_rows(expected))
            clip = meta(model)["optimizer"]["clip_grad_norm"]
            layouts = (
                ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2)) if model == "llama" else ((1, 1), (1, 4), (2, 2))
            )
            for ranks, micro in layouts:
                with self.subTest(model=model, ranks=ranks, micro=micro):
                    flags = ("--micro-batch-size", micro, "--clip-grad", clip)
                    folder = self.train(model, rows, *flags, ranks=ranks)
                    lines = metrics(folder / "log")
                    self.assertEqual([line["iteration"] for line in lines], [1, 2, 3])
                    norms = expected["train.grad_norm"].astype(np.float64)
                    self.near([line["loss"] for line in lines], expected["train.loss"], 3e-5)
                    self.near([line["grad_norm"] for line in lines] / norms, np.ones(3), 1e-4)
                    self.assertEqual([line["lr"] for line in lines], [1e-3] * 3)
                    distance = self.step3_distance(read_model(folder / "hf")[0], expected)
                    self.assertTrue(self.within_step3(distance), f"{distance}")

    def test_double_precision(self):
        for model in MODELS_IN_DOUBLE:
            expected = fixture(model, double=True)
            rows = self.file(train_rows(expected))
            clip = meta(model)["optimizer"]["clip_grad_norm"]
            for ranks in (1, 2) if model == "llama" else (1,):
                with self.subTest(model=model, ranks=ranks):
                    flags = ("--micro-batch-size", 2, "--clip-grad", clip, "--fp64")
                    folder = self.train(model, rows, *flags, ranks=ranks)
                    lines = metrics(folder / "log")
                    self.near([line["loss"] for line in lines], expected["train.loss"], 1e-10)
                    self.near([line["grad_norm"] for line in lines], expected["train.grad_norm"], 1e-10)
                    weights, entries = read_model(folder / "hf")
                    self.assertEqual({entry["dtype"] for entry in entries.values()}, {"F64"})
                    config = json.loads((folder / "hf" / "config.json").read_text())
                    self.assertIn("float64", (config.get("dtype"), config.get("torch_dtype")))
                    names = sorted(name[6:] for name in expected if name.startswith("step3."))
                    self.assertEqual(sorted(weights), names)
                    for name in names:
                        self.near(weights[name], expected[f"step3.{name}"], 1e-10, name)

    def test_wrong_optimizers_break_the_bounds(self):
        expected = fixture("llama")
        rows = self.file(train_rows(expected))
        for wrong in (
            ("--clip-grad", 0),
            ("--weight-decay", 0),
            ("--adam-beta2", 0.999),
            ("--adam-eps", 1e-7),
            ("--lr", 1.001e-3),
        ):
            with self.subTest(wrong=wrong):
                flags, lr = (wrong, 1e-3) if wrong[0] != "--lr" else ((), wrong[1])
                folder = self.train("llama", rows, "--micro-batch-size", 2, *flags, lr=lr)
                self.assertFalse(
                    self.within_step3(self.step3_distance(read_model(folder / "hf")[0], expected))
                )


class DistributedOptimizer(Training):
    flag = "--use-distributed-optimizer"

    def test_losses_norms_and_weights_are_the_same(self):
        """Bit for bit: with --clip-grad 0 no rounding of the norm enters the weights."""
        rows = self.file(train_rows(fixture("llama")))
        for flags in ((), ("--bf16",), ("--fp16", "--initial-loss-scale", 65536), ("--fp64",)):
            with self.subTest(flags=flags):
                flags = (*flags, "--clip-grad", 0, "--micro-batch-size", 2)
                plain = self.train("llama", rows, *flags, ranks=2)
                split = self.train("llama", rows, *flags, self.flag, ranks=2)
                lines = [without_timing(metrics(folder / "log")) for folder in (plain, split)]
                norms = [[line.pop("grad_norm") for line in each] for each in lines]
                self.assertEqual(*lines)
                self.near(np.divide(*norms), np.ones(3), 1e-12)
                self.same_bits(*(read_model(folder / "hf")[0] for folder in (split, plain)))

    def test_recorded_numbers_in_double_precision(self):
        expected = fixture("llama", double=True)
        rows = self.file(train_rows(expected))
        clip = meta("llama")["optimizer"]["clip_grad_norm"]
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                flags = ("--max-tokens-per-micro-batch", 64, "--clip-grad", clip, "--fp64", self.flag)
                folder = self.train("llama", rows, *flags, ranks=ranks)
                lines = metrics(folder / "log")
                self.near([line["loss"] for line in lines], expected["train.loss"], 1e-10)
                self.near([line["grad_norm"] for line in lines], expected["train.grad_norm"], 1e-10)
                weights = read_model(folder / "hf")[0]
                for name in weights:
                    self.near(weights[name], expected[f"step3.{name}"], 1e-10, name)

    def test_memory(self):
        """14 million weights in bf16: main weights and moments take 12 bytes each, a fourth of that on 4 ranks."""
        config = json.loads((acceptance.DATA / "qwen3" / "config.json").read_text())
        config["vocab_size"] = 300000
        source = self.path("-config.json")
        source.write_text(json.dumps(config))
        rows = {"input_ids": np.arange(32).reshape(4, 8)}
        flags = ("--bf16", "--micro-batch-size", 1)
        peaks = []
        for more in ((), (self.flag,)):
            folder = self.train(source, rows, *flags, *more, ranks=4, iterations=2, load="--init-from")
            peaks.append(metrics(folder / "log")[-1]["peak_rss_bytes"])
        saved = 300000 * config["hidden_size"] * 12 * 3 / 4
        self.assertGreater(peaks[0] - peaks[1], 0.75 * saved)

    def test_a_restart_with_and_without(self):
        rows = self.file(train_rows(fixture("qwen3")))
        flags = ("--shuffle", "--bf16", "--clip-grad", 0)
        split = (*flags, self.flag)
        save = self.path("-save")
        whole = self.train("qwen3", rows, *split, ranks=2, iterations=4)
        self.train("qwen3", rows, *split, "--save", save, ranks=2, iterations=2)
        for words, ranks in ((split, 2), (flags, 2), (flags, 1), (split, 1), (split, 4)):
            with self.subTest(words=words, ranks=ranks):
                words = (*words, "--override-opt-param-scheduler")
                rest = self.train(save, rows, *words, ranks=ranks, iterations=4, load="--load")
                if ranks == 2:
                    self.same_bits(*(read_model(folder / "hf")[0] for folder in (rest, whole)))
                else:  # the sum over ranks has another order
                    got, expected = (metrics(folder / "log")[-1]["loss"] for folder in (rest, whole))
                    self.near(got, expected, 1e-3)


class OtherOptimizer(Training):
    """SGD, and rates of embedding and output layer."""

    sgd = ("--optimizer", "sgd", "--clip-grad", 0)

    def test_two_steps_of_sgd_by_hand(self):
        """In double: torch's formula on the recorded gradient, then on that of the weights after the first step."""
        for model in ("qwen2", "llama"):
            expected = fixture(model, double=True)
            rows = {name: expected[name] for name in ("input_ids", "labels", "loss_mask")}
            count = len(rows["input_ids"])
            twice = {name: np.concatenate([values, values]) for name, values in rows.items()}
            flags = (*self.sgd, "--fp64", "--sgd-momentum", 0.75)
            runs = [
                self.train(model, twice, *flags, iterations=steps, batch=count, lr=0.05) for steps in (1, 2)
            ]
            folders = (acceptance.DATA / model, *(run / "hf" for run in runs))
            start, first, second = (read_model(folder)[0] for folder in folders)
            later = self.score(runs[0] / "hf", rows, "--grads", "--fp64")
            for name, weight in start.items():
                weight = weight.astype(np.float64)
                decay = 0.1 if weight.ndim > 1 else 0
                momentum = expected[f"grad.{name}"] + decay * weight
                weight = weight - 0.05 * momentum
                self.near(first[name], weight, 1e-12, name)
                momentum = 0.75 * momentum + later[f"grad.{name}"] + decay * weight
                self.near(second[name], weight - 0.05 * momentum, 1e-12, name)

    def test_a_restart_of_sgd_goes_on_bit_for_bit(self):
        rows = self.file(train_rows(fixture("qwen3")))
        flags = ("--shuffle", *self.sgd, "--bf16")
        for words, ranks in (((), 1), (("--use-distributed-optimizer",), 2)):
            with self.subTest(words=words):
                save = self.path("-save")
                words = (*flags, *words)
                whole = self.train("qwen3", rows, *words, ranks=ranks, iterations=4)
                self.train("qwen3", rows, *words, "--save", save, ranks=ranks, iterations=2)
                files = sorted(path.name for path in save.glob("*/*.safetensors"))
                self.assertEqual(files, ["model.safetensors", "momentum_buffer.safetensors"])
                rest = self.train(save, rows, *words, ranks=ranks, iterations=4, load="--load")
                self.same_bits(*(read_model(folder / "hf")[0] for folder in (rest, whole)))

    def test_what_a_restart_refuses(self):
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        self.train("qwen3", rows, "--save", save, iterations=1)
        for flags, lr, sentence in (
            (self.sgd, 1e-3, "optimizer is sgd, but the checkpoint holds the state of adam"),
            ((), 2e-3, r"max_lr \(--lr\) is 0.002.* here and 0.001.* in the checkpoint"),
            (("--weight-decay", 0.2), 1e-3, r"start_wd \(--weight-decay\) is 0.2"),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(AssertionError, sentence):
                self.train(save, rows, *flags, lr=lr, iterations=2, load="--load")

    def test_rates_of_embedding_and_output_layer(self):
        """Of 0, with weight decay: they stay, everything else moves."""
        rows = self.file(train_rows(fixture("llama")))
        start = read_model(acceptance.DATA / "llama")[0]
        for ranks, more in ((1, ()), (2, ("--use-distributed-optimizer",))):
            folder = self.train("llama", rows, "--decoupled-lr", 0, *more, ranks=ranks, iterations=2)
            self.assertEqual([line["decoupled_lr"] for line in metrics(folder / "log")], [0, 0])
            trained = read_model(folder / "hf")[0]
            still = {name for name in start if (trained[name] == start[name]).all()}
            self.assertEqual(still, {"model.embed_tokens.weight", "lm_head.weight"})


    def test_flags_and_runs_that_change_nothing_are_told_of(self):
        rows = self.file(train_rows(fixture("llama")))
        self.train("llama", rows, "--loss-scale", 8, "--sgd-momentum", 0.5, ranks=2, iterations=1)
        for flag in ("--loss-scale", "--sgd-momentum"):
            self.assertEqual(self.result.err.count(f"warning: {flag} changes nothing without"), 1)
        folder = self.train("llama", rows, "--fp16", "--initial-loss-scale", 1e30, ranks=2, iterations=2)
        self.assertTrue(all(line["skipped"] for line in metrics(folder / "log")))
        self.assertEqual(self.result.err.count("warning: all 2 iterations were skipped"), 1)
        self.train("llama", rows, iterations=1)
        self.assertNotIn("warning", self.result.err)


class Repeatability(Training):
    flags = ("--shuffle", "--lr-decay-style", "cosine", "--lr-decay-iters", 8, "--lr-warmup-iters", 2)

    def test_two_runs_are_bitwise_equal(self):
        rows = self.file(train_rows(fixture("qwen2")))
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                runs = [self.train("qwen2", rows, *self.flags, ranks=ranks, iterations=4) for _ in range(2)]
                lines = [without_timing(metrics(folder / "log")) for folder in runs]
                self.assertEqual(lines[0], lines[1])
                self.same_bits(*(read_model(folder / "hf")[0] for folder in runs))

    def test_a_restart_goes_on_bit_for_bit(self):
        rows = self.file(train_rows(fixture("llama")))
        for ranks, flags in ((1, ()), (2, ()), (1, ("--bf16",)), (2, ("--bf16",))):
            with self.subTest(ranks=ranks, flags=flags):
                flags = (*self.flags, *flags)
                whole_save, half_save, end_save = self.path("-whole"), self.path("-half"), self.path("-end")
                whole = self.train("llama", rows, *flags, "--save", whole_save, ranks=ranks, iterations=4)
                first = self.train("llama", rows, *flags, "--save", half_save, ranks=ranks, iterations=2)
                again = (*flags, "--override-opt-param-scheduler", "--save", end_save)
                second = self.train(half_save, rows, *again, ranks=ranks, iterations=4, load="--load")
                lines = without_timing(metrics(first / "log")) + without_timing(metrics(second / "log"))
                self.assertEqual(lines, without_timing(metrics(whole / "log")))
                # The main weights and both moments, which an exported bf16 copy would not show.
                files = sorted(path.relative_to(whole_save) for path in whole_save.rglob("*.safetensors"))
                self.assertTrue(files)
                for file in files:
                    self.same_bits(acceptance.read(end_save / file), acceptance.read(whole_save / file), file)
                with self.subTest("exported", ranks=ranks, flags=flags[-1]):
                    self.same_bits(read_model(second / "hf")[0], read_model(whole / "hf")[0])

    def test_the_whole_run_in_one_folder_of_checkpoints(self):
        """Save every 2 of 4 iterations and restart into the same folder: the last checkpoint is taken."""
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        whole = self.train("qwen3", rows, "--shuffle", iterations=5)
        self.train("qwen3", rows, "--shuffle", "--save", save, "--save-interval", 2, iterations=4)
        again = ("--shuffle", "--override-opt-param-scheduler", "--save", save)
        rest = self.train(save, rows, *again, iterations=5, load="--load")
        self.same_bits(read_model(rest / "hf")[0], read_model(whole / "hf")[0])
        self.assertEqual([line["iteration"] for line in metrics(rest / "log")], [5])

    def test_more_iterations_need_no_override_where_the_schedule_is_the_same(self):
        """--train-iters counts those before the restart; here neither lr nor weight decay depends on it."""
        rows = self.file(train_rows(fixture("qwen3")))
        for flags in ((), ("--lr-decay-style", "cosine", "--lr-decay-iters", 8)):
            with self.subTest(flags=flags):
                save = self.path("-save")
                self.train("qwen3", rows, *flags, "--save", save, iterations=1)
                self.train(save, rows, *flags, iterations=2, load="--load")

    def test_another_run_does_not_save_into_the_same_folder(self):
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        self.train("qwen3", rows, "--save", save, iterations=1)
        before = sorted(path.name for path in save.iterdir())
        with self.assertRaisesRegex(AssertionError, "holds checkpoints of another run"):
            self.train("qwen3", rows, "--save", save, "--keep-last", 1, iterations=1)
        self.assertEqual(sorted(path.name for path in save.iterdir()), before)

    def test_an_older_checkpoint_by_its_own_folder(self):
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        whole = self.train("qwen3", rows, "--save", save, "--save-interval", 1, iterations=3)
        again = self.train(save / "iter_0000002", rows, iterations=3, load="--load")
        self.same_bits(read_model(again / "hf")[0], read_model(whole / "hf")[0])
        self.assertEqual([line["iteration"] for line in metrics(again / "log")], [3])

    def test_another_schedule_is_refused(self):
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        self.train("qwen3", rows, "--save", save, iterations=1)
        with self.assertRaisesRegex(AssertionError, "status 1[^0-9]"):
            self.train(save, rows, iterations=2, lr=2e-3, load="--load")

    def test_keep_last(self):
        rows = self.file(train_rows(fixture("qwen3")))
        save = self.path("-save")
        self.train("qwen3", rows, "--save", save, "--save-interval", 1, "--keep-last", 2, iterations=4)
        folders = sorted(path.name for path in save.iterdir() if path.is_dir())
        self.assertEqual(len(folders), 2, folders)
        self.assertTrue(folders[0].endswith("3") and folders[1].endswith("4"), folders)


class SmallUpdates(Training):
    """L6, M7: main weights, gradients and sums over ranks are fp32 where weights and activations are bf16."""

    def test_updates_below_bf16s_resolution_add_up(self):
        rows = {name: tensor[:4] for name, tensor in train_rows(fixture("llama")).items()}
        flags = ("--micro-batch-size", 4, "--weight-decay", 0)
        runs = {
            name: read_model(
                self.train("llama", rows, *flags, *more, iterations=10, lr=1e-4, ranks=ranks) / "hf"
            )[0]
            for name, more, ranks in (
                ("fp32", (), 1),
                ("bf16", ("--bf16",), 1),
                ("two ranks", ("--bf16", "--micro-batch-size", 1), 2),
            )
        }
        before = read_model(acceptance.DATA / "llama")[0]
        for name in ("bf16", "two ranks"):
            for tensor in ("model.norm.weight", "lm_head.weight"):
                moved = runs[name][tensor] - before[tensor]
                wanted = runs["fp32"][tensor] - before[tensor]
                self.assertGreater(np.median(np.abs(wanted)), 4e-4)
                self.assertLess(np.median(np.abs(moved - wanted)), 2e-4, f"{name} {tensor}")

    def test_hundreds_of_micro_batches_add_up(self):
        """300 equal micro-batches have the gradient of one; a bf16 sum would stick at 256."""
        expected = fixture("qwen3")
        row = {name: tensor[:1, :8] for name, tensor in train_rows(expected).items()}
        row["loss_mask"] = np.ones_like(row["loss_mask"])
        many = {name: np.repeat(tensor, 300, 0) for name, tensor in row.items()}
        norms = []
        for rows, batch in ((row, 1), (many, 300)):
            folder = self.train("qwen3", rows, "--bf16", iterations=1, batch=batch, lr=0)
            norms.append(metrics(folder / "log")[0]["grad_norm"])
        self.near([norms[1]], [norms[0]], 1e-4 * norms[0])


class Exported(Training):
    def test_untrained_weights_are_bit_equal(self):
        for model in MODELS:
            for ranks in (1, 2) if model == "qwen3" else (1,):
                with self.subTest(model=model, ranks=ranks):
                    rows = train_rows(fixture(model))
                    folder = self.train(model, rows, "--weight-decay", 0, ranks=ranks, iterations=1, lr=0)
                    got, entries = read_model(folder / "hf")
                    wanted, wanted_entries = read_model(acceptance.DATA / model)
                    self.same_bits(got, wanted)
                    for name, entry in wanted_entries.items():
                        self.assertEqual(entries[name]["dtype"], entry["dtype"])

    def test_bf16_weights_stay_bf16_and_bit_equal(self):
        expected = fixture("qwen2")
        source = self.model_copy("qwen2", change={"torch_dtype": "bfloat16"})
        weights = read_model(source)[0]
        acceptance.write(source / "model.safetensors", weights, {name: "BF16" for name in weights})
        for precision in ("--bf16", None):
            with self.subTest(precision=precision):
                flags = [precision] if precision else []
                folder = self.train(
                    source, train_rows(expected), "--weight-decay", 0, *flags, iterations=1, lr=0
                )
                got, entries = read_model(folder / "hf")
                self.assertEqual({entry["dtype"] for entry in entries.values()}, {"BF16"})
                self.same_bits(got, read_model(source)[0])

    def test_the_exported_folder_loads_again(self):
        """The fixture's loss after three steps, from the exported folder and from the checkpoint."""
        for model in MODELS:
            for config in ("config.json", "config_alt.json") if model == "llama" else ("config_alt.json",):
                with self.subTest(model=model, config=config):
                    expected = fixture(model)
                    save = self.path("-save")
                    source = self.model_copy(model, config)
                    flags = ("--micro-batch-size", 4, "--save", save)
                    folder = self.train(source, train_rows(expected), *flags)
                    data = acceptance.DATA / model / "expected.safetensors"
                    got = self.score(folder / "hf", data)
                    # Single elements may differ by 1e-3, which the loss shows only faintly.
                    self.near(got["mean_loss"], expected["train.main_loss_after"], 1e-4)
                    output = self.path(".safetensors")
                    run("score", "--load", save, "--input", data, "--output", output)
                    self.same_bits(acceptance.read(output), got)
                    before = json.loads((source / "config.json").read_text())
                    after = json.loads((folder / "hf" / "config.json").read_text())
                    for key in ("architectures", "model_type", "vocab_size", "hidden_size", "eos_token_id"):
                        self.assertEqual(after[key], before[key], key)

    def test_export_into_an_older_sharded_folder(self):
        """F8: nothing stale is referenced; what the folder then holds is the new model."""
        rows = train_rows(fixture("qwen3"))
        target = self.model_copy("qwen3")
        source = acceptance.DATA / "llama"
        run(
            "train",
            "--load-hf",
            source,
            "--data",
            self.file(train_rows(fixture("llama"))),
            "--train-iters",
            1,
            "--lr",
            0,
            "--weight-decay",
            0,
            "--save-hf",
            target,
        )
        index = target / "model.safetensors.index.json"
        if index.exists():
            self.assertNotIn("model-00002-of-00002.safetensors", index.read_text())
        wanted = self.score("llama", acceptance.DATA / "llama" / "expected.safetensors")
        self.same_bits(self.score(target, acceptance.DATA / "llama" / "expected.safetensors"), wanted)
        files = sorted(path.name for path in target.glob("*.safetensors"))
        tensors = [name for file in files for name in acceptance.read_header(target / file)[0]]
        self.assertEqual(
            sorted(tensors), sorted(read_model(source)[0]), "every tensor in one file, no stale shard"
        )


class WeightDecay(Training):
    def test_matrices_only(self):
        """L3, by two runs in double: the decay is lr x decay x w for matrices, 0 for the rest."""
        rows = train_rows(fixture("qwen3"))
        runs = [
            read_model(self.train("qwen3", rows, "--fp64", "--weight-decay", decay, iterations=1) / "hf")[0]
            for decay in (0, 0.5)
        ]
        before = read_model(acceptance.DATA / "qwen3")[0]
        for name, weight in before.items():
            decayed = 1e-3 * 0.5 * weight.astype(np.float64) if weight.ndim > 1 else np.zeros(weight.shape)
            self.near(runs[0][name] - runs[1][name], decayed, 1e-12, name)


class LearningRate(Training):
    def test_warm_up_starts_at_zero(self):
        rows = train_rows(fixture("llama"))
        flags = ("--lr-warmup-iters", 4, "--lr-decay-iters", 10, "--micro-batch-size", 3)
        folder = self.train("llama", rows, *flags, iterations=5, batch=3)
        got = [line["lr"] for line in metrics(folder / "log")]
        self.near(got, np.array([0, 0.25, 0.5, 0.75, 1]) * 1e-3, 1e-12)
        first = self.train("llama", rows, *flags, iterations=1, batch=3)
        self.same_bits(read_model(first / "hf")[0], read_model(acceptance.DATA / "llama")[0])
        second = self.train("llama", rows, *flags, iterations=2, batch=3)
        name = "lm_head.weight"
        moved = read_model(second / "hf")[0][name] - read_model(acceptance.DATA / "llama")[0][name]
        # Adam moves a weight by about the learning rate; weight decay adds little.
        self.assertTrue(1e-4 < np.abs(moved).max() < 4e-4, np.abs(moved).max())

    def test_decay_styles(self):
        """OptimizerParamScheduler's curves by their definitions, in samples of 4 an iteration."""
        rows = train_rows(fixture("qwen3"))
        peak, low, warm, decay = 1e-3, 1e-4, 2, 6
        position = np.arange(8)
        progress = np.clip((position - warm) / (decay - warm), 0, 1)
        curves = {
            "linear": low + (1 - progress) * (peak - low),
            "cosine": low + 0.5 * (np.cos(np.pi * progress) + 1) * (peak - low),
            "inverse-square-root": np.maximum(low, peak * np.sqrt(warm) / np.sqrt(np.maximum(position, 1))),
        }
        for style, curve in curves.items():
            with self.subTest(style=style):
                curve = np.where(position < warm, peak * position / warm, curve)
                curve = np.where(position > decay, low, curve)
                flags = ("--lr-decay-style", style, "--lr-decay-iters", decay, "--lr-warmup-iters", warm)
                folder = self.train(
                    "qwen3", rows, *flags, "--min-lr", low, "--micro-batch-size", 4, iterations=8
                )
                self.near([line["lr"] for line in metrics(folder / "log")], curve, 1e-12, style)

    def test_no_warm_up_starts_at_the_peak(self):
        rows = train_rows(fixture("qwen3"))
        folder = self.train("qwen3", rows, "--lr-decay-style", "linear", "--lr-decay-iters", 4, iterations=6)
        got = [line["lr"] for line in metrics(folder / "log")]
        self.near(got, np.array([1, 0.75, 0.5, 0.25, 0, 0]) * 1e-3, 1e-12)

    def test_nothing_counted_leaves_the_weights(self):
        """A4: all masked, weight decay 0: nothing moves, nothing is NaN, on one rank and on two."""
        rows = train_rows(fixture("qwen2"))
        rows["loss_mask"] = 0 * rows["loss_mask"]
        folder = self.train("qwen2", rows, "--weight-decay", 0, iterations=2, ranks=2)
        self.same_bits(read_model(folder / "hf")[0], read_model(acceptance.DATA / "qwen2")[0])
        for line in metrics(folder / "log"):
            self.assertTrue(line["loss"] in (0, None) and not line["grad_norm"], line)


class Evaluation(Training):
    def test_before_and_after(self):
        expected = fixture("llama")
        held_out = self.file({name: expected[name] for name in ("input_ids", "labels", "loss_mask")})
        flags = ("--eval-data", held_out, "--eval-interval", 2, "--eval-iters", 1, "--micro-batch-size", 2)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.train("llama", train_rows(expected), *flags, ranks=ranks)
                losses = {
                    line["iteration"]: line["eval_loss"]
                    for line in metrics(folder / "log")
                    if line.get("eval_loss") is not None
                }
                self.assertEqual(sorted(losses), [0, 2, 3])
                self.near([losses[0]], expected["mean_loss"], 1e-5)
                self.near([losses[3]], expected["train.main_loss_after"], 1e-4)
                distance = self.step3_distance(read_model(folder / "hf")[0], expected)
                self.assertTrue(self.within_step3(distance), "evaluation leaves training as it is")


if __name__ == "__main__":
    acceptance.main()
