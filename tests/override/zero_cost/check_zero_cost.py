"""Machine code of calls.cpp at -O2: each call through a target is, instruction for instruction and symbol for symbol, the call
written by hand; and each differs from a call through a pointer, so that this comparison would notice one."""
import argparse
import pathlib
import re
import subprocess
import sys

CALLS = ("call_function", "call_family", "call_method", "call_class")


def run(command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stderr}")
    return result.stdout


def functions(objdump, path):
    """The instructions and relocations of each function, by the function's name, addresses taken off."""
    found = {}
    for part in re.split(r"\n(?=[0-9a-f]+ <)", run([objdump, "-dr", "--no-show-raw-insn", path])):
        head = re.match(r"[0-9a-f]+ <(\S+)>:\n", part)
        if head:
            found[head[1]] = re.sub(r"^\s*[0-9a-f]+:\s*", "", part[head.end():], flags=re.MULTILINE).strip().splitlines()
    return found


def main():
    parser = argparse.ArgumentParser()
    for name in ("root", "scratch"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    for name in ("cmake", "objdump", "compilers"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("settings", nargs="+", help="include directories and -D definitions")
    arguments = parser.parse_args()
    root, scratch = arguments.root, arguments.scratch
    sys.path.insert(0, str(root / "tests/headers"))
    import project_headers  # noqa: PLC0415
    flags = [f for f in project_headers.compile_flags(arguments.settings, root) if not f.endswith("/generated")]
    run([arguments.cmake, "-E", "env", "--unset=MG_FL_PREFER", arguments.cmake, "-S", root / "tests/override/choice", "-B", scratch,
         f"-DMGFL_ROOT={root}", "-DMG_FL_PREFER=acme", f"-DMGFL_VENDOR_DIRS={root}/examples/04_write_a_vendor/acme", "-DMGFL_KERNELS=aten"])

    failures = []
    for compiler in arguments.compilers.split(","):
        code = {}
        for variant in ("MGFL_THROUGH_THE_TARGET", "MGFL_BY_HAND", "MGFL_THROUGH_A_POINTER"):
            output = scratch / f"{pathlib.Path(compiler).name}_{variant}.o"
            run([compiler, *flags, f"-I{scratch}/generated", "-O2", "-ffunction-sections", f"-D{variant}", "-c",
                 root / "tests/override/zero_cost/calls.cpp", "-o", output])
            code[variant] = functions(arguments.objdump, output)
        for call in CALLS:
            bodies = [[lines for name, lines in found.items() if call in name] for found in code.values()]
            if any(len(b) != 1 or not b[0] for b in bodies):
                failures.append(f"{compiler}: {call} is not in the object files")
                continue
            target, hand, pointer = (b[0] for b in bodies)
            print(f"{compiler}: {call}: {len(target)} lines through the target, {len(hand)} by hand, {len(pointer)} through a pointer")
            if target != hand:
                failures.append(f"{compiler}: {call} costs something:\n" + "\n".join(target) + "\nby hand:\n" + "\n".join(hand))
            if target == pointer:
                failures.append(f"{compiler}: {call} is the same through a pointer, so this test sees nothing")
    if failures:
        sys.exit("\n".join(failures))


main()
