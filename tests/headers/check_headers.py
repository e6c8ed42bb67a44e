"""Compiles every header alone (and twice, so that a missing guard shows). Where a header reaches LibTorch's Tensor through
mgfl/tensor/lean.hpp anyway, that part comes precompiled: it hides nothing, and takes a third of the time."""
import argparse
import pathlib
import sys

import project_headers as project


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--vendors", required=True, help="vendors whose headers must compile in this build, with commas")
    parser.add_argument("--skip", default="", help="folders with compile options of their own, with commas")
    parser.add_argument("settings", nargs="+", help="include directories and -D definitions")
    arguments = parser.parse_args()
    root = arguments.root
    flags = project.compile_flags(arguments.settings, root) + [
        "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-O0"]

    lean = arguments.binary / "lean_first.hpp"
    arguments.binary.mkdir(parents=True, exist_ok=True)
    lean.write_text('#include "mgfl/tensor/lean.hpp"\n')
    precompiled = str(lean) + (".pch" if "clang" in arguments.compiler else ".gch")
    made = project.run([arguments.compiler, *flags, "-x", "c++-header", str(lean), "-o", precompiled])
    if made.returncode:
        sys.exit(f"mgfl/tensor/lean.hpp does not compile alone:\n{made.stderr}")

    def check(header):
        name = str(header.relative_to("include")) if header.parts[0] == "include" else str(header)
        first = []
        if name != "mgfl/tensor/lean.hpp" and project.reaches(root, header, "mgfl/tensor/lean.hpp"):
            first = ["-include-pch", precompiled] if "clang" in arguments.compiler else ["-include", str(lean)]
        text = f'#include "{name}"\n' * 2
        result = project.run([arguments.compiler, *flags, *first, "-x", "c++", "-fsyntax-only", "-"], text)
        return f"{header} does not compile alone:\n{result.stderr}" if result.returncode else ""

    vendors = arguments.vendors.split(",")
    headers = [h for h in project.headers(root)
               if (h.parts[0] != "vendors" or h.parts[1] in vendors or h.name == "manifest.hpp")
               and str(root / h.parent) not in arguments.skip.split(",")]
    failures = [f for f in project.two_at_a_time(check, headers) if f]
    print(f"{len(headers)} headers, {len(failures)} of them do not compile alone")
    if failures:
        sys.exit("\n".join(failures))


main()
