"""Finds the messages that mgfl's sources can print, as templates: literals joined, each value shown as an ellipsis.

C++      what check_user, check_run, UserError, RunError, log_warning, std::cerr, fprintf(stderr), `throw "..."`,
         static_assert and #error get, and any function that takes `const T&... parts` and hands them on to one of these;
         besides, what concat() makes and literals of several words wherever they stand, since functions that build messages
         put phrases into variables, tables and return values.
CMake    message(FATAL_ERROR | SEND_ERROR | WARNING ...), REASON_FAILURE_MESSAGE, phrases that set() puts into a variable, and
         "mgfl: ..." in C++ that CMake writes.
Python   InputError, sys.exit, print(..., file=sys.stderr).
shell    fail "...", echo "..." >&2, and Python between <<'PYTHON' and PYTHON.

`condition ? "one phrase" : "another"` gives a template for each; where both are single words it is a value like others.
"""
import ast
import itertools
import pathlib
import re

VALUE = "…"
PLACES = ("CMakeLists.txt", ".cmake", "examples", "include", "policies", "vendors")

# Calls whose literals are the help of flags and commands: what `mgfl COMMAND --help` prints.
HELP_CALLS = {"add_files", "add_flag", "add_option", "add_runtime", "choice", "group", "integer", "list", "real", "t", "text",
              "toggle"}

# Phrases that no message is made of: (file, what the template begins with) and why.
NOT_MESSAGES = {
    ("include/mgfl/override/table.cpp", "vendor '"): "the start-up line of `mgfl train`",
    ("include/mgfl/override/table.cpp", "mgfl: built for vendor"): "the output of `mgfl overrides`",
    ("include/mgfl/override/table.cpp", "… {\"path\""): "the output of `mgfl overrides --json`",
    ("include/mgfl/override/table.cpp", "{\"vendor\""): "the output of `mgfl overrides --json`",
    ("policies/checkpoint/checkpoint.cpp", "state of the checkpoint"): "the name of a text in messages about JSON",
    ("policies/parallel/collective.cpp", "start of a group"): "the name of an operation",
    ("policies/parallel/collective.cpp", "end of a group"): "the name of an operation",
    ("policies/parallel/collective.cpp", "end of the job"): "the name of an operation",
    ("policies/parallel/nccl.cpp", "(call …"): "a value: where a rank is",
    ("policies/parallel/mpi_job.cpp", "(operation …"): "a value: where a rank is",
    ("examples/01_sft.cpp", "step %2d"): "progress",
    ("examples/02_custom_loss.cpp", "step %2d"): "progress",
    ("examples/03_custom_optimizer.cpp", "step %2d"): "progress",
    ("examples/05_grpo.cpp", "step %2d"): "progress",
    ("examples/06_ppo.cpp", "step %2d"): "progress",
    ("examples/mgfl/flag_table.hpp", "of at least"): "a value: the range of a flag",
    ("examples/mgfl/flag_table.hpp", "… and at most"): "a value: the range of a flag",
    ("examples/mgfl/metrics.cpp", "{\"iteration\""): "a line of metrics.jsonl",
    ("examples/mgfl/options.cpp", ": flags and --config merged"): "the output of --print-config",
    ("examples/mgfl/options.cpp", "Not in this version"): "a heading of --help",
    ("examples/mgfl/options.cpp", "log-probabilities, entropy"): "a line of mgfl --help",
    ("examples/mgfl/options.cpp", "the table of overridable"): "a line of mgfl --help",
    ("examples/mgfl/options.cpp", "time training steps"): "a line of mgfl --help",
    ("examples/mgfl/options.cpp", "mgfl trains large"): "mgfl --help",
    ("examples/mgfl/options.cpp", "mgfl COMMAND --help explains"): "mgfl --help",
    ("examples/mgfl/train.cpp", "iteration 0: eval loss"): "progress",
}


def squeeze(text):
    """White space is one blank, and values side by side are one."""
    return re.sub(f"{VALUE}+", VALUE, " ".join(text.split()))


def words(text):
    """How many words of the message itself there are."""
    return len(re.findall(r"[A-Za-z]{2,}", text))


# ---- C++ -----------------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"""
    (?P<skip> //[^\n]* | /\*.*?\*/ | \s+ )
  | R"(?P<mark>[^(\s]*)\((?P<raw>.*?)\)(?P=mark)"
  | (?P<string> "(?:[^"\\\n]|\\.)*" )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<other> '(?:[^'\\\n]|\\.)+' | \d(?:[\w.]|'\w)* | \.\.\. | :: | -> | << | >> | . )
""", re.VERBOSE | re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": ""}
OPENING, CLOSING = {"(", "[", "{"}, {")", "]", "}"}
PACK = "{}"  # where a function puts the words that its callers give
DEFINITION = [("other", "&"), ("other", "...")]  # in `const T&... parts`, which is no call

# Functions that are named as a sentence, because the linker prints the name.
SENTENCE_NAMES = {"program_and_libmgfl_were_built_for_different_vendors"}

# Functions that print or throw the words they are given: how many arguments come before the words.
PRINTERS = {"check_user": 1, "check_run": 1, "UserError": 0, "RunError": 0, "log_warning": 1}


def tokens_of(text):
    """[(kind, value)] with kinds "string" (its value), "name" and "other"; without comments and preprocessor lines."""
    found = []
    for match in TOKEN.finditer(re.sub(r"(?m)^[ \t]*#(?:\\\n|[^\n])*", "", text)):
        if match["raw"] is not None:
            found.append(("string", match["raw"]))
        elif match["string"]:
            found.append(("string", re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), match["string"][1:-1])))
        elif not match["skip"]:
            found.append((match.lastgroup, match[0]))
    return found


def depths(tokens):
    """The number of open brackets at each token; brackets count as outside."""
    depth = 0
    for kind, value in tokens:
        depth -= kind == "other" and value in CLOSING
        yield depth
        depth += kind == "other" and value in OPENING


def end_of_brackets(tokens, opening):
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(tokens)):
        kind, value = tokens[at]
        if kind == "other":
            depth += (value in OPENING) - (value in CLOSING)
            if depth == 0:
                return at
    return len(tokens) - 1


def split(tokens, *marks):
    """The tokens between those of the given marks that stand in no bracket."""
    parts = [[]]
    for token, depth in zip(tokens, depths(tokens)):
        if depth == 0 and token[0] == "other" and token[1] in marks:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def inside(tokens, *names):
    """What stands in the brackets of `name(...)`, `std::name(...)` or `(...)`; None for anything else."""
    while len(tokens) > 2 and tokens[0][0] == "name" and tokens[1] == ("other", "::"):
        tokens = tokens[2:]
    start = int(bool(tokens) and tokens[0][0] == "name" and tokens[0][1] in names)
    whole = len(tokens) > start and tokens[start] == ("other", "(") and end_of_brackets(tokens, start) == len(tokens) - 1
    return tokens[start + 1:-1] if whole else None


def texts(expression):
    """Every text that an expression can be."""
    if expression and all(kind == "string" for kind, _ in expression):
        return ["".join(value for _, value in expression)]
    branches = split(expression, "?", ":")
    if len(branches) > 1:
        # Of a ? b : c ? d : e the texts are b, d and e: what a ":" or the end follows.
        marks = [token[1] for token, depth in zip(expression, depths(expression)) if depth == 0 and token[1] in ("?", ":")]
        chosen = [branch for branch, mark in zip(branches, marks + [""]) if mark != "?"]
        found = [text for branch in chosen for text in texts(branch)]
        return found if any(words(text) >= 2 for text in found) else [VALUE]
    inner = inside(expression, "concat", "string", "string_view")
    if inner is not None:
        return joined(split(inner, ","))
    sum_ = split(expression, "+", "<<")
    if len(sum_) > 1 and any(kind == "string" for kind, _ in expression):
        return joined(sum_)
    return [PACK if expression and expression[-1] == ("other", "...") else VALUE]


def joined(parts):
    """Every text that the parts make together."""
    return ["".join(choice) for choice in itertools.product(*(texts(part) for part in parts if part))]


def calls(tokens, printers):
    """(start, end, templates) of everything that prints or throws. `printers`: {function: (arguments before, frame)}."""
    for at in range(len(tokens) - 1):
        kind, name = tokens[at]
        if kind != "name":
            continue
        if name == "throw" and tokens[at + 1][0] == "string":
            yield at, at + 2, [tokens[at + 1][1]]
        elif name in SENTENCE_NAMES:
            yield at, at + 1, [name]
        elif name == "cerr" and tokens[at + 1] == ("other", "<<"):
            end = tokens.index(("other", ";"), at)
            yield at, end, joined(split(tokens[at + 2:end], "<<"))
        elif tokens[at + 1] == ("other", "("):
            end = end_of_brackets(tokens, at + 1)
            arguments = split(tokens[at + 2:end], ",")
            if name == "fprintf" and arguments[0] == [("name", "stderr")]:
                yield at, end, [re.sub(r"%[-0-9.*l]*[a-z]", VALUE, text) for text in texts(arguments[1])]
            elif name == "static_assert":
                yield at, end, texts(arguments[-1])
            elif name in printers and len(arguments) > printers[name][0] and arguments[-1][-3:-1] != DEFINITION:
                before, frame = printers[name]
                yield at, end, [frame.replace(PACK, text) for text in joined(arguments[before:])]


def own_printers(text, tokens, printers):
    """Functions of this file that put `const T&... parts` into a message of theirs."""
    found = {}
    for match in re.finditer(r"(\w+)\s*(?:=\s*\[&\]\s*)?\(([^()]*?)const \w+&\.\.\. (\w+)\)", text):
        name, before = match[1], match[2].count(",")
        for start, _, templates in calls(tokens, printers):
            body = tokens[max(0, start - 60):start]
            if ("name", name) in body and templates and PACK in templates[0] and templates[0] != PACK:
                found[name] = (before, templates[0])
    return found


def cpp_messages(text):
    """Templates of one file."""
    found = re.findall(r'(?m)^[ \t]*#[ \t]*error[ \t\\\n]*"?([^"\n]*)', text)
    tokens = tokens_of(text)
    printers = {name: (before, PACK) for name, before in PRINTERS.items()}
    printers |= own_printers(text, tokens, printers)
    frames = [frame for _, frame in printers.values()]
    taken = [False] * len(tokens)
    for start, end, templates in calls(tokens, printers):
        if not taken[start]:
            taken[start:end] = [True] * (end - start)
            # A pack left over means that the function around it was not recognized: better shown than lost.
            found += [template for template in templates if words(template) and template not in frames]
    phrases = []
    for at, (kind, value) in enumerate(tokens):
        if taken[at]:
            continue
        if kind == "name" and tokens[at + 1:at + 2] == [("other", "(")] and value in HELP_CALLS | {"concat"}:
            end = end_of_brackets(tokens, at + 1)
            taken[at:end] = [True] * (end - at)
            if value == "concat":
                phrases += joined(split(tokens[at + 2:end], ","))
        elif kind == "string":
            end = at
            while end < len(tokens) and tokens[end][0] == "string":
                end += 1
            taken[at:end] = [True] * (end - at)
            literal = "".join(part for _, part in tokens[at:end])
            phrases += [literal] if len(literal.split()) > 3 else []
    found += [phrase for phrase in phrases if words(phrase) > 2 and len(phrase.split()) > 2 or phrase.startswith("mgfl: ")]
    return found


# ---- CMake, Python, shell ------------------------------------------------------------------------------------------------

def cmake_messages(text):
    """Templates of a CMake file."""
    quoted = r'"(?:[^"\\]|\\.)*"'
    literals = rf"((?:\s*{quoted})+)"
    text = re.sub(rf"({quoted})|#[^\n]*", lambda m: m[1] or "", text, flags=re.DOTALL)
    whole = rf"message\(\s*(?:FATAL_ERROR|SEND_ERROR|WARNING){literals}|REASON_FAILURE_MESSAGE{literals}"
    found = ["".join(literal[1:-1] for literal in re.findall(quoted, match[1] or match[2], re.DOTALL))
             for match in re.finditer(whole, text, re.DOTALL)]
    # Phrases that a variable carries into a message, unless they are C++: that begins with ///, or has messages of its own.
    for match in re.finditer(rf"set\(\s*\w+{literals}\s*\)", text, re.DOTALL):
        phrase = "".join(literal[1:-1] for literal in re.findall(quoted, match[1], re.DOTALL))
        found += [phrase] if len(phrase.split()) > 3 and not re.match(r'///|.*\\"mgfl: ', phrase) else []
    found += re.findall(r'\\"(mgfl: (?:[^"\\]|\\[^"])*)\\"', text)
    for at, literal in enumerate(found):
        while (shorter := re.sub(r"\$(ENV)?\{[^${}]*\}", VALUE, literal)) != literal:
            literal = shorter
        found[at] = literal.replace("\\n", "\n").replace('\\"', '"')
    return [template for template in found if words(template)]


def python_texts(node):
    """Every text that a Python expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in python_texts(node.left) for right in python_texts(node.right)]
    if isinstance(node, ast.IfExp):
        return python_texts(node.body) + python_texts(node.orelse)
    return [VALUE]


def python_messages(text):
    """Templates of a Python file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func)
        to_stderr = any(k.arg == "file" and ast.unparse(k.value) == "sys.stderr" for k in node.keywords)
        if name in ("InputError", "sys.exit") or (name == "print" and to_stderr):
            found += [template for template in python_texts(node.args[0]) if words(template)]
    return found


def shell_messages(text):
    """Templates of a shell script."""
    found = []
    for script in re.findall(r"<<'PYTHON'\n(.*?)\nPYTHON\n", text, re.DOTALL):
        found += python_messages(script)
    quoted = r'"((?:[^"\\]|\\.)*)"'
    for match in re.finditer(rf"\bfail {quoted}|\becho {quoted}\s*>&2", text, re.DOTALL):
        literal = (match[1] or match[2]).replace("\\\n", "")
        literal = re.sub(r"\$\{[^{}]*\}|\$\([^()]*\)|\$[\w*@]\w*", VALUE, literal)
        found.append(literal.replace('\\"', '"'))
    return found


# ---- the tree ------------------------------------------------------------------------------------------------------------

KINDS = {".cpp": cpp_messages, ".hpp": cpp_messages, ".h": cpp_messages, ".cu": cpp_messages, ".cuh": cpp_messages,
         ".cmake": cmake_messages, ".txt": cmake_messages, ".py": python_messages, ".sh": shell_messages}


def messages_of_tree(root):
    """({template: its files}, exclusions of NOT_MESSAGES that nothing needs) of all sources under `root`."""
    found, needed = {}, set()
    for place in PLACES:
        top = pathlib.Path(root) / place
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if not path.is_file() or path.suffix not in KINDS:
                continue
            file = path.relative_to(root).as_posix()
            for template in map(squeeze, KINDS[path.suffix](path.read_text(encoding="utf-8"))):
                why_not = [key for key in NOT_MESSAGES if key[0] == file and template.startswith(key[1])]
                needed.update(why_not)
                if not why_not:
                    files = found.setdefault(template, [])
                    files += [file] if file not in files else []
    return found, [key for key in NOT_MESSAGES if key not in needed]
