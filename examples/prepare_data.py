#!/usr/bin/env python3
"""Makes training data for `mgfl train` with a Hugging Face tokenizer.

  prepare_data.py text --tokenizer DIR --output PREFIX [--split 0.1] INPUT...   text -> PREFIX.bin, PREFIX.idx
  prepare_data.py chat --tokenizer DIR --output F.jsonl INPUT.jsonl...          messages -> input_ids, labels

`prepare_data.py text --help` and `prepare_data.py chat --help` say more.
"""

import json
import math
import os
import struct
from pathlib import Path

import numpy as np

from command_line import ArgumentParser, InputError, one_line, run_main
from hf_tokenizer import load_tokenizer

TEXT_HELP = """Text to Megatron's indexed data set, PREFIX.bin and PREFIX.idx.

An INPUT is a UTF-8 text file, or a folder, of which all .txt files are taken, in the order of their names. A
document is a file, or with --documents paragraphs a run of whole paragraphs (ended by blank lines) of at
least --min-characters. Each document ends with the tokenizer's end-of-sequence token. Ids are stored as 2
bytes where the vocabulary is below 65500, as Megatron does, otherwise as 4.
"""

CHAT_HELP = """Conversations to supervised samples, one a line: {"input_ids": [...], "labels": [...]}.

Each line of an INPUT is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content":
"..."}, ...]}, with "tools" beside it where the model's chat template takes them. labels[t] is the token that
position t predicts, that is input_ids[t + 1], where this token is the assistant's own, its end-of-turn token
included, and -100 (no loss) elsewhere: on the prompt, on the template's headers and on the last position.

The ids are those that the model meets when it generates: a turn's prompt as the template renders it, then the
answer's tokens. A template that rewrites earlier turns once later ones follow has no such ids and is refused.
"""

IGNORED = -100


# ---- text --------------------------------------------------------------------------------------------------


class IndexedDatasetWriter:
    """Writes PREFIX.bin and PREFIX.idx; both appear under their names when finish() is called, not before."""

    MAGIC = b"MMIDIDX\x00\x00"
    VERSION = 1
    CODES = {"uint16": 8, "int32": 4}

    def __init__(self, prefix, vocabulary_size):
        self.prefix = str(prefix)
        self.dtype = np.dtype("<u2" if vocabulary_size < 65500 else "<i4")
        self.lengths = []
        Path(self.prefix).parent.mkdir(parents=True, exist_ok=True)
        self.bin = open(self.prefix + ".bin.partial", "wb")

    def add_document(self, ids):
        """One document that is one sequence."""
        self.bin.write(np.asarray(ids, dtype=self.dtype).tobytes())
        self.lengths.append(len(ids))

    def finish(self):
        """Writes the index and gives both files their names."""
        self.bin.close()
        lengths = np.asarray(self.lengths, dtype="<i4")
        pointers = np.zeros(len(lengths), dtype="<i8")
        np.cumsum(lengths[:-1].astype(np.int64) * self.dtype.itemsize, out=pointers[1:])
        documents = np.arange(len(lengths) + 1, dtype="<i8")
        with open(self.prefix + ".idx.partial", "wb") as file:
            file.write(
                self.MAGIC
                + struct.pack(
                    "<QBQQ", self.VERSION, self.CODES[self.dtype.name], len(lengths), len(documents)
                )
            )
            for array in (lengths, pointers, documents):
                file.write(array.tobytes())
        for ending in (".bin", ".idx"):
            os.replace(self.prefix + ending + ".partial", self.prefix + ending)

    def discard(self):
        """Leaves no trace of an unfinished data set."""
        self.bin.close()
        for ending in (".bin.partial", ".idx.partial"):
            Path(self.prefix + ending).unlink(missing_ok=True)


def text_files(inputs):
    """The files that the given files and folders mean."""
    files = []
    for place in map(Path, inputs):
        if place.is_dir():
            found = sorted(file for file in place.rglob("*.txt") if file.is_file())
            if not found:
                raise InputError(f"folder '{place}' holds no .txt file")
            files += found
        elif place.is_file():
            files.append(place)
        else:
            raise InputError(f"input '{place}' does not exist")
    return files


def read_text(file):
    """The text of a UTF-8 file."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{file}' is not UTF-8 text (byte {error.start}); convert it, e.g. with iconv"
        ) from error


def paragraph_groups(text, least):
    """The text cut at blank lines into runs of whole paragraphs of at least `least` characters.

    A short rest joins the last run.
    """
    groups, current = [], ""
    for paragraph in filter(None, (part.strip("\n") for part in text.split("\n\n"))):
        current += ("\n\n" if current else "") + paragraph
        if len(current) >= least:
            groups.append(current)
            current = ""
    if current and groups:
        groups[-1] += "\n\n" + current
    elif current:
        groups.append(current)
    return groups


def documents(files, mode, least):
    """All documents of the files that hold more than white space."""
    for file in files:
        text = read_text(file)
        for document in paragraph_groups(text, least) if mode == "paragraphs" else [text]:
            if document.strip():
                yield document


def is_held_out(index, share):
    """Whether document `index` is held out: `share` of all, evenly spread."""
    return math.floor((index + 1) * share) > math.floor(index * share)


def prepare_text(arguments):
    if not 0 <= arguments.split < 1:
        raise InputError(
            f"--split {arguments.split} is not in [0, 1): it is the share of documents to hold out"
        )
    files = text_files(arguments.inputs)
    tokenizer = load_tokenizer(arguments.tokenizer)
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"the tokenizer in '{arguments.tokenizer}' has no eos_token, which must end every document"
        )

    prefixes = [arguments.output]
    if arguments.split:
        prefixes = [f"{arguments.output}_train", f"{arguments.output}_valid"]
    writers = []
    try:
        for prefix in prefixes:
            writers.append(IndexedDatasetWriter(prefix, len(tokenizer)))
        for index, document in enumerate(documents(files, arguments.documents, arguments.min_characters)):
            ids = tokenizer.encode(document, add_special_tokens=False) + [tokenizer.eos_token_id]
            writers[is_held_out(index, arguments.split)].add_document(ids)
        count = sum(len(writer.lengths) for writer in writers)
        if not all(writer.lengths for writer in writers):
            raise InputError(
                f"the input has {count} document(s)"
                + (
                    f", of which --split {arguments.split} leaves none for training or none to hold out; "
                    "give more text, another share, or --documents paragraphs"
                    if count
                    else ": nothing but white space"
                )
            )
        for writer in writers:
            writer.finish()
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    for writer in writers:
        print(
            f"wrote {len(writer.lengths)} documents, {sum(writer.lengths)} tokens ({writer.dtype.name}) "
            f"to {writer.prefix}.bin and .idx"
        )


# ---- chat --------------------------------------------------------------------------------------------------


def render(tokenizer, messages, tools, generation):
    """The text of a conversation, with `generation` also the header that begins the assistant's turn."""
    try:
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=generation
        )
    except Exception as error:  # templates raise whatever they like
        raise InputError(f"the chat template refuses the conversation: {one_line(error)}") from error


def append_text(tokenizer, ids, old_text, new_text):
    """The ids of new_text that begin with ids, which are old_text's."""
    if not new_text.startswith(old_text):
        raise InputError(
            "the chat template is not prefix-stable: what it writes for the first turns changes when later "
            "ones follow; split such conversations so that each ends with the answer to learn"
        )
    whole = tokenizer.encode(new_text, add_special_tokens=False)
    if whole[: len(ids)] == ids:
        return whole
    # A token would span the seam, e.g. "\n" of the header and "\n" of the answer. When the model generates,
    # the prompt's ids are fixed by then, so the new part has ids of its own.
    joined = ids + tokenizer.encode(new_text[len(old_text) :], add_special_tokens=False)
    if tokenizer.decode(joined, skip_special_tokens=False, clean_up_tokenization_spaces=False) != new_text:
        raise InputError("the tokenizer cannot continue a prompt's ids without changing them")
    return joined


def conversation_sample(tokenizer, messages, tools=None):
    """input_ids and labels of one conversation, as CHAT_HELP says."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        raise InputError("the conversation has no assistant message, so there is nothing to learn")
    text, ids, learned = "", [], []
    for index in answers:
        prompt = render(tokenizer, messages[:index], tools, generation=True)
        ids = append_text(tokenizer, ids, text, prompt)
        learned += [False] * (len(ids) - len(learned))
        text = render(tokenizer, messages[: index + 1], tools, generation=False)
        ids = append_text(tokenizer, ids, prompt, text)
        # What the template puts after the end-of-turn token is never generated.
        answer = ids[len(learned) :]
        end = len(answer)
        if tokenizer.eos_token_id in answer:
            end = len(answer) - answer[::-1].index(tokenizer.eos_token_id)
        learned += [True] * end + [False] * (len(answer) - end)
    labels = [following if learns else IGNORED for following, learns in zip(ids[1:], learned[1:])] + [IGNORED]
    return {"input_ids": ids, "labels": labels}


def read_conversation(line):
    """The messages and tools of one line."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from error
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        raise InputError('no list "messages" with at least one message')
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError(f'message {number} has no "role"')
        if message.get("content") is None and not message.get("tool_calls"):
            raise InputError(f'message {number} has no "content"')
    return messages, value.get("tools")


def prepare_chat(arguments):
    for place in arguments.inputs:
        if not Path(place).is_file():
            raise InputError(f"input '{place}' does not exist")
    tokenizer = load_tokenizer(arguments.tokenizer)
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer in '{arguments.tokenizer}' has no chat template; use an instruction-tuned "
            "model's, or put a chat_template into its tokenizer_config.json"
        )
    output = Path(arguments.output)
    if any(output.exists() and output.samefile(place) for place in arguments.inputs):
        raise InputError(f"--output {output} is one of the inputs; give it another name")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    written = learned = too_long = 0
    try:
        with open(partial, "w", encoding="utf-8") as file:
            for place in arguments.inputs:
                for number, line in enumerate(read_text(Path(place)).split("\n"), 1):
                    if not line.strip():
                        continue
                    try:
                        sample = conversation_sample(tokenizer, *read_conversation(line))
                    except InputError as error:
                        raise InputError(f"{place}, line {number}: {error}") from error
                    if arguments.max_length and len(sample["input_ids"]) > arguments.max_length:
                        too_long += 1
                        continue
                    file.write(json.dumps(sample) + "\n")
                    written += 1
                    learned += sum(label != IGNORED for label in sample["labels"])
        if not written:
            raise InputError(
                f"no conversation was written: the input is empty, or all {too_long} are longer than "
                f"--max-length {arguments.max_length}"
            )
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    print(
        f"wrote {written} conversations with {learned} tokens to learn to {output}"
        + (f"; left out {too_long} longer than {arguments.max_length} tokens" if too_long else "")
    )


# ---- command line ------------------------------------------------------------------------------------------


def main():
    parser = ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{text,chat}")

    text = commands.add_parser("text", description=TEXT_HELP)
    text.set_defaults(run=prepare_text)
    text.add_argument(
        "--output", required=True, metavar="PREFIX", help="path of the data set without .bin and .idx"
    )
    text.add_argument(
        "--documents",
        choices=("file", "paragraphs"),
        default="file",
        help="what makes a document (default: file)",
    )
    text.add_argument(
        "--min-characters",
        type=int,
        default=2000,
        metavar="N",
        help="least size of a run of paragraphs (default: 2000)",
    )
    text.add_argument(
        "--split",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="hold out this share of the documents, evenly spread: writes PREFIX_train and PREFIX_valid",
    )

    chat = commands.add_parser("chat", description=CHAT_HELP)
    chat.set_defaults(run=prepare_chat)
    chat.add_argument("--output", required=True, metavar="F.jsonl", help="file to write")
    chat.add_argument(
        "--max-length", type=int, metavar="N", help="leave out conversations of more than N tokens"
    )

    for command in (text, chat):
        command.add_argument("--tokenizer", required=True, metavar="DIR", help="the model's folder")
        command.add_argument("inputs", nargs="+", metavar="INPUT")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    run_main(main)
