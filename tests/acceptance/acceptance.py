"""What the acceptance tests share: running the program, safetensors files, the fixtures and their bounds.

Test programs are called as `test_X.py PROGRAM DATA [MPIEXEC...]`. Nothing here shares code with the program.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = None
DATA = None
MPIEXEC = []
MODELS = ("llama", "mistral", "qwen2", "qwen3")
MODELS_IN_DOUBLE = ("llama", "qwen2", "qwen3")

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
}


def main():
    """Takes the program, the data folder and the MPI launcher off the command line, then runs the tests."""
    global PROGRAM, DATA, MPIEXEC
    if len(sys.argv) < 3:
        sys.exit("usage: test_X.py PROGRAM DATA [MPIEXEC FLAGS... -n] [-- unittest arguments]")
    arguments = sys.argv[1:]
    rest = []
    if "--" in arguments:
        rest = arguments[arguments.index("--") + 1 :]
        arguments = arguments[: arguments.index("--")]
    PROGRAM, DATA = Path(arguments[0]).resolve(), Path(arguments[1]).resolve()
    MPIEXEC = arguments[2:] or ["mpirun", "--bind-to", "none", "--oversubscribe", "-n"]
    unittest.main(argv=[sys.argv[0], *rest])


# --- safetensors ---


def read_header(path):
    """(header without __metadata__, bytes of the data) of a safetensors file."""
    content = Path(path).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, content[8 + length :]


def read(path):
    """All tensors of a safetensors file; bf16 comes widened to fp32."""
    header, data = read_header(path)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def write_bytes(path, header, data=b""):
    """A safetensors file with this header (text or what json takes) and these data, right or wrong."""
    text = header if isinstance(header, str) else json.dumps(header)
    Path(path).write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data)


def write(path, tensors, dtypes=None):
    """A correct safetensors file. dtypes: names to "BF16" for fp32 arrays to be rounded (to nearest even)."""
    names = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
    header, blocks, offset = {}, [], 0
    for name, array in tensors.items():
        array = np.ascontiguousarray(array)
        dtype = (dtypes or {}).get(name) or names[array.dtype]
        if dtype == "BF16":
            bits = array.astype(np.float32).view(np.uint32)
            array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        block = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(block)],
        }
        blocks.append(block)
        offset += len(block)
    write_bytes(path, header, b"".join(blocks))


def read_model(folder):
    """(tensors, entries of the headers) of a Hugging Face folder, in one file or in shards with an index."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    tensors, entries = {}, {}
    if index.exists():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        shards = ["model.safetensors"]
    for shard in shards:
        tensors.update(read(folder / shard))
        entries.update(read_header(folder / shard)[0])
    return tensors, entries


# --- fixtures ---


def fixture(model, double=False):
    """The expected tensors of a model; those of the float64 file win where double is asked for."""
    tensors = read(DATA / model / "expected.safetensors")
    if double:
        tensors.update(read(DATA / model / "expected64.safetensors"))
    return tensors


def meta(model):
    return json.loads((DATA / model / "meta.json").read_text())


def train_rows(expected):
    """The rows of the three steps of four sequences, as one data file has them."""
    return {name: expected[f"train.{name}"].reshape(12, -1) for name in ("input_ids", "labels", "loss_mask")}


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def pick(log_probs, labels):
    """log_probs[..., labels]; 0 where the label is ignored."""
    picked = np.take_along_axis(log_probs, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return np.where(labels >= 0, picked, 0)


# --- running ---


class Result:
    def __init__(self, arguments, status, out, err):
        self.arguments, self.status, self.out, self.err = arguments, status, out, err

    def __str__(self):
        words = " ".join(map(str, self.arguments))
        return f"{words}\nstatus {self.status}\n--- out\n{self.out}--- err\n{self.err}"


def environment(extra=None):
    return {
        **os.environ,
        "OMP_WAIT_POLICY": "passive",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **(extra or {}),
    }


def command(arguments, ranks=1, launcher=None):
    start = [*MPIEXEC, ranks] if (ranks > 1 if launcher is None else launcher) else []
    without = not arguments or arguments[0] == "overrides" or "--threads" in arguments
    threads = [] if without else ["--threads", 1]
    return [str(part) for part in [*start, PROGRAM, *arguments, *threads]]


def run(*arguments, ranks=1, launcher=None, status=0, env=None, cwd=None, timeout=60):
    """Runs the program, on several ranks under the MPI launcher; status None takes any."""
    words = command(arguments, ranks, launcher)
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(env),
        cwd=cwd,
        timeout=timeout,
    )
    result = Result(words, done.returncode, done.stdout, done.stderr)
    if status is not None and result.status != status:
        raise AssertionError(f"expected status {status}:\n{result}")
    return result


class Case(unittest.TestCase):
    """A test with a folder of its own and the comparisons of the fixtures' bounds."""

    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mgfl-acceptance-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.count = 0

    def path(self, suffix=""):
        """A new name in the test's folder."""
        self.count += 1
        return self.folder / f"{self.count}{suffix}"

    def model_copy(self, model, config="config.json", change=None, weights=None):
        """A copy of a fixture's model, with another of its configs, keys changed, or weights changed.

        change: {key: value} or a function of the config; a value of `...` removes the key.
        weights: a function of the tensors (a dict), which are then written as one file.
        """
        folder = self.path(f"-{model}")
        folder.mkdir()
        source = DATA / model
        content = json.loads((source / config).read_text())
        if callable(change):
            change(content)
        else:
            for key, value in (change or {}).items():
                if value is ...:
                    content.pop(key, None)
                else:
                    content[key] = value
        (folder / "config.json").write_text(json.dumps(content, indent=1))
        if weights:
            tensors = dict(read_model(source)[0])
            weights(tensors)
            write(folder / "model.safetensors", tensors)
        else:
            for file in source.glob("model*.safetensors*"):
                shutil.copy(file, folder)
        return folder

    def file(self, tensors, **options):
        path = self.path(".safetensors")
        write(path, tensors, **options)
        return path

    def score(self, model, source, *flags, **options):
        """The tensors that score writes. source: a file, or tensors to be written to one."""
        if isinstance(source, dict):
            source = self.file(source)
        folder = model if isinstance(model, Path) else DATA / model
        output = self.path(".safetensors")
        run("score", "--load-hf", folder, "--input", source, "--output", output, *flags, **options)
        return read(output)

    def near(self, got, wanted, bound, what=""):
        """Same shape, and no element further off than the bound, which NaN never is within."""
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        self.assertEqual(got.shape, wanted.shape, what)
        if got.size:
            difference = np.abs(got - wanted).max()
            self.assertTrue(difference <= bound, f"{what}: off by {difference:.3g}, allowed {bound:.3g}")

    def same_bits(self, got, wanted, what=""):
        """The same names with bitwise the same tensors."""
        self.assertEqual(sorted(got), sorted(wanted), what)
        for name in wanted:
            self.assertEqual(got[name].dtype, wanted[name].dtype, f"{what} {name}")
            self.assertEqual(got[name].shape, wanted[name].shape, f"{what} {name}")
            self.assertEqual(got[name].tobytes(), wanted[name].tobytes(), f"{what} {name}")

    def near_gradients(self, got, wanted, what=""):
        names = sorted(name for name in wanted if name.startswith("grad."))
        self.assertEqual(sorted(name for name in got if name.startswith("grad.")), names, what)
        for name in names:
            self.near(got[name], wanted[name], 2e-6 + 1e-4 * np.abs(wanted[name]).max(), f"{what} {name}")
        norm = float(wanted["grad_norm"][0])
        self.near(got["grad_norm"], [norm], 1e-4 * norm, f"{what} grad_norm")

    def step3_distance(self, weights, expected):
        """What judges the weights after three steps: (99 % point, largest, largest median of a tensor)."""
        names = sorted(name[len("step3.") :] for name in expected if name.startswith("step3."))
        self.assertEqual(sorted(weights), names)
        differences = {
            name: np.abs(weights[name].astype(np.float64) - expected[f"step3.{name}"]) for name in names
        }
        everything = np.concatenate([difference.ravel() for difference in differences.values()])
        self.assertTrue(np.isfinite(everything).all())
        return (
            float(np.quantile(everything, 0.99)),
            float(everything.max()),
            max(float(np.median(difference)) for difference in differences.values()),
        )

    def within_step3(self, distance):
        return distance[0] <= 1.5e-6 and distance[1] <= 1e-3 and distance[2] <= 5e-7


def metrics(folder):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def without_timing(lines):
    timing = ("tokens_per_second", "step_seconds", "peak_rss_bytes")
    return [{key: value for key, value in line.items() if key not in timing} for line in lines]
