"""What a build says of its vendor: `mgfl overrides`, the line at a run's start, and MG_FL_PREFER in the environment."""

import json
import re
import subprocess
from collections import Counter

import acceptance
from acceptance import Case, fixture, run


START = r"^vendor '(\w+)', kernels '(\w+)': (\d+) of (\d+) targets overridden \((.*)\)$"


class Overrides(Case):
    def setUp(self):
        super().setUp()
        self.table = json.loads(run("overrides", "--json").out)
        rows = fixture("llama")
        self.input = self.path(".safetensors")
        acceptance.write(self.input, {name: rows[name] for name in ("input_ids", "labels", "loss_mask")})

    def score(self, **options):
        output = self.path("-out.safetensors")
        words = ("score", "--load-hf", acceptance.DATA / "llama", "--input", self.input, "--output", output)
        return run(*words, **options), output

    def test_table(self):
        text = run("overrides").out
        first, *lines = text.splitlines()
        known = ", ".join(self.table["known_vendors"])
        self.assertTrue(first.startswith(f"mgfl: built for vendor '{self.table['vendor']}' (known: {known})"), text)
        self.assertEqual(len(lines), len(self.table["targets"]))
        for line, target in zip(lines, self.table["targets"]):
            self.assertEqual(line.split()[:3], [target["key"], target["kind"], target["vendor"]])
            self.assertTrue(target["path"].endswith("." + target["key"]))
        self.assertIn("default", self.table["known_vendors"])

    def test_table_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [acceptance.PROGRAM, "overrides"], stdout=full, stderr=subprocess.PIPE, env=acceptance.environment(None)
            )
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"cannot be written to standard output", done.stderr)

    def test_start_up_line(self):
        """Vendor, kernel set, and how many overrides are active; said once, whatever the number of ranks."""
        counts = Counter(target["vendor"] for target in self.table["targets"])
        total = counts.total()
        counts.pop("original", None)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                result, _ = self.score(ranks=ranks)
                found = re.findall(START, result.err, re.MULTILINE)
                self.assertEqual(len(found), 1, f"\n{result}")
                vendor, kernels, active, of, by_vendor = found[0]
                self.assertEqual((vendor, kernels), (self.table["vendor"], self.table["kernels"]))
                self.assertEqual((int(active), int(of)), (counts.total(), total))
                pairs = (part.rsplit(" ", 1) for part in by_vendor.split(", "))
                self.assertEqual({name: int(count) for name, count in pairs}, counts)

    def test_environment_that_names_another_vendor(self):
        """One message of several lines, for every command: what was built, what is known, what to do."""
        other = next(name for name in self.table["known_vendors"] if name != self.table["vendor"])
        expected = (
            f"mgfl: MG_FL_PREFER='{other}' in the environment, but this program was built for vendor "
            f"'{self.table['vendor']}'.\n"
            "  The vendor is chosen at compile time; the variable cannot change it.\n"
            f"  Known to this build: {', '.join(self.table['known_vendors'])}\n"
            f"  Rebuild with  cmake -B build -DMG_FL_PREFER={other}  or unset MG_FL_PREFER.\n"
        )
        env = {"MG_FL_PREFER": f" {other.upper()} "}
        for command in ("overrides", "train", "score", "generate", "bench"):
            with self.subTest(command=command):
                self.assertEqual(run(command, "--help", status=None, env=env).err, expected)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                result, output = self.score(ranks=ranks, status=1, env=env)
                self.assertEqual(result.err.count(expected), 1, f"\n{result}")
                self.assertFalse(output.exists())

    def test_environment_that_agrees(self):
        for value in ("", "  ", self.table["vendor"], f" {self.table['vendor'].upper()}\t"):
            with self.subTest(value=value):
                self.score(env={"MG_FL_PREFER": value})

    def test_environment_conflict_as_warning(self):
        result, output = self.score(ranks=2, env={"MG_FL_PREFER": "nonsense", "MG_FL_PREFER_CONFLICT": "warn"})
        self.assertEqual(result.err.count("mgfl: warning: MG_FL_PREFER='nonsense' in the environment"), 1, f"\n{result}")
        self.assertIn(", ".join(self.table["known_vendors"]), result.err)
        self.assertTrue(output.exists())


if __name__ == "__main__":
    acceptance.main()
