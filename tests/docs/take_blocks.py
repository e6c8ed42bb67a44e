"""Makes a program of the C++ in documents.

  take_blocks.py PROGRAM OUT DOCUMENT...

A block that a file's name in backticks precedes is written as that file below OUT. Every other block takes the place of a line
"// block: HEADING" of PROGRAM, in order where a section has several; the result goes to OUT. Ends with status 1 where one is left over.
"""
import pathlib
import re
import sys

program, out = (pathlib.Path(word) for word in sys.argv[1:3])
blocks = {}
for document in sys.argv[3:]:
    heading, name = None, None
    lines = iter(pathlib.Path(document).read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line == "```cpp":
            block = []
            while (line := next(lines)) != "```":
                block.append(line)
            text = "\n".join(block) + "\n"
            if name:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_text(text, encoding="utf-8")
            else:
                blocks.setdefault(heading, []).append(text)
        if match := re.fullmatch(r"#+ (.*)", line):
            heading = match[1]
        match = re.fullmatch(r"`(\w[\w/.]*/[\w.]+)`", line)
        name = match and match[1]

made = []
for line in program.read_text(encoding="utf-8").splitlines(keepends=True):
    match = re.fullmatch(r"\s*// block: (.*)\n", line)
    if match and not blocks.get(match[1]):
        sys.exit(f"{program.name}: no document has (another) block of C++ under \"{match[1]}\"")
    made.append(blocks[match[1]].pop(0) if match else line)
left = [heading for heading, texts in blocks.items() if texts]
if left:
    sys.exit(f"{program.name} has no place for a block of C++ under {left}")
(out / program.name).write_text("".join(made), encoding="utf-8")
