"""prepare_data.py text: what an independent reader finds in the .bin/.idx files."""

import tempfile
import unittest
from pathlib import Path

import support

support.need("numpy", "transformers", "tokenizers")

import numpy as np

import prepare_data


def read_indexed_dataset(prefix):
    """(dtype, documents) by the format's description, sharing nothing with the writer."""
    index = np.memmap(f"{prefix}.idx", dtype=np.uint8, mode="r")
    assert bytes(index[:9]) == b"MMIDIDX\0\0"
    assert index[9:17].view("<u8")[0] == 1
    dtype = {8: np.dtype("<u2"), 4: np.dtype("<i4")}[int(index[17])]
    sequences, boundaries = (int(n) for n in index[18:34].copy().view("<u8"))
    assert len(index) == 34 + 12 * sequences + 8 * boundaries
    lengths = index[34 : 34 + 4 * sequences].copy().view("<i4")
    pointers = index[34 + 4 * sequences : 34 + 12 * sequences].copy().view("<i8")
    bounds = index[34 + 12 * sequences :].copy().view("<i8")
    data = np.memmap(f"{prefix}.bin", dtype=dtype, mode="r")
    assert len(data) == lengths.sum()
    documents = []
    for first, last in zip(bounds[:-1], bounds[1:]):
        documents.append(
            [
                int(token)
                for sequence in range(first, last)
                for token in data[pointers[sequence] // dtype.itemsize :][: lengths[sequence]]
            ]
        )
    return dtype, documents


class Text(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model = self.folder / "model"
        self.tokenizer = support.make_tokenizer(self.model)

    def encode(self, text):
        return self.tokenizer.encode(text).ids + [2]

    def prepare(self, *arguments, status=0):
        return support.run_script(
            "prepare_data.py", "text", "--tokenizer", self.model, *arguments, status=status
        )

    def test_files_of_a_folder_become_documents_in_order_of_name(self):
        texts = {
            "b.txt": "the sea\n\nthe ship",
            "a.txt": "na\u00efve 42 \u20ac",
            "sub/c.txt": "sings",
            "d.md": "not this",
        }
        for name, text in texts.items():
            (self.folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "in" / name).write_text(text, encoding="utf-8")
        (self.folder / "in" / "empty.txt").write_text(" \n")
        self.prepare("--output", self.folder / "out" / "data", self.folder / "in")
        dtype, documents = read_indexed_dataset(self.folder / "out" / "data")
        self.assertEqual(dtype, np.dtype("<u2"))
        self.assertEqual(documents, [self.encode(texts[name]) for name in ("a.txt", "b.txt", "sub/c.txt")])
        self.assertEqual(
            sorted(path.name for path in (self.folder / "out").iterdir()), ["data.bin", "data.idx"]
        )

    def test_paragraphs_and_split(self):
        (self.folder / "in.txt").write_text(
            "\n\n".join(f"the ship {n} sails on" for n in range(20)) + "\n\n\n\nend\n"
        )
        self.prepare(
            "--documents",
            "paragraphs",
            "--min-characters",
            10,
            "--split",
            0.2,
            "--output",
            self.folder / "d",
            self.folder / "in.txt",
        )
        texts = [f"the ship {n} sails on" for n in range(19)] + ["the ship 19 sails on\n\nend"]
        _, train = read_indexed_dataset(self.folder / "d_train")
        _, valid = read_indexed_dataset(self.folder / "d_valid")
        self.assertEqual(valid, [self.encode(texts[n]) for n in (4, 9, 14, 19)])
        self.assertEqual(train, [self.encode(texts[n]) for n in range(20) if n not in (4, 9, 14, 19)])

    def test_large_vocabularies_take_four_bytes(self):
        for size, name in ((65499, "uint16"), (65500, "int32")):
            writer = prepare_data.IndexedDatasetWriter(self.folder / name, size)
            writer.add_document([1, 65498])
            writer.finish()
            dtype, documents = read_indexed_dataset(self.folder / name)
            self.assertEqual((dtype.name, documents), (name, [[1, 65498]]))

    def test_wrong_input_is_one_sentence_and_leaves_nothing(self):
        good, latin, blank = (self.folder / name for name in ("good.txt", "latin.txt", "blank.txt"))
        good.write_text("the sea")
        latin.write_bytes(b"caf\xe9")
        blank.write_text("\n")
        for arguments, words in (
            ([self.folder / "no.txt"], "does not exist"),
            ([good, latin], "not UTF-8"),
            ([blank], "nothing but white space"),
            ([good, "--split", "0.5"], "1 document"),
            ([good, "--split", "1.5"], "--split 1.5"),
            ([], "required"),
            ([self.model], "no .txt file"),
        ):
            with self.subTest(words):
                self.assertIn(
                    words, self.prepare("--output", self.folder / "out" / "d", *arguments, status=1)
                )
                self.assertFalse(list(self.folder.glob("out/*")))
        message = support.run_script(
            "prepare_data.py",
            "text",
            "--tokenizer",
            self.folder / "none",
            "--output",
            self.folder / "d",
            good,
            status=1,
        )
        self.assertIn("does not exist", message)
        (self.model / "tokenizer.json").write_text("{")
        self.assertIn("cannot be loaded", self.prepare("--output", self.folder / "d", good, status=1))

    def test_failure_keeps_what_was_there(self):
        good, latin = self.folder / "good.txt", self.folder / "latin.txt"
        good.write_text("the sea")
        latin.write_bytes(b"caf\xe9")
        self.prepare("--output", self.folder / "d", good)
        self.prepare("--output", self.folder / "d", good, latin, status=1)
        self.assertEqual(read_indexed_dataset(self.folder / "d")[1], [self.encode("the sea")])


if __name__ == "__main__":
    unittest.main()
