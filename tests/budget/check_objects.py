"""No virtual function of ours and no std::function on the path of a step: looks for their symbols in libmgfl's objects.

  check_objects.py --nm NM --errors HEADER... -- OBJECT...

A vtable of a class of mgfl's is allowed where one of the headers defines it as an exception. std::function is allowed in
ELSEWHERE, where no step comes by.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# Folders of objects that may hold std::function, and why.
ELSEWHERE = {
    "policies/data/": "nlohmann's parser takes its callback so, once a line that is read",
    "policies/parallel/watchdog": "called by a thread of its own, when a deadline passes",
}

VTABLE = re.compile(r"(?:vtable|VTT|construction vtable) for (?:\(anonymous namespace\)::)?mgfl::(.*)$")
FUNCTION = re.compile(r"std::_Function_handler<|std::_Function_base|std::function<")
EXCEPTION = re.compile(r"\b(?:class|struct) (\w+) : (?:public std::\w+|UserError|RunError)\b")


def symbols(nm, path):
    """The names of an object's defined and undefined symbols, demangled."""
    result = subprocess.run([nm, "--demangle", str(path)], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{nm} {path} failed:\n{result.stderr}")
    return [line[19:] for line in result.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("--errors", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("objects", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    exceptions = {name for header in arguments.errors for name in EXCEPTION.findall(header.read_text())}
    complaints, seen, allowed = [], 0, set()
    for path in arguments.objects:
        if path.suffix != ".o":
            continue
        name = re.sub(r"^.*?\.dir/", "", str(path))
        own = set()
        for symbol in symbols(arguments.nm, path):
            seen += 1
            vtable = VTABLE.search(symbol)
            if vtable and vtable[1].split("::")[-1] in exceptions:
                allowed.add(vtable[1].split("::")[-1])
            elif vtable:
                own.add(f"{name}: {symbol}; the step calls nothing through a vtable: let a template parameter choose")
            elif FUNCTION.search(symbol) and not name.startswith(tuple(ELSEWHERE)):
                own.add(f"{name}: {symbol[:200]}; borrow the callable as a function_ref")
        complaints += sorted(own)
    print(f"{len(arguments.objects)} objects, {seen} symbols, the exceptions among them: {', '.join(sorted(allowed))}")
    if allowed != exceptions or seen < 1000:
        complaints.append(f"the exceptions {sorted(exceptions)} must show in the objects, and {sorted(allowed)} do: is {arguments.nm} blind?")
    if complaints:
        sys.exit("\n".join(complaints))


main()
