"""One job of two builds, for two vendors: it does not start, and says which ranks are which.

The other build is the default vendor's, where it was built beside this one."""

import sys
from pathlib import Path

import acceptance
from acceptance import Case, fixture, run

OTHER = Path(__file__).resolve().parents[2] / "build" / "mgfl"


class MixedBuilds(Case):
    def test_training_does_not_start(self):
        rows = fixture("llama")
        data = self.path(".safetensors")
        acceptance.write(data, {name: rows[name] for name in ("input_ids", "labels", "loss_mask")})
        saved = self.path("-saved")
        words = ["train", "--load-hf", acceptance.DATA / "llama", "--data", data, "--train-iters", 1, "--lr", 1e-3]
        words += ["--save", saved, "--threads", 1]
        result = run(*words, ":", acceptance.MPIEXEC[-1], 2, OTHER, *words, ranks=1, status=1, launcher=True)
        self.assertEqual(result.err.count("mgfl: the ranks of this job were built with different overrides:"), 1)
        self.assertRegex(result.err, r"\n  rank 0: vendor '\w+', kernels '\w+': \d+ of \d+ targets overridden")
        self.assertRegex(result.err, r"\n  ranks 1, 2: vendor 'default', kernels '\w+': \d+ of \d+ targets overridden")
        self.assertIn("\n  Start every rank from one build", result.err)
        self.assertFalse(saved.exists())


if __name__ == "__main__":
    if not OTHER.exists() or OTHER.samefile(Path(sys.argv[1])):
        print("skipped: there is no other build")
        sys.exit(77)
    acceptance.main()
