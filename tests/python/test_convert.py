"""convert_smollm2.py: row order, rounding, names; no weights needed."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

support.need("numpy", "safetensors")

import numpy as np

import convert_smollm2
from command_line import InputError


def rotate(states, position, interleaved):
    """Rotary embedding of [heads, head_dim] states, pairs in GGUF's order or in Hugging Face's."""
    heads, dim = states.shape
    angle = position / 100.0 ** (np.arange(dim // 2) * 2 / dim)
    first, second = (
        (states[:, ::2], states[:, 1::2]) if interleaved else (states[:, : dim // 2], states[:, dim // 2 :])
    )
    turned = first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)
    return np.stack(turned, axis=-1).reshape(heads, dim) if interleaved else np.concatenate(turned, axis=-1)


class Convert(unittest.TestCase):
    def test_attention_scores_are_the_same_in_both_row_orders(self):
        random = np.random.default_rng(7)
        heads, dim, hidden = 3, 8, 5
        q, k = random.normal(size=(2, heads * dim, hidden))
        x, y = random.normal(size=(2, hidden))

        def scores(q, k, interleaved):
            return np.einsum(
                "hd,hd->h",
                rotate((q @ x).reshape(heads, dim), 11, interleaved),
                rotate((k @ y).reshape(heads, dim), 4, interleaved),
            )

        want = scores(q, k, True)
        got = scores(
            convert_smollm2.unpermute_rotary(q, heads), convert_smollm2.unpermute_rotary(k, heads), False
        )
        np.testing.assert_allclose(got, want, rtol=1e-12)
        self.assertGreater(np.abs(scores(q, k, False) - want).max(), 1e-2)  # the order matters

    def test_row_order_by_hand(self):
        rows = np.arange(8.0).reshape(8, 1)
        got = convert_smollm2.unpermute_rotary(rows, 2).ravel().tolist()
        self.assertEqual(got, [0, 2, 1, 3, 4, 6, 5, 7])
        with self.assertRaisesRegex(InputError, "do not divide"):
            convert_smollm2.unpermute_rotary(rows, 3)

    def test_bf16_rounds_to_nearest_even(self):
        bits = np.array(
            [0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF808001, 0x00000000],
            dtype=np.uint32,
        )
        want = [0x3F80, 0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF81, 0x0000]
        self.assertEqual(convert_smollm2.round_to_bf16(bits.view(np.float32)).tolist(), want)

    def test_saved_tensors(self):
        from safetensors import deserialize

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            values = {"b": np.array([[1.0, -2.5]], dtype=np.float32), "a": np.array([3.0], dtype=np.float32)}
            for dtype, name in (("float32", "F32"), ("bfloat16", "BF16")):
                convert_smollm2.save_tensors(values, dtype, path)
                stored = dict(deserialize(path.read_bytes()))
                self.assertEqual(
                    {key: (value["dtype"], list(value["shape"])) for key, value in stored.items()},
                    {"a": (name, [1]), "b": (name, [1, 2])},
                )
                self.assertEqual(
                    bytes(stored["b"]["data"]),
                    values["b"].tobytes() if name == "F32" else b"\x80\x3f\x20\xc0",
                )
                self.assertTrue(path.stat().st_mode & 0o400)
                self.assertEqual([file.name for file in Path(folder).iterdir()], ["model.safetensors"])

    def test_names(self):
        self.assertEqual(
            convert_smollm2.hf_name("blk.12.attn_k.weight"), "model.layers.12.self_attn.k_proj.weight"
        )
        self.assertEqual(convert_smollm2.hf_name("token_embd.weight"), "model.embed_tokens.weight")
        with self.assertRaisesRegex(InputError, "blk.0.ssm_a.weight"):
            convert_smollm2.hf_name("blk.0.ssm_a.weight")

    def test_numbers_are_written_as_meant(self):
        self.assertEqual(convert_smollm2.shortest(9.999999747378752e-06), 1e-05)
        self.assertEqual(convert_smollm2.shortest(100000.0), 100000.0)

    def test_programs(self):
        """The scripts as programs: --help is there, and a wrong flag is one line and status 1."""
        for name in ("convert_smollm2.py", "prepare_data.py", "chat.py"):
            for flag, status in (("--help", 0), ("--no-such-flag", 1)):
                result = subprocess.run(
                    [sys.executable, "-B", support.EXAMPLES / name, flag],
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
                self.assertEqual(result.returncode, status, result.stderr)
                self.assertEqual(result.stderr.count("\n"), status, result.stderr)


if __name__ == "__main__":
    unittest.main()
