"""What the tests of the Python scripts share."""

import contextlib
import importlib
import importlib.util
import io
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import command_line

SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def need(*packages):
    """Ends the program as skipped unless all packages are installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        print(
            f"skipped: {', '.join(missing)} not installed; "
            "'bash examples/setup.sh --python-tools' installs what is missing"
        )
        sys.exit(SKIPPED)


def run_script(name, *arguments, status=0):
    """Runs a script's main() in this process, where importing transformers costs its second but once.

    Returns its stdout, or with status 1 its one line of stderr.
    """
    module = importlib.import_module(name.removesuffix(".py"))
    output, ended, argv = io.StringIO(), 0, sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(output):
            command_line.run_main(module.main)
    except SystemExit as end:  # with a message Python prints it to stderr and ends with status 1
        ended = end.code
    finally:
        sys.argv = argv
    if status == 0:
        assert ended == 0, ended
        return output.getvalue()
    assert isinstance(ended, str) and "\n" not in ended, ended
    return ended


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder, chat_template=CHAT_TEMPLATE, vocab_size=400):
    """A byte-level BPE tokenizer in `folder`, trained on a few words; ids 0, 1, 2 are the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the ship sails on the sea and the sailor sings\n\n\nuser assistant system\n\n\nto the ship"] * 20,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer
