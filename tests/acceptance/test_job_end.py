"""How a job of two ranks ends: a rank killed, a rank that stops answering, also during a save, a signal to one only."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import acceptance
from acceptance import (
    Case,
    environment,
    fixture,
    metrics,
    read_header,
    read_model,
    run,
    train_rows,
    without_timing,
)


def descendants(pid):
    """The processes below pid, which this test started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children] + [
        below for child in children for below in descendants(int(child))
    ]


def rank_of(pid):
    """The rank of a process of the program; None where it is another program's."""
    try:
        if Path(f"/proc/{pid}/exe").resolve() != acceptance.PROGRAM:
            return None
        variables = dict(
            item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item
        )
    except OSError:
        return None
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        if name in variables:
            return int(variables[name])
    return 0


def state(pid):
    """The letter of /proc for a process; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def alive(pid):
    return state(pid) not in ("", "Z")


class Job(Case):
    """A training job that can be disturbed."""

    iterations = 400

    def words(self, *flags, load=None):
        source = load or ("--load-hf", acceptance.DATA / "llama")
        words = [
            "train",
            *source,
            "--data",
            self.rows,
            "--train-iters",
            self.iterations,
            "--global-batch-size",
            4,
        ]
        return [*words, "--lr", 1e-4, "--lr-decay-style", "constant", "--timeout-seconds", 5, *flags]

    def setUp(self):
        super().setUp()
        self.rows = self.file(train_rows(fixture("llama")))

    def start(self, log, *flags, ranks=2):
        """A running job that has logged at least three iterations: (launcher, pid of each rank)."""
        process = subprocess.Popen(
            acceptance.command(self.words("--log-dir", log, *flags), ranks),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.addCleanup(self.end, process)
        lines, deadline = [], time.monotonic() + 60
        while len(lines) < 3:
            self.assertLess(time.monotonic(), deadline, "the job logs nothing")
            self.assertIsNone(process.poll(), "the job ended too early")
            time.sleep(0.02)
            path = log / "metrics.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
        pids = {
            rank_of(pid): pid for pid in [process.pid, *descendants(process.pid)] if rank_of(pid) is not None
        }
        self.assertEqual(sorted(pids), list(range(ranks)))
        self.pids = list(pids.values())
        return process, pids

    def end(self, process):
        for pid in getattr(self, "pids", []):
            if alive(pid) and rank_of(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
        process.communicate()

    def outcome(self, process, seconds):
        """(status, stderr) of a job that must be over in time, with every rank gone."""
        begin = time.monotonic()
        _, err = process.communicate(timeout=seconds)
        while any(alive(pid) for pid in self.pids):
            self.assertLess(time.monotonic() - begin, seconds, "a rank lives on")
            time.sleep(0.05)
        return process.returncode, err

    def stop(self, pid):
        """Stops a process, and waits until it does nothing any more."""
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while state(pid) != "T":
            self.assertLess(time.monotonic(), deadline, "a signal to stop has no effect")
            time.sleep(0.001)

    def stop_during_save(self, pids, rank, save):
        """Stops a rank while rank 0 writes a checkpoint that needs every rank; the number of its iteration.

        Rank 0 is stopped at any time, then looked at: between saves, and where the last file is begun, it goes on.
        """
        deadline = time.monotonic() + 10
        while True:
            self.assertLess(time.monotonic(), deadline, "no save was met")
            if not list(save.glob("iter_*.tmp-*")):
                time.sleep(0.0005)
                continue
            self.stop(pids[0])
            begun = list(save.glob("iter_*.tmp-*"))
            if begun and not list(begun[0].glob("exp_avg_sq.*")):
                break
            os.kill(pids[0], signal.SIGCONT)
        if rank != 0:
            self.stop(pids[rank])
            os.kill(pids[0], signal.SIGCONT)
        return int(begun[0].stem.removeprefix("iter_"))

    def stopped_during_save(self, rank, *flags):
        """A rank that stops during a save: the job ends in time, and goes on from what was saved before."""
        seconds = 5
        whole_run = ("--lr-decay-iters", 1000, "--lr-warmup-iters", 0, *flags)
        log, save = self.path("-log"), self.path("-save")
        process, pids = self.start(log, "--save", save, "--save-interval", 1, *whole_run)
        cut_off = self.stop_during_save(pids, rank, save)
        status, err = self.outcome(process, seconds + 10)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, rf"mgfl: rank {1 - rank} waited {seconds} s in .* for rank {rank}, .* stopped")
        # What has a checkpoint's name is whole, and that is all of before.
        saved = sorted(save.glob("iter_???????"))
        self.assertEqual([folder.name for folder in saved], [f"iter_{i:07}" for i in range(1, cut_off)])
        for folder in saved:
            files = json.loads((folder / "manifest.json").read_text())["files"]
            self.assertEqual(sorted(path.name for path in folder.iterdir()),
                             sorted(["manifest.json", *(file["name"] for file in files)]))
            for file in files:
                self.assertEqual((folder / file["name"]).stat().st_size, file["size"], file["name"])
                if file["name"].endswith(".safetensors"):
                    header, data = read_header(folder / file["name"])
                    self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(data))
        # It goes on as if nothing had been, and what was cut off goes away.
        self.iterations = cut_off + 2
        rest, whole, target = self.path("-rest"), self.path("-whole"), (self.path("-a"), self.path("-b"))
        more = ("--save", save, "--save-hf", target[0])
        run(*self.words("--log-dir", rest, *more, *whole_run, load=("--load", save)), ranks=2)
        run(*self.words("--log-dir", whole, "--save-hf", target[1], *whole_run), ranks=2)
        lines = without_timing(metrics(whole))
        self.assertEqual([line["iteration"] for line in metrics(rest)], [cut_off, cut_off + 1, cut_off + 2])
        self.assertEqual(without_timing(metrics(rest)), lines[cut_off - 1 :])
        self.same_bits(read_model(target[0])[0], read_model(target[1])[0])
        self.assertEqual(list(save.glob("*.tmp-*")), [])
        self.assertEqual((save / "latest_checkpointed_iteration.txt").read_text(), str(self.iterations))


class JobEnd(Job):
    def test_a_killed_rank_ends_the_job(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                process, pids = self.start(self.path("-log"))
                os.kill(pids[rank], signal.SIGKILL)
                status, err = self.outcome(process, 15)
                self.assertNotEqual(status, 0)
                self.assertRegex(err, rf"rank {rank}\b")

    def test_a_stopped_rank_ends_the_job(self):
        process, pids = self.start(self.path("-log"))
        os.kill(pids[1], signal.SIGSTOP)
        status, err = self.outcome(process, 15)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, r"mgfl.*rank 1\b")

    def resumed(self, signalled, ranks):
        """SIGTERM to some ranks, then a restart: the whole equals the uninterrupted run."""
        log, save = self.path("-log"), self.path("-save")
        process, pids = self.start(log, "--save", save, ranks=ranks)
        for rank in signalled:
            os.kill(pids[rank], signal.SIGTERM)
        status, err = self.outcome(process, 15)
        self.assertEqual(status, 3, err)
        before = metrics(log)
        self.assertLess(len(before), self.iterations)
        rest, whole, target = self.path("-rest"), self.path("-whole"), (self.path("-a"), self.path("-b"))
        again = self.words("--log-dir", rest, "--save-hf", target[0], load=("--load", save))
        run(*again, ranks=ranks, timeout=120)
        run(*self.words("--log-dir", whole, "--save-hf", target[1]), ranks=ranks, timeout=120)
        lines = without_timing(before) + without_timing(metrics(rest))
        self.assertEqual(lines, without_timing(metrics(whole)))
        self.same_bits(read_model(target[0])[0], read_model(target[1])[0])

    def test_sigterm_to_one_rank_saves_and_ends_both(self):
        self.iterations = 100
        self.resumed([1], 2)

    def test_sigterm_without_mpi(self):
        self.iterations = 60
        self.resumed([0], 1)


class SaveEnd(Job):
    """A rank that stops while rank 0 writes what it gathers from both."""

    def test_the_writing_rank_of_two_with_parts_of_the_optimizer(self):
        self.stopped_during_save(0, "--use-distributed-optimizer")

    def test_the_other_rank_of_two_with_parts_of_the_optimizer(self):
        self.stopped_during_save(1, "--use-distributed-optimizer")

    def test_the_writing_rank_of_two_with_parts_of_the_layers(self):
        self.stopped_during_save(0, "--tensor-model-parallel-size", 2)

    def test_the_other_rank_of_two_with_parts_of_the_layers(self):
        self.stopped_during_save(1, "--tensor-model-parallel-size", 2, "--sequence-parallel")


if __name__ == "__main__":
    acceptance.main()
