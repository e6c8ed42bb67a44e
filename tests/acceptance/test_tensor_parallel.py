"""Tensor and sequence parallelism through the program: the fixtures' numbers, restarts at other layouts, refusals, job ends."""

import os
import re
import signal

import acceptance
import test_job_end
import test_train
from acceptance import Case, fixture, meta, metrics, np, read_model, train_rows

TP = "--tensor-model-parallel-size"
# model: (ranks, flags) of layouts that it can have
LAYOUTS = {
    "llama": ((2, (TP, 2)), (2, (TP, 2, "--sequence-parallel")), (6, (TP, 6, "--sequence-parallel"))),
    "mistral": ((4, (TP, 2)),),
    "qwen2": ((4, (TP, 4, "--sequence-parallel")),),
    "qwen3": ((2, (TP, 2, "--make-vocab-size-divisible-by", 128)), (4, (TP, 2, "--sequence-parallel"))),
}


class Score(Case):
    def test_numbers_of_the_fixtures(self):
        for model, layouts in LAYOUTS.items():
            expected = fixture(model)
            source = acceptance.DATA / model / "expected.safetensors"
            for ranks, flags in layouts:
                with self.subTest(model=model, ranks=ranks, flags=flags):
                    got = self.score(model, source, "--logits", "--grads", *flags, ranks=ranks)
                    for name in ("logits", "entropy", "token_loss"):
                        self.near(got[name], expected[name], 5e-5, name)
                    self.near(got["mean_loss"], expected["mean_loss"], 1e-5)
                    self.near_gradients(got, expected)

    def test_double_precision(self):
        for model, (ranks, flags) in (("llama", LAYOUTS["llama"][2]), ("qwen3", LAYOUTS["qwen3"][1])):
            expected = fixture(model, double=True)
            source = acceptance.DATA / model / "expected.safetensors"
            got = self.score(model, source, "--fp64", "--logits", "--grads", *flags, ranks=ranks)
            for name in ("logits", "mean_loss", *(name for name in expected if name.startswith("grad"))):
                self.near(got[name], expected[name], 1e-10, f"{model} {name}")

    def test_a_critic(self):
        source = acceptance.DATA / "qwen3_value" / "expected.safetensors"
        expected = fixture("qwen3_value")
        flags = ("--value-head", "--grads", TP, 2, "--sequence-parallel")
        got = self.score("qwen3_value", source, *flags, ranks=4)
        self.near(got["values"], expected["values"], 5e-5)
        self.near(got["mean_loss"], expected["mean_loss"], 1e-5)
        self.near_gradients(got, expected)


class Train(test_train.Training):
    def test_three_steps(self):
        for model, layouts in LAYOUTS.items():
            expected = fixture(model)
            rows = self.file(train_rows(expected))
            clip = meta(model)["optimizer"]["clip_grad_norm"]
            for (ranks, flags), more in zip(layouts, ((), ("--use-distributed-optimizer",), ())):
                with self.subTest(model=model, ranks=ranks, flags=flags):
                    words = ("--micro-batch-size", 2, "--clip-grad", clip, *flags, *more)
                    folder = self.train(model, rows, *words, ranks=ranks)
                    lines = metrics(folder / "log")
                    self.near([line["loss"] for line in lines], expected["train.loss"], 3e-5)
                    norms = [line["grad_norm"] for line in lines] / expected["train.grad_norm"]
                    self.near(norms, np.ones(3), 1e-4)
                    weights = read_model(folder / "hf")[0]
                    self.assertTrue(self.within_step3(self.step3_distance(weights, expected)))

    def test_goes_on_at_every_other_layout(self):
        rows = self.file(train_rows(fixture("qwen3")))
        flags = ("--fp64",)
        whole = self.train("qwen3", rows, *flags, iterations=4)
        layouts = (
            (2, (TP, 2, "--sequence-parallel")),
            (4, (TP, 2, "--use-distributed-optimizer")),
            (4, (TP, 4)),
            (1, ()),
        )
        for (ranks, first), (other_ranks, second) in zip(layouts, layouts[1:] + layouts[:1]):
            with self.subTest(first=first, second=second):
                save = self.path("-save")
                self.train("qwen3", rows, *flags, *first, "--save", save, ranks=ranks, iterations=2)
                rest = self.train(
                    save, rows, *flags, *second, ranks=other_ranks, iterations=4, load="--load"
                )
                for line, wanted in zip(metrics(rest / "log"), metrics(whole / "log")[2:]):
                    self.near(line["loss"], wanted["loss"], 1e-10)
                weights, wanted = (read_model(folder / "hf")[0] for folder in (rest, whole))
                for name in wanted:
                    self.near(weights[name], wanted[name], 1e-10, name)

    def test_bit_for_bit_at_the_same_layout(self):
        rows = self.file(train_rows(fixture("llama")))
        flags = ("--bf16", TP, 2, "--sequence-parallel", "--use-distributed-optimizer")
        save = self.path("-save")
        whole = self.train("llama", rows, *flags, ranks=4, iterations=4)
        self.train("llama", rows, *flags, "--save", save, ranks=4, iterations=2)
        rest = self.train(save, rows, *flags, ranks=4, iterations=4, load="--load")
        self.same_bits(read_model(rest / "hf")[0], read_model(whole / "hf")[0])

    def test_random_weights_are_those_of_one_rank(self):
        rows = self.file(train_rows(fixture("qwen2")))
        config = acceptance.DATA / "qwen2" / "config.json"
        flags = ("--seed", 3, "--weight-decay", 0)
        one, four = (
            read_model(
                self.train(config, rows, *flags, *more, ranks=n, iterations=1, lr=0, load="--init-from") / "hf"
            )[0]
            for n, more in ((1, ()), (4, (TP, 4, "--make-vocab-size-divisible-by", 96)))
        )
        self.same_bits(four, one)


class Generate(Case):
    def test_continues_as_one_rank_does(self):
        prompt = fixture("qwen3")["input_ids"][:, :5]
        source = self.file({"input_ids": prompt, "attention_mask": np.ones_like(prompt)})

        def generated(*flags, **options):
            output = self.path(".safetensors")
            words = ("generate", "--load-hf", acceptance.DATA / "qwen3", "--input", source, "--output", output)
            acceptance.run(*words, "--max-new-tokens", 9, "--fp64", *flags, **options)
            return acceptance.read(output)["output_ids"].tolist()

        for sampling in ((), ("--temperature", 1.3, "--seed", 4)):
            wanted = generated(*sampling)
            self.assertEqual(generated(*sampling, TP, 2, ranks=2), wanted)
            self.assertEqual(generated(*sampling, TP, 4, "--sequence-parallel", ranks=4), wanted)


class Refusals(Case):
    def refused(self, *flags, model="llama", ranks=2):
        source = acceptance.DATA / model / "expected.safetensors"
        words = ("score", "--load-hf", acceptance.DATA / model, "--input", source, "--output", self.path(".st"))
        result = acceptance.run(*words, *flags, ranks=ranks, status=1)
        self.assertEqual(len(re.findall(r"mgfl:", result.err)), 1, result.err)
        return result.err

    def test_layouts_that_cannot_be(self):
        self.assertRegex(self.refused(TP, 2, ranks=1), r"2.*mpirun")
        self.assertRegex(self.refused(TP, 2, ranks=3), r"3.*2")
        # 6 heads and 2 kv heads
        self.assertRegex(self.refused(TP, 4, ranks=4), r"4.*6")
        self.assertRegex(self.refused(TP, 3, ranks=3), r"(3.*2|2.*3)")
        for size in ("0", "-1", "two"):
            self.assertIn("tensor-model-parallel-size", self.refused(TP, size))


class UnlikeRanks(Case):
    """Ranks that were started with other flags are told so at the start, with what differs."""

    def test_refused(self):
        score = ("score", "--load-hf", acceptance.DATA / "llama", "--output", self.path(".safetensors"))
        score += ("--input", acceptance.DATA / "llama" / "expected.safetensors", "--timeout-seconds", 5)
        rows = self.file(train_rows(fixture("llama")))
        train = ("train", "--load-hf", acceptance.DATA / "llama", "--data", rows, "--train-iters", 1)
        train += ("--global-batch-size", 2, "--lr", 1e-3)
        for words, unlike in (
            (score, (TP, 2)),
            (score, ("--temperature", 2)),
            (score, ("--logits",)),
            (score, ("--help",)),
            (train, ("--seed", 4)),
            (train, ("--no-shuffle",)),
            (train, ("--use-distributed-optimizer",)),
        ):
            with self.subTest(unlike=unlike):
                program = acceptance.PROGRAM
                second = (":", acceptance.MPIEXEC[-1], 1, program, *words, *unlike)
                result = acceptance.run(*words, *second, ranks=1, status=1, launcher=True)
                self.assertIn("different commands or flags", result.err)
                if len(unlike) == 2:
                    self.assertIn(unlike[0].lstrip("-"), result.err)


class JobEnd(test_job_end.Job):
    """A rank that dies or stalls in the middle of a tensor-parallel step."""

    flags = (TP, 2, "--sequence-parallel")

    def test_killed(self):
        process, pids = self.start(self.path("-log"), *self.flags)
        os.kill(pids[1], signal.SIGKILL)
        status, err = self.outcome(process, 15)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, r"rank 1\b")

    def test_stopped(self):
        process, pids = self.start(self.path("-log"), *self.flags, ranks=4)
        os.kill(pids[3], signal.SIGSTOP)
        status, err = self.outcome(process, 15)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, r"mgfl.*rank 3\b")


if __name__ == "__main__":
    acceptance.main()
