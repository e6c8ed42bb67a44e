"""Counts the preprocessed lines of headers and of some units: unlike seconds, they are the same on every machine."""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "headers"))
import project_headers as project  # noqa: E402

UNIT_LIMIT = 240_000


def limit(header):
    """Layers 0 and 1, then declarations, then all others."""
    name = str(header)
    if name.startswith(("include/mgfl/base/", "include/mgfl/override/")):
        return 30_000
    if name.endswith(("_decl.hpp", "fwd.hpp")) or (name.startswith("vendors/") and header.name == "manifest.hpp"):
        return 40_000
    return 120_000


def units(root):
    """The largest unit by bytes of each folder below policies/ and vendors/, and the override table."""
    folders = sorted({p.parent for folder in ("policies", "vendors") for p in (root / folder).rglob("*.cpp")})
    largest = [max(folder.glob("*.cpp"), key=lambda p: p.stat().st_size) for folder in folders]
    return [p.relative_to(root) for p in largest + [root / "include/mgfl/override/table.cpp"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("settings", nargs="+", help="include directories and -D definitions")
    arguments = parser.parse_args()
    flags = project.compile_flags(arguments.settings, arguments.root)

    def count(entry):
        path, allowed = entry
        result = project.run([arguments.compiler, *flags, "-E", "-P", "-x", "c++", str(arguments.root / path)])
        return path, result.stdout.count("\n") if result.returncode == 0 else None, allowed, result.stderr

    entries = [(h, limit(h)) for h in project.headers(arguments.root)] + [(u, UNIT_LIMIT) for u in units(arguments.root)]
    failures = []
    for path, lines, allowed, errors in project.two_at_a_time(count, entries):
        if lines is None:
            failures.append(f"{path} cannot be preprocessed:\n{errors}")
        elif lines >= allowed:
            failures.append(f"{path}: {lines} preprocessed lines, the limit is {allowed}; include less, or move bodies to a .cpp")
        else:
            print(f"{lines:8} of {allowed:6}  {path}")
    if failures:
        sys.exit("\n".join(failures))


main()
