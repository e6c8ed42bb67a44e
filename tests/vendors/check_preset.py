"""Configures the preset of one vendor in a scratch folder, then either compiles every unit that sees overrides, syntax only, with
each compiler, or runs the override table alone and holds it against the vendor's README."""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "headers"))
import project_headers as project  # noqa: E402
import vendor_texts as texts  # noqa: E402


def run_unchecked(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run(command, **options):
    result = run_unchecked(command, **options)
    if result.returncode:
        sys.exit(f"{shlex.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def configure(arguments):
    shutil.rmtree(arguments.binary, ignore_errors=True)
    settings = [f"-DCMAKE_CXX_COMPILER={arguments.compilers[0]}", "-DMGFL_BUILD_TESTS=OFF"]
    if arguments.libtorch:
        settings.append(f"-DLibTorch_ROOT={arguments.libtorch}")
    environment = {k: v for k, v in os.environ.items() if k != "MG_FL_PREFER"}
    run(["cmake", "--preset", arguments.vendor, "-B", arguments.binary, *settings], cwd=arguments.root, env=environment)
    return json.loads((arguments.binary / "compile_commands.json").read_text())


# Of the program's commands these two: one prints the table, one instantiates the engine; the others see nothing more.
COMMANDS = [pathlib.Path("examples/mgfl") / name for name in ("overrides.cpp", "train.cpp")]


def sees_overrides(root, vendor, file):
    """The vendor's own sources, and the library's units that reach dispatch.hpp and so the generated header."""
    if not file.is_relative_to(root):
        return False  # the precompiled header
    path = file.relative_to(root)
    if path.parts[0] == "examples":
        return path in COMMANDS
    return path.is_relative_to(f"vendors/{vendor}") or project.reaches(root, path, "mgfl/override/dispatch.hpp")


def words_of(command):
    """The words of a compile command, without the compiler and the output."""
    words = shlex.split(command["command"])
    out = words.index("-o")
    return words[1:out] + words[out + 2:]


def is_clang(compiler):
    return "clang" in pathlib.Path(compiler).name


def precompile(compiler, header, binary):
    """The build's precompiled header, for this compiler: it takes two thirds of the time away."""
    words = words_of(header)
    at = words.index("-include")
    text = words[at + 1]
    if is_clang(compiler):
        run([compiler, *words[:at], "-Wno-pragma-system-header-outside-header", text, "-o", binary / "lean.pch"], cwd=header["directory"])
    else:
        shutil.copy(text, binary / "lean.hxx")
        run([compiler, *words, "-o", binary / "lean.hxx.gch"], cwd=header["directory"])


def syntax_only(compiler, unit, binary):
    words = words_of(unit)
    if "-include" in words:  # the build's precompiled header
        at = words.index("-include")
        words[at:at + 2] = ["-include-pch", binary / "lean.pch"] if is_clang(compiler) else ["-include", binary / "lean.hxx"]
    return [compiler, *words, "-fsyntax-only"]


def check_syntax(arguments, commands):
    units = [c for c in commands if sees_overrides(arguments.root, arguments.vendor, pathlib.Path(c["file"]))]
    sources = sorted((arguments.root / "vendors" / arguments.vendor).rglob("*.cpp"))
    missing = {str(s) for s in sources + [arguments.root / "include/mgfl/override/table.cpp"]} - {u["file"] for u in units}
    if missing:
        sys.exit(f"not in the build of {arguments.vendor}: {sorted(missing)}")

    for compiler in arguments.compilers:
        start = time.monotonic()
        header = next(c for c in commands if c["file"].endswith("mgfl.dir/cmake_pch.hxx.cxx"))
        precompile(compiler, header, arguments.binary)

        def errors_of(unit):
            result = run_unchecked(syntax_only(compiler, unit, arguments.binary), cwd=unit["directory"])
            return f"{compiler} rejects {unit['file']}:\n{result.stderr}" if result.returncode else ""

        failures = [f for f in project.two_at_a_time(errors_of, units) if f]
        print(f"{len(units)} units with {compiler}, {time.monotonic() - start:.0f} s", flush=True)
        if failures:
            sys.exit("\n".join(failures))


def check_report(arguments, _):
    root, binary = arguments.root, arguments.binary
    sources = [root / "include/mgfl/override" / name for name in ("table.cpp", "build_identity.cpp")]
    sources += [*sorted((root / "include/mgfl/base").glob("*.cpp")), root / "tests/vendors/programs/report.cpp"]
    program = binary / "report"
    includes = [f"-I{root / 'include'}", f"-I{root}", f"-I{binary / 'generated'}"]
    run([arguments.compilers[0], "-std=c++20", *includes, *sources, "-o", program])
    report = json.loads(run([program]))
    active = {t["key"] for t in report["targets"] if t["vendor"] == arguments.vendor}
    documented = texts.readme_keys(root, arguments.vendor)
    print(f"{report['vendor']}: {len(active)} of {len(report['targets'])} targets")
    if report["vendor"] != arguments.vendor:
        sys.exit(f"preset {arguments.vendor} builds for vendor {report['vendor']}")
    if active != documented:
        sys.exit(f"`mgfl overrides` of {arguments.vendor} lists {sorted(active)}, its README {sorted(documented)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=["syntax", "report"])
    parser.add_argument("vendor")
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--libtorch", default="", help="where this build found LibTorch, if it was told")
    parser.add_argument("--compilers", nargs="+", required=True)
    arguments = parser.parse_args()
    (check_syntax if arguments.check == "syntax" else check_report)(arguments, configure(arguments))


main()
