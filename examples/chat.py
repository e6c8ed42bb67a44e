#!/usr/bin/env python3
"""Asks a model one thing: a Hugging Face tokenizer in front of `mgfl generate`.

  .venv/bin/python3 examples/chat.py --model DIR "What is the capital of France?"
  echo "Once upon a time" | .venv/bin/python3 examples/chat.py --model DIR --raw

The prompt, from the argument or from standard input, becomes a user's message in the model's chat template,
or with --raw plain text that the model continues. Answers are greedy unless --temperature, --top-k or --top-p
is given.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from command_line import ArgumentParser, InputError, one_line, run_main
from hf_tokenizer import load_tokenizer

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "mgfl"


def prompt_ids(tokenizer, prompt, system, raw):
    """The token ids that the model is to continue."""
    if raw:
        ids = tokenizer.encode(prompt)
    else:
        if not tokenizer.chat_template:
            raise InputError("the model has no chat template; use --raw to have it continue plain text")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise whatever they like
            raise InputError(f"the chat template refuses the prompt: {one_line(error)}") from error
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise InputError("the prompt is empty; give it as an argument or on standard input")
    return ids


def generate(program, model, ids, flags):
    """The ids that `mgfl generate` adds to a prompt's."""
    from safetensors.numpy import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="mgfl-chat-") as folder:
        source, target = Path(folder, "prompt.safetensors"), Path(folder, "answer.safetensors")
        save_file(
            {
                "input_ids": np.array(ids, dtype=np.int64),
                "cu_seqlens": np.array([0, len(ids)], dtype=np.int32),
            },
            source,
        )
        command = [
            str(program),
            "generate",
            "--load-hf",
            str(model),
            "--input",
            str(source),
            "--output",
            str(target),
        ]
        # Its progress goes to stderr with its errors: standard output is for the answer alone.
        status = subprocess.run(
            command + flags, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        ).returncode
        if status:
            sys.exit(status if status > 0 else 128 - status)
        return load_file(target)["output_ids"].reshape(-1).tolist()


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    parser.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="a Hugging Face model folder"
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue plain text, without the chat template")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--program", type=Path, default=PROGRAM, metavar="FILE", help="default: build/mgfl")
    # `mgfl generate`'s own flags, handed on as they are.
    passed_on = ("temperature", "top-k", "top-p", "seed", "threads")
    for flag in passed_on:
        parser.add_argument(f"--{flag}", metavar="X", help="as for mgfl generate")
    parser.add_argument("--bf16", action="store_true", help="as for mgfl generate")
    arguments = parser.parse_args()

    if not arguments.program.is_file():
        raise InputError(
            f"program '{arguments.program}' does not exist; run 'bash examples/build.sh' or use --program"
        )
    prompt = arguments.prompt if arguments.prompt is not None else sys.stdin.read().rstrip("\n")
    tokenizer = load_tokenizer(arguments.model)
    flags = ["--max-new-tokens", str(arguments.max_new_tokens)] + (["--bf16"] if arguments.bf16 else [])
    for flag in passed_on:
        value = getattr(arguments, flag.replace("-", "_"))
        if value is not None:
            flags += [f"--{flag}", value]
    ids = prompt_ids(tokenizer, prompt, arguments.system, arguments.raw)
    answer = generate(arguments.program, arguments.model, ids, flags)
    print(tokenizer.decode(answer, skip_special_tokens=True))


if __name__ == "__main__":
    run_main(main)
