"""Runs check_errors.py on a small tree: all messages must be found in it, and each mistake of its document told."""
import pathlib
import subprocess
import sys
import tempfile

import messages

SOURCES = {
    "policies/data.cpp": r'''
#include "names of files are no messages"
// check_user(false, "comments are none either");
void f(int n) {
  check_user(n > 1'000 && c != ')', "the size is ", g(n, "not this"), "; " "give\n  at most ", 3, ".");
  throw UserError(n ? concat("either this of ", n) : std::string("or that one"));
  check_run(n == 1, n == 2 ? "two" : "three", R"( raw "words" end)");
  log_warning(0, "careful with " + name(n) + " now");
  std::cerr << "said of " << n << (n ? " once" : "") << " by the way\n";
  std::fprintf(stderr, "formatted %s words\n", text);
  return "a phrase that some function returns";
}
consteval void g() { throw "a literal is thrown"; }
template <class... Parts>
void fail(int line, const Parts&... parts) { throw RunError(concat("line ", line, " ", parts..., ".")); }
void h() { fail(3, "has no key"); }
void i() { fail(3, "has a value of ", 4); }
static_assert(sizeof(int) == 4, "mgfl: an int has four bytes");
#error "mgfl is not for you"
void program_and_libmgfl_were_built_for_different_vendors();
void j() { table.toggle("bf16", field, "help of a flag is no message"); }
''',
    "vendors/mgfl.cmake": r'''
# message(FATAL_ERROR "a comment, again")
message(STATUS "a status is none")
message(FATAL_ERROR "mgfl: no ${dir_${name}} at all.\n"
  "  Use \"another\" # one.")
set(advice "Install it, or build "
  "without.")
set(text "/// Written by CMake, which is no message.")
set(OPTION "" CACHE STRING "a documented variable is none")
set(text "static_assert(true, \"mgfl: ${name} is generated\");")
''',
    "examples/tool.py": '''
raise InputError(f"file '{name}' is bad" + ("; really" if really else "; or so"))
sys.exit(3)
''',
    "examples/tool.sh": r'''
fail "no $tool in ${places[*]}, \
says \"$(uname)\""
echo "progress is none"
python3 - <<'PYTHON'
sys.exit(f"no {thing} here")
PYTHON
''',
}
MESSAGES = [
    "the size is …; give at most ….", "either this of …", "or that one", '… raw "words" end', "careful with … now",
    "said of … by the way", "formatted … words", "a phrase that some function returns", "a literal is thrown",
    "line … has no key.", "line … has a value of ….", "mgfl: an int has four bytes", "mgfl is not for you",
    "program_and_libmgfl_were_built_for_different_vendors", 'mgfl: no … at all. Use "another" # one.',
    "Install it, or build without.", "mgfl: … is generated", "file '…' is bad; really", "file '…' is bad; or so", 'no … in …, says "…"', "no … here",
]
HEAD = "# Errors\n\n| option | meaning |\n|---|---|\n| `no message` | |\n\n| message | cause | cure |\n|---|---|---|\n"
GOOD = HEAD + "".join(f"| `{message}` | something | do `this` |\n" for message in MESSAGES)
BAD = {  # how the document changes: what the check must say
    ("| `no … here` | something | do `this` |\n", ""): "| `no … here` | | |",
    ("| `a literal is thrown` |", "| `a literal is caught` |"): "no source says `a literal is caught`; delete it",
    ("| `or that one` | something |", "| `or that one` | |"): "this one has 3 columns, or an empty one",
    ("| `or that one` |", "| `or that one` `no … here` |"): "`no … here` stands in line",
    ("| `or that one` |", "| or that one |"): "the first column holds no message between backticks",
}


def check(root):
    script = pathlib.Path(__file__).with_name("check_errors.py")
    runner = "import sys, messages, check_errors, pathlib; messages.NOT_MESSAGES = {}; " \
             "sys.exit('\\n'.join(check_errors.complaints(pathlib.Path(sys.argv[1]))) or 0)"
    return subprocess.run([sys.executable, "-c", runner, root], cwd=script.parent, capture_output=True, text=True, check=False)


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name, text in SOURCES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "docs").mkdir()

    messages.NOT_MESSAGES = {}
    found = list(messages.messages_of_tree(root)[0])
    wrong = [f"not found: {message}" for message in MESSAGES if message not in found]
    wrong += [f"found, but no message: {message}" for message in found if message not in MESSAGES]
    if wrong:
        sys.exit("\n".join(wrong))

    document = root / "docs" / "errors.md"
    document.write_text(GOOD, encoding="utf-8")
    result = check(root)
    if result.returncode:
        sys.exit(f"complaints about a document without mistakes:\n{result.stderr}")
    for (old, new), words in BAD.items():
        if old not in GOOD:
            sys.exit(f"the document does not hold {old}")
        document.write_text(GOOD.replace(old, new), encoding="utf-8")
        result = check(root)
        if result.returncode != 1 or words not in result.stderr:
            sys.exit(f"no complaint {words!r} after {old!r} became {new!r}:\n{result.stderr}")

    messages.NOT_MESSAGES = {("examples/tool.sh", "no … here"): "a reason", ("examples/tool.sh", "gone"): "a reason"}
    found, unused = messages.messages_of_tree(root)
    if "no … here" in found or unused != [("examples/tool.sh", "gone")]:
        sys.exit(f"exclusions are not applied, or not found to be needless: {unused}")
