"""Loads a Hugging Face tokenizer from a local folder, without PyTorch and without the network."""

import os
import sys
from pathlib import Path

from command_line import InputError, one_line


def load_tokenizer(folder):
    """The tokenizer of a model folder. Raises InputError if the folder holds none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"tokenizer folder '{folder}' does not exist; name a folder with tokenizer.json")
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise InputError(f"folder '{folder}' holds no tokenizer.json, tokenizer.model or vocab.json")
    # .venv holds the torch wheel for its C++ libraries alone: Python could not import it, and transformers
    # would try. A module that is None counts as not installed.
    if "torch" not in sys.modules:
        sys.modules["torch"] = None
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InputError(
            f"the Python package 'transformers' cannot be imported ({error}); run "
            "'bash examples/setup.sh --python-tools' and use .venv/bin/python3"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # transformers raises whatever the broken file made it stumble over
        raise InputError(f"the tokenizer in '{folder}' cannot be loaded: {one_line(error)}") from error
