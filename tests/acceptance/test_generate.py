"""generate: greedy continuations are the argmax chain of score's logits; sampling keeps to its limits."""

import acceptance
from acceptance import MODELS, Case, fixture, np, run


class Generate(Case):
    def generate(self, model, source, *flags, new=6, **options):
        """The output's sequences as lists."""
        path = source if not isinstance(source, dict) else self.file(source)
        folder = acceptance.DATA / model if isinstance(model, str) else model
        output = self.path(".safetensors")
        run(
            "generate",
            "--load-hf",
            folder,
            "--input",
            path,
            "--output",
            output,
            "--max-new-tokens",
            new,
            *flags,
            **options
        )
        got = acceptance.read(output)
        self.assertEqual(got["output_ids"].dtype, np.int64)
        self.assertEqual(got["cu_seqlens"].dtype, np.int32)
        bounds = got["cu_seqlens"].tolist()
        self.assertEqual(bounds[-1], got["output_ids"].size)
        ids = got["output_ids"].ravel()
        return [ids[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:])]

    def logits(self, model, sequences):
        """Score's logits of each sequence, packed."""
        bounds = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int32)
        source = {"input_ids": np.concatenate(sequences).astype(np.int64), "cu_seqlens": bounds}
        logits = self.score(model, source, "--logits")["logits"].reshape(bounds[-1], -1)
        return [logits[a:b] for a, b in zip(bounds[:-1], bounds[1:])]

    def prompts(self, model):
        expected = fixture(model)
        return [
            expected["input_ids"][0, :11].tolist(),
            expected["input_ids"][1, :4].tolist(),
            [expected["input_ids"][0, 20].item()],
        ]

    def packed(self, prompts):
        bounds = np.concatenate([[0], np.cumsum([len(p) for p in prompts])]).astype(np.int32)
        return {"input_ids": np.concatenate(prompts).astype(np.int64), "cu_seqlens": bounds}

    def padded(self, prompts, left):
        width = max(len(p) for p in prompts)
        ids, mask = np.zeros((2, len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            place = slice(width - len(prompt), None) if left else slice(len(prompt))
            ids[row, place], mask[row, place] = prompt, 1
        return {"input_ids": ids, "attention_mask": mask}


class Greedy(Generate):
    def test_argmax_chain(self):
        for model in MODELS:
            with self.subTest(model=model):
                prompts = self.prompts(model)
                got = self.generate(model, self.packed(prompts), new=8)
                self.assertEqual([len(s) for s in got], [8] * len(prompts))
                whole = [prompt + new for prompt, new in zip(prompts, got)]
                # By causality, one pass over the whole chain shows every step's choice.
                for logits, prompt, new in zip(self.logits(model, whole), prompts, got):
                    self.assertEqual(logits.argmax(-1)[len(prompt) - 1 : -1].tolist(), new)

    def test_each_step_scored_by_itself(self):
        prompt = self.prompts("mistral")[0]
        chain = list(prompt)
        for _ in range(3):
            chain.append(int(self.logits("mistral", [chain])[0][-1].argmax()))
        self.assertEqual(self.generate("mistral", self.packed([prompt]), new=3), [chain[len(prompt) :]])

    def test_padded_packed_and_spread_over_ranks(self):
        for model in ("llama", "mistral"):
            prompts = self.prompts(model)
            wanted = [self.generate(model, self.packed([prompt]))[0] for prompt in prompts]
            forms = [
                ("packed", self.packed(prompts), (), 1),
                ("right", self.padded(prompts, False), (), 1),
                ("left", self.padded(prompts, True), ("--micro-batch-size", 2), 1),
                ("two ranks", self.padded(prompts, True), (), 2),
            ]
            if model == "llama":
                forms = [("cap", self.packed(prompts), ("--max-tokens-per-micro-batch", 24), 1), forms[2]]
            for what, source, flags, ranks in forms:
                with self.subTest(model=model, what=what):
                    self.assertEqual(self.generate(model, source, *flags, ranks=ranks), wanted)

    def test_ends_at_eos(self):
        prompts = self.prompts("qwen3")
        free = self.generate("qwen3", self.packed(prompts), new=8)
        stop = free[0][3]
        end = lambda ids: ids[: ids.index(stop)] if stop in ids else ids
        for eos in (stop, [stop, 330]):
            with self.subTest(eos=eos):
                folder = self.model_copy("qwen3", change={"eos_token_id": eos})
                got = self.generate(folder, self.packed(prompts), new=8)
                for row, whole in zip(got, free):
                    self.assertEqual([token for token in row if token != stop], end(whole))
                    self.assertTrue(stop not in row or row.index(stop) == len(row) - 1)


class Sampling(Generate):
    def test_limits_of_one_are_greedy(self):
        source = self.padded(self.prompts("llama"), True)
        greedy = self.generate("llama", source)
        for flags in (
            ("--top-k", 1),
            ("--top-p", 1e-6),
            ("--temperature", 0),
            ("--temperature", 2, "--top-k", 1),
        ):
            with self.subTest(flags=flags):
                self.assertEqual(self.generate("llama", source, *flags, "--seed", 5), greedy)

    def test_repeatable_by_seed(self):
        source = self.packed(self.prompts("qwen2"))
        flags = ("--temperature", 1.2)
        first = self.generate("qwen2", source, *flags, "--seed", 5, new=12)
        self.assertEqual(self.generate("qwen2", source, *flags, "--seed", 5, new=12), first)
        self.assertNotEqual(self.generate("qwen2", source, *flags, "--seed", 6, new=12), first)
        self.assertNotEqual(first, self.generate("qwen2", source, new=12))
        self.assertEqual(self.generate("qwen2", source, *flags, "--seed", 5, new=12, ranks=2), first)

    def test_top_k_and_top_p_keep_the_likeliest(self):
        prompts = [self.prompts("llama")[0]] * 8
        for flags, allowed in (
            (("--top-k", 3), lambda p: np.sort(p)[-3]),
            (("--top-p", 0.3), lambda p: np.sort(p)[::-1][(np.cumsum(np.sort(p)[::-1]) < 0.3 - 1e-6).sum()]),
        ):
            with self.subTest(flags=flags):
                got = self.generate("llama", self.packed(prompts), *flags, "--seed", 9, new=5)
                self.assertTrue(len({tuple(row) for row in got}) > 1, "equal prompts are sampled apart")
                whole = [prompt + new for prompt, new in zip(prompts, got)]
                for logits, prompt, new in zip(self.logits("llama", whole), prompts, got):
                    for step, token in enumerate(new):
                        p = np.exp(logits[len(prompt) - 1 + step].astype(np.float64))
                        p /= p.sum()
                        self.assertTrue(p[token] >= allowed(p) * (1 - 1e-5), (step, token))

    def test_frequencies_follow_the_distribution(self):
        prompt = self.prompts("llama")[0]
        logits = self.logits("llama", [prompt])[0][-1].astype(np.float64) / 0.5
        p = np.exp(logits - logits.max())
        p /= p.sum()
        count = 400
        rows = {
            "input_ids": np.array([prompt] * count),
            "attention_mask": np.ones((count, len(prompt)), np.int64),
        }
        flags = ("--temperature", 0.5, "--seed", 3, "--micro-batch-size", 100)
        tokens = [row[0] for row in self.generate("llama", rows, *flags, new=1)]
        top = int(p.argmax())
        share = tokens.count(top) / count
        self.near(share, p[top], 5 * np.sqrt(p[top] * (1 - p[top]) / count))


if __name__ == "__main__":
    acceptance.main()
