"""Examples/04_write_a_vendor, copied out of the tree: configured with mgfl, compiled and run; then the copy gets a mistake, and the
first error of the build must be ours. Compiles of mgfl what the program calls, not the whole library."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

# What try_acme and acme's overrides call; the linker complains where this falls short.
PARTS = re.compile(r"/acme/|override/build_identity|tensor/factory|mgfl/parallel/|parallel/(self|collective)|kernels/(swiglu|optimizer)"
                   r"|scheduler/(cosine|optimizer_param)|policies/optimizer/|vendors/default/|mgfl_override_table")


def run(command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)


def must(command, **options):
    result = run(command, **options)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--ninja", required=True)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("settings", nargs="*", help="-D... for the configuration")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.scratch, ignore_errors=True)
    stranger, build = arguments.scratch / "stranger", arguments.scratch / "build"
    shutil.copytree(arguments.root / "examples/04_write_a_vendor", stranger)
    must([arguments.cmake, "-E", "env", "--unset=MG_FL_PREFER", arguments.cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={arguments.ninja}",
          "-S", stranger, "-B", build, f"-DMGFL_ROOT={arguments.root}", "-DMG_FL_PREFER=acme",
          f"-DMGFL_VENDOR_DIRS={stranger / 'acme'}", "-DMGFL_KERNELS=aten", *arguments.settings])

    targets = must([arguments.ninja, "-C", build, "-t", "targets", "all"])
    objects = [name for name in re.findall(r"^(\S+\.o): ", targets, re.MULTILINE)
               if PARTS.search(name.removeprefix("mgfl/CMakeFiles/mgfl.dir")) and "try_acme.dir" not in name]
    program = "CMakeFiles/try_acme.dir/try_acme.cpp.o"
    must([arguments.ninja, "-C", build, *objects, program])
    link = must([arguments.ninja, "-C", build, "-t", "commands", "try_acme"]).splitlines()[-1]
    if "mgfl/libmgfl.a" not in link:
        sys.exit(f"this is no link of libmgfl: {link}")
    must(["sh", "-c", link.replace("mgfl/libmgfl.a", " ".join(objects))], cwd=build)
    output = must([build / "try_acme"])
    print(output)
    for key in ("initialize._compile_dependencies", "MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan",
                "lr_scheduler.CosineAnnealingLR", "swiglu.swiglu"):
        if not re.search(rf"^  {re.escape(key)} +(function|method|class) +acme\b", output, re.MULTILINE):
            sys.exit(f"the report does not name acme for {key}")

    header = stranger / "acme/kernels/swiglu.hpp"
    header.write_text(header.read_text().replace("Tensor& activated", "Tensor activated"))
    result = run([arguments.ninja, "-C", build, "mgfl/libmgfl.a"])
    first = next((line for line in result.stdout.splitlines() if "error:" in line), "no error")
    expected = f"mgfl: vendor 'acme', targets::swiglu in {header}: its call() must have exactly the original's signature"
    if expected not in first:
        sys.exit(f"the first error must say: {expected}\nit is: {first}")


main()
