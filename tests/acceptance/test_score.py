"""score: the fixtures' numbers on one and two ranks, whatever the packing, padding and micro-batches."""

import acceptance
from acceptance import MODELS, MODELS_IN_DOUBLE, Case, fixture, log_softmax, meta, np, pick


def left_padded(expected):
    """The fixture's padded sequences with the padding in front."""
    inputs, labels, mask = (expected[f"padded.{name}"] for name in ("input_ids", "labels", "attention_mask"))
    lengths = mask.sum(1)
    roll = lambda rows: np.stack([np.roll(row, len(row) - n) for row, n in zip(rows, lengths)])
    return {"input_ids": roll(inputs), "labels": roll(labels), "attention_mask": roll(mask)}, roll


class FixtureNumbers(Case):
    def judge(self, got, expected, what):
        for name in ("logits", "entropy", "token_loss"):
            self.near(got[name], expected[name], 5e-5, f"{what} {name}")
        self.near(got["log_probs"], expected["token_logprob"], 5e-5, f"{what} log_probs")
        self.near(got["mean_loss"], expected["mean_loss"], 1e-5, f"{what} mean_loss")
        self.assertEqual(got["num_tokens"].tolist(), expected["num_tokens"].tolist(), what)
        self.assertEqual(got["num_tokens"].dtype, np.int64)
        self.near_gradients(got, expected, what)

    def test_both_spellings_on_one_and_two_ranks(self):
        for model in MODELS:
            expected = fixture(model)
            for config in ("config.json", "config_alt.json"):
                folder = self.model_copy(model, config)
                source = acceptance.DATA / model / "expected.safetensors"
                for ranks in (1, 2):
                    with self.subTest(model=model, config=config, ranks=ranks):
                        got = self.score(folder, source, "--logits", "--grads", ranks=ranks)
                        self.judge(got, expected, f"{model} {config} {ranks}")

    def test_double_precision(self):
        for model in MODELS_IN_DOUBLE:
            expected = fixture(model, double=True)
            source = acceptance.DATA / model / "expected.safetensors"
            log_probs = log_softmax(expected["logits"])
            entropy = -(np.exp(log_probs) * log_probs).sum(-1)
            for ranks in (1, 2) if model == "qwen3" else (1,):
                with self.subTest(model=model, ranks=ranks):
                    got = self.score(model, source, "--fp64", "--logits", "--grads", ranks=ranks)
                    self.assertEqual(got["logits"].dtype, np.float64)
                    names = [name for name in expected if name.startswith("grad")]
                    for name in ("logits", "token_loss", "mean_loss", *names):
                        self.near(got[name], expected[name], 1e-10, f"{model} {name}")
                    self.near(got["entropy"], entropy, 1e-10, f"{model} entropy")

    def test_bf16_mean_loss(self):
        for model in MODELS:
            if "bf16_mean_loss" in meta(model):
                with self.subTest(model=model):
                    got = self.score(model, acceptance.DATA / model / "expected.safetensors", "--bf16")
                    self.near(got["mean_loss"], fixture(model)["bf16.mean_loss"], 0.02, model)


class HalfPrecision(Case):
    def near_those_of(self, full, half, what):
        for name in full:
            if name.startswith("grad"):
                self.near(half[name], full[name], 2e-2 * np.abs(full[name]).max(), f"{what} {name}")

    def test_fp16_gradients_have_no_loss_scale_on_them(self):
        for ranks in (1, 2):
            source = acceptance.DATA / "qwen3" / "expected.safetensors"
            full, half = (self.score("qwen3", source, "--grads", *f, ranks=ranks) for f in ((), ("--fp16",)))
            self.near_those_of(full, half, f"{ranks} ranks")

    def test_of_a_critic_also_where_the_first_scales_overflow(self):
        expected = fixture("qwen3_value")
        for factor, ranks in ((1, 1), (3000, 1), (3000, 2)):
            source = {name: expected[name] for name in ("input_ids", "loss_mask", "returns")}
            source["returns"] = factor * source["returns"]
            flags = ("--value-head", "--grads")
            full = self.score("qwen3_value", source, *flags)
            half = self.score("qwen3_value", source, *flags, "--fp16", ranks=ranks)
            self.near_those_of(full, half, f"returns x {factor}")


class Sequences(Case):
    def test_packed_equals_each_sequence_alone(self):
        for model in MODELS:
            expected = fixture(model)
            source = acceptance.DATA / model / "expected.safetensors"
            for ranks in (1, 2) if model in ("llama", "mistral") else (1,):
                with self.subTest(model=model, ranks=ranks):
                    flags = ("--prefix", "packed.", "--grads", "--logits")
                    got = self.score(model, source, *flags, ranks=ranks)
                    self.near(got["token_loss"], expected["packed.token_loss"], 5e-5, model)
                    self.near(got["log_probs"], -expected["packed.token_loss"], 5e-5, model)
                    self.near(got["mean_loss"], expected["packed.mean_loss"], 1e-5, model)
                    norm = float(expected["packed.grad_norm"][0])
                    self.near(got["grad_norm"], [norm], 1e-4 * norm, model)
                    self.assertEqual(got["logits"].shape[:2], expected["packed.input_ids"].shape)

    def test_packed_in_one_dimension_and_without_positions(self):
        expected = fixture("qwen3")
        source = {name: expected[f"packed.{name}"][0] for name in ("input_ids", "labels")}
        got = self.score("qwen3", {**source, "cu_seqlens": expected["packed.cu_seqlens"]})
        self.near(got["token_loss"], expected["packed.token_loss"][0], 5e-5)

    def test_padded_at_the_right_and_at_the_left(self):
        for model in MODELS:
            expected = fixture(model)
            with self.subTest(model=model, padding="right"):
                source = acceptance.DATA / model / "expected.safetensors"
                got = self.score(model, source, "--prefix", "padded.", "--grads")
                self.near(got["token_loss"], expected["padded.token_loss"], 5e-5, model)
                self.near(got["mean_loss"], expected["packed.mean_loss"], 1e-5, model)
                norm = float(expected["packed.grad_norm"][0])
                self.near(got["grad_norm"], [norm], 1e-4 * norm, model)
            with self.subTest(model=model, padding="left"):
                source, roll = left_padded(expected)
                got = self.score(model, source, "--grads")
                self.near(got["token_loss"], roll(expected["padded.token_loss"]), 5e-5, model)
                self.near(got["mean_loss"], expected["packed.mean_loss"], 1e-5, model)
                self.near(got["grad_norm"], [norm], 1e-4 * norm, model)
                padding = source["attention_mask"] == 0
                self.assertEqual(np.abs(got["log_probs"][padding]).max(), 0)
                self.assertEqual(np.abs(got["token_loss"][padding]).max(), 0)

    def test_a_mask_of_booleans(self):
        expected = fixture("llama")
        source, roll = left_padded(expected)
        got = self.score("llama", {**source, "attention_mask": source["attention_mask"].astype(bool)})
        self.near(got["token_loss"], roll(expected["padded.token_loss"]), 5e-5)

    def test_left_padded_on_two_ranks(self):
        expected = fixture("llama")
        source, roll = left_padded(expected)
        got = self.score("llama", source, "--micro-batch-size", 2, ranks=2)
        self.near(got["token_loss"], roll(expected["padded.token_loss"]), 5e-5)

    def test_more_ranks_than_sequences(self):
        expected = fixture("qwen2")
        one = {name: expected[name][1:] for name in ("input_ids", "labels", "loss_mask")}
        got = self.score("qwen2", one, "--grads", ranks=2)
        self.near(got["token_loss"], expected["token_loss"][1:], 5e-5)
        alone = self.score("qwen2", one, "--grads")
        self.near_gradients(got, alone)

    def test_labels_default_to_the_next_token_of_the_same_sequence(self):
        expected = fixture("llama")
        bounds = expected["packed.cu_seqlens"]
        last = bounds[1:] - 1
        wanted = expected["packed.token_loss"].copy()
        wanted[0, last] = 0
        source = {"input_ids": expected["packed.input_ids"], "cu_seqlens": bounds}
        got = self.score("llama", source)
        self.near(got["token_loss"], wanted, 5e-5)
        self.assertEqual(int(got["num_tokens"][0]), int(bounds[-1]) - len(last))


class Batches(Case):
    def test_micro_batches_and_token_caps_agree(self):
        expected = fixture("llama")
        # Rows of very unequal numbers of counted tokens, so that a mean of means would show.
        mask = expected["train.loss_mask"][1].copy()
        mask[0, :3] = 1
        mask[1] = 0
        source = {
            "input_ids": expected["train.input_ids"][1],
            "labels": expected["train.labels"][1],
            "loss_mask": mask,
        }
        length = mask.shape[1]
        results = {}
        for flags in (
            ("--micro-batch-size", 1),
            ("--micro-batch-size", 2),
            ("--micro-batch-size", 4),
            ("--max-tokens-per-micro-batch", 2 * length),
            ("--max-tokens-per-micro-batch", 3 * length),
        ):
            results[flags] = self.score("llama", source, "--grads", *flags)
        results["two ranks"] = self.score("llama", source, "--grads", "--micro-batch-size", 1, ranks=2)
        first = results["--micro-batch-size", 1]
        token_loss = first["token_loss"].astype(np.float64)
        self.near(first["mean_loss"], [(token_loss * mask).sum() / mask.sum()], 1e-5)
        for flags, got in results.items():
            with self.subTest(flags=flags):
                self.near(got["mean_loss"], first["mean_loss"], 1e-5)
                self.near(got["token_loss"], first["token_loss"], 2e-5)
                self.assertEqual(int(got["num_tokens"][0]), int(mask.sum()))
                for name in first:
                    if name.startswith("grad"):
                        bound = 1e-5 * np.abs(first[name]).max() + 1e-7
                        self.near(got[name], first[name], bound, name)

    def test_no_counted_token_at_all(self):
        expected = fixture("qwen3")
        source = {name: expected[name] for name in ("input_ids", "labels")}
        for ranks in (1, 2):
            got = self.score(
                "qwen3", {**source, "loss_mask": 0 * expected["loss_mask"]}, "--grads", ranks=ranks
            )
            self.assertEqual(int(got["num_tokens"][0]), 0)
            self.assertEqual(float(got["mean_loss"][0]), 0)
            self.near(got["token_loss"], expected["token_loss"], 5e-5)
            for name in got:
                if name.startswith("grad"):
                    self.assertEqual(np.abs(got[name]).max(), 0, name)

    def test_ignored_labels(self):
        expected = fixture("qwen2")
        labels = expected["labels"].copy()
        labels[:, ::3] = -100
        got = self.score("qwen2", {"input_ids": expected["input_ids"], "labels": labels})
        kept = labels >= 0
        self.near(got["token_loss"], np.where(kept, expected["token_loss"], 0), 5e-5)
        self.assertEqual(int(got["num_tokens"][0]), kept.sum())
        self.near(got["mean_loss"], [expected["token_loss"][kept].mean()], 1e-5)


class Temperature(Case):
    def test_log_probs_and_entropy(self):
        for model, temperature in (("llama", 0.7), ("qwen3", 1.6)):
            expected = fixture(model, double=True)
            log_probs = log_softmax(expected["logits"] / temperature)
            for flags, bound in ((("--fp64",), 1e-10), ((), 1e-4)):
                with self.subTest(model=model, flags=flags):
                    source = acceptance.DATA / model / "expected.safetensors"
                    got = self.score(model, source, "--temperature", temperature, *flags)
                    self.near(got["log_probs"], pick(log_probs, expected["labels"]), bound)
                    self.near(got["entropy"], -(np.exp(log_probs) * log_probs).sum(-1), bound)
                    loss = -pick(log_probs, expected["labels"]) * expected["loss_mask"]
                    self.near(got["mean_loss"], [loss.sum() / expected["loss_mask"].sum()], bound)

    def test_gradient_is_that_of_the_tempered_loss(self):
        """Against a central difference over one weight of the head and one of the first layer."""
        expected = fixture("llama")
        source = {name: expected[name] for name in ("input_ids", "labels", "loss_mask")}
        flags = ("--temperature", 0.7, "--fp64")
        got = self.score("llama", source, "--grads", *flags)
        for name in ("lm_head.weight", "model.layers.0.self_attn.k_proj.weight"):
            place = np.unravel_index(np.abs(got[f"grad.{name}"]).argmax(), got[f"grad.{name}"].shape)
            losses, weights = [], []
            for sign in (-1, 1):

                def shift(tensors):
                    tensors[name] = tensors[name].copy()
                    tensors[name][place] += np.float32(sign * 2.0**-9)
                    weights.append(float(tensors[name][place]))

                folder = self.model_copy("llama", weights=shift)
                losses.append(float(self.score(folder, source, *flags)["mean_loss"][0]))
            slope = (losses[1] - losses[0]) / (weights[1] - weights[0])
            self.near(got[f"grad.{name}"][place], slope, 1e-3 * abs(slope), name)


if __name__ == "__main__":
    acceptance.main()
