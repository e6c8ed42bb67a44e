"""Holds docs/errors.md against the sources: each message stands in it once, with cause and cure, and no other does.

  check_errors.py ROOT

The first column of its tables holds messages between backticks, as messages.py writes them: an ellipsis for each value.
Prints what is missing as rows to fill in, and what no source says any more. Ends with status 1 where there is any.
"""
import pathlib
import re
import sys

import messages

CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def cells_of(line):
    """The cells of a table's row; \\| is a bar that separates nothing."""
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def rows_of(text):
    """(line number, cells) of every row of the tables whose first column is headed "message"."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
        elif cells_of(line)[0] == "message":
            inside = True
        elif inside and not re.fullmatch(r"[|\s:-]+", line):
            yield number, cells_of(line)


def as_code(template):
    """A template between as many backticks as it needs, with bars that do not end the cell."""
    fence = "`"
    while fence in template:
        fence += "`"
    blank = " " if template.startswith("`") or template.endswith("`") else ""
    return f"{fence}{blank}{template}{blank}{fence}".replace("|", "\\|")


def complaints(root):
    """Yields a line for each thing that is wrong."""
    found, unused = messages.messages_of_tree(root)
    for file, start in unused:
        yield f"messages.py: NOT_MESSAGES has {start!r} of {file}, which that file does not say; delete the line"
    document = root / "docs" / "errors.md"
    listed = {}
    for number, cells in rows_of(document.read_text(encoding="utf-8")):
        where = f"docs/errors.md:{number}"
        if len(cells) != 3 or not all(cells):
            yield f"{where}: a row has message, cause and cure; this one has {len(cells)} columns, or an empty one"
        templates = [messages.squeeze(code) for _, code in CODE.findall(cells[0])]
        if not templates:
            yield f"{where}: the first column holds no message between backticks"
        for template in templates:
            if template in listed:
                yield f"{where}: {as_code(template)} stands in line {listed[template]} as well; keep one"
            listed.setdefault(template, number)
            if template not in found:
                yield f"{where}: no source says {as_code(template)}; delete it"
    for template, files in found.items():
        if template not in listed:
            yield f"docs/errors.md lacks a message of {', '.join(files)}:\n| {as_code(template)} | | |"


if __name__ == "__main__":
    sys.exit("\n".join(complaints(pathlib.Path(sys.argv[1]))) or 0)
