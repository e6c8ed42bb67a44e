"""The benchmarks of ranks end with status 1 and name what fell short where a promised ratio is not reached."""
import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import communicator
import parallel
from promises import shortfall

FOLDER = Path(__file__).parent
# What stands in for a program under mpirun, whose first rank prints.
FIRST_RANK = """#!{python}
import json, os, sys
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")) != "0":
    sys.exit()
"""
# For `mgfl bench`: one of two ranks is told by its single thread.
PROGRAM = FIRST_RANK + """
tp, rank = "--tensor-model-parallel-size" in sys.argv, sys.argv[sys.argv.index("--threads") + 1] == "1"
print(json.dumps({{"step_seconds_all": [{seconds}["tp" if tp else "dp" if rank else "one"]]}}))
"""
# For bench_communicator.
COMMUNICATOR = FIRST_RANK + """
print("Mpi::all_reduce        2 ranks 64 MB fp32 {ms:9.3f} ms")
"""


class Promises(unittest.TestCase):
    def test_only_what_falls_short_is_named(self):
        self.assertIsNone(shortfall([]))
        self.assertIsNone(shortfall([("one", 0.9, 0.9), ("two", 3.0, 2.0), ("three", 0.1, None)]))
        self.assertEqual(shortfall([("one", 0.8999, 0.9), ("two", 0.9, 0.9), ("three", 0.5, None)]),
                         "fell short: one reached 0.8999, promised 0.9.")
        self.assertEqual(shortfall([("one", 0.5, 0.9), ("two", float("nan"), 2.0)]),
                         "fell short: one reached 0.5, promised 0.9; two reached nan, promised 2.")

    def test_layouts_beside_one_process(self):
        one, eight = "one process, 2 threads", "one process, 2 threads, 8 heads"
        # Medians 2 and 8; dp 2 at 2 / 2.5, tp 2 at 8 / 10, with sequence parallelism at 8 / 16.
        seconds = {one: [1, 2, 9], eight: [8], "dp 2": [2.5], "tp 2": [10, 4, 11], "tp 2, sequence parallel": [16]}
        found = parallel.ratios(seconds)
        self.assertEqual(found, [(f"dp 2 beside {one}", 0.8, 0.9), (f"tp 2 beside {eight}", 0.8, 0.8),
                                 (f"tp 2, sequence parallel beside {eight}", 0.5, 0.8)])
        self.assertEqual(shortfall(found), f"fell short: dp 2 beside {one} reached 0.8, promised 0.9; "
                                           f"tp 2, sequence parallel beside {eight} reached 0.5, promised 0.8.")

    def test_large_all_reduce_beside_gloo(self):
        best = {"gloo all_reduce": 30.0, "Mpi::all_reduce": 20.0}
        self.assertEqual(communicator.ratio(2, 64, best)[1:], (1.5, 2.0))
        self.assertIn("2 ranks 64 MB", shortfall([communicator.ratio(2, 64, best)]))
        best["Mpi::all_reduce"] = 15.0
        self.assertIsNone(shortfall([communicator.ratio(2, 64, best)]))
        best["Mpi::all_reduce"] = 90.0  # of other sizes and ranks nothing is promised
        self.assertIsNone(shortfall([communicator.ratio(4, 64, best), communicator.ratio(2, 1, best)]))

    def program(self, folder, text, **values):
        path = Path(folder) / "program"
        path.write_text(text.format(python=sys.executable, **values))
        path.chmod(0o755)
        return str(path)

    def test_status_of_parallel(self):
        fell_short = "fell short: dp 2 beside one process, 2 threads reached 0.5, promised 0.9.\n"
        for dp, status, error in ((1.0, 0, ""), (2.0, 1, fell_short)):
            with self.subTest(dp=dp), tempfile.TemporaryDirectory() as folder:
                program = self.program(folder, PROGRAM, seconds={"one": 1.0, "tp": 1.0, "dp": dp})
                done = subprocess.run([sys.executable, "-B", FOLDER / "parallel.py", program, "--rounds", "1"],
                                      capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (status, error), done.stdout)

    def test_status_of_communicator(self):
        gloo = mock.patch.object(communicator, "run_gloo", return_value={"gloo all_reduce": 30.0})  # needs torch
        fell_short = "fell short: 2 ranks 64 MB: Mpi::all_reduce over Gloo's rate reached 1.5, promised 2."
        for ms, answer in ((10, None), (20, fell_short)):
            with self.subTest(ms=ms), tempfile.TemporaryDirectory() as folder, gloo:
                words = ["communicator.py", self.program(folder, COMMUNICATOR, ms=ms), "--rounds", "2"]
                with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as out:
                    with self.assertRaises(SystemExit) as end:
                        communicator.main()
                self.assertEqual(end.exception.code, answer)
                self.assertIn("4 ranks 64 MB: Mpi::all_reduce over Gloo's rate", out.getvalue())


if __name__ == "__main__":
    unittest.main()
