"""Compile time, in CPU seconds of each compiler.

With 300 targets, of which three vendors override 310 in all. The caller: dispatch or override_class_t of each, and the proof that
all names differ. The table: include/mgfl/override/table.cpp, which checks every override of every vendor. Over the seconds of an
empty unit, median of three.

With --engines, instead: two programs with one engine each, examples/02_custom_loss.cpp, whose engine the library has compiled, and
examples/03_custom_optimizer.cpp, which instantiates its own. User seconds, the least of three where the first is too many.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "headers"))
import project_headers as project  # noqa: E402

TARGETS, CLASSES = 300, 60
CALLER_LIMIT, TABLE_LIMIT = 1.5, 3.0  # a build compiles the table once, callers by the hundred
ENGINE_LIMIT = 25.0
VENDORS = {"alpha": ("beta", 2), "beta": ("default_", 3), "default_": (None, 5)}  # falls back to; overrides each n-th target


def names():
    return [f"thing_{i}" for i in range(TARGETS)]


def is_class(i):
    return i % (TARGETS // CLASSES) == 0


def targets_header():
    lines = ["#pragma once", '#include "mgfl/override/target.hpp"', "namespace mgfl::targets {"]
    lines += [f'struct {n} : target<"mgfl.core.module_{i % 17}.some_file_{i}.{n}"> {{}};' for i, n in enumerate(names())]
    lines += [f"using many_targets = list<{', '.join(names())}>;", "}"]
    return "\n".join(lines) + "\n"


def all_header(root):
    """The project's own, with the many targets in the place of its lists."""
    text = (root / "include/mgfl/override/targets/all.hpp").read_text()
    text = re.sub(r'#include "mgfl/override/targets/\w+\.hpp"\n', "", text)
    text, count = re.subn(r"using all_targets =.*?;", "using all_targets = targets::many_targets;", text, flags=re.DOTALL)
    if count != 1:
        sys.exit("include/mgfl/override/targets/all.hpp has no `using all_targets = ...;`")
    return text.replace("#pragma once", '#pragma once\n#include "many_targets.hpp"', 1)


def originals_header():
    lines = ["#pragma once", '#include "many_targets.hpp"', "namespace mgfl {"]
    for i, name in enumerate(names()):
        if is_class(i):
            lines += [f"struct original_{i} {{ original_{i}(int, double); }};"]
        body = f"using type = original_{i}; using constructor = void(int, double);" if is_class(i) else "static double call(const double&, int);"
        lines += [f"template <> struct implementation<targets::{name}, vendors::original> {{ {body} }};"]
    return "\n".join(lines + ["}"]) + "\n"


def vendor_header():
    lines = ["#pragma once", '#include "many_targets.hpp"', '#include "originals.hpp"', "namespace mgfl {", "namespace vendors {"]
    lines += [f'struct {v} {{ static constexpr std::string_view name = "{v}"; using fallback = {back}; }};'
              for v, (back, _) in reversed(VENDORS.items()) if back]
    lines += ["using preferred = alpha;", "using kernel_set = original;", f"using known = list<{', '.join(VENDORS)}>;",
              "using known_kernel_sets = list<>;", f"using chain = list<{', '.join(VENDORS)}>;", "}",
              "template <> struct fallback_of<vendors::default_> { using type = vendors::kernel_set; };"]
    for vendor, (_, step) in VENDORS.items():
        own = [(i, n) for i, n in enumerate(names()) if i % step == 0]
        lines += [f"template <> struct manifest<vendors::{vendor}> {{ using overrides = list<{', '.join(f'targets::{n}' for _, n in own)}>; }};"]
        for i, name in own:
            if is_class(i):
                lines += [f"struct {vendor}_{i} : original_{i} {{ using original_{i}::original_{i}; }};"]
            body = f"using type = {vendor}_{i};" if is_class(i) else "static double call(const double&, int);"
            lines += [f"template <> struct implementation<targets::{name}, vendors::{vendor}> "
                      f": overrides<targets::{name}, vendors::{vendor}> {{ {body} }};"]
    return "\n".join(lines + ["}"]) + "\n"


def caller():
    lines = ['#include "mgfl/override/dispatch.hpp"', '#include "originals.hpp"', "namespace mgfl {", "double call_everything(double x) {"]
    lines += [f"  x += sizeof(override_class_t<targets::{n}>);" if is_class(i) else f"  x += dispatch<targets::{n}>(x, {i});"
              for i, n in enumerate(names())]
    return "\n".join(lines + ["  return x;", "}", "}"]) + "\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def cpu_seconds(command):
    """(user, system)"""
    before = os.times()
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                            env={**os.environ, "CCACHE_DISABLE": "1"})
    after = os.times()
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stderr[:3000]}")
    return after.children_user - before.children_user, after.children_system - before.children_system


def busy_machine():
    """One that does more than its cores can counts cache misses and shared cores as CPU time."""
    return os.getloadavg()[0] > os.cpu_count()


def check_engines(root, scratch, compilers, settings):
    """Yields a sentence for each program that takes too long."""
    example, own = root / "examples/02_custom_loss.cpp", root / "examples/03_custom_optimizer.cpp"
    scratch.mkdir(parents=True, exist_ok=True)
    flags = [*project.compile_flags(settings, root), "-O3", "-DNDEBUG"]
    for compiler in compilers:
        for what, unit in {"an engine of the library": example, "an engine of its own": own}.items():
            command = [compiler, *flags, "-c", "-o", scratch / "unit.o", unit]
            limit = ENGINE_LIMIT * (2 if busy_machine() else 1)
            seconds, _ = cpu_seconds(command)
            for _ in range(2):
                if seconds >= limit:
                    seconds = min(seconds, cpu_seconds(command)[0])
            print(f"{compiler}: a program with {what} takes {seconds:.1f} s (limit {limit} s)")
            if seconds >= limit:
                yield f"{compiler}: a program with {what} takes {seconds:.1f} s, the limit is {limit} s; move bodies into .cpp files"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--compilers", required=True, help="with commas")
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("settings", nargs="*", help="with --engines: include directories and -D definitions")
    arguments = parser.parse_args()
    root, scratch = arguments.root, arguments.scratch
    if arguments.engines:
        sys.exit("\n".join(check_engines(root, scratch, arguments.compilers.split(","), arguments.settings)) or None)
    write(scratch / "many_targets.hpp", targets_header())
    write(scratch / "originals.hpp", originals_header())
    write(scratch / "mgfl/override/targets/all.hpp", all_header(root))
    write(scratch / "mgfl/generated/selected_vendor.hpp", vendor_header())
    write(scratch / "mgfl/generated/override_checks.hpp",
          "#pragma once\n#include <cstdint>\nnamespace mgfl::detail {\ninline constexpr std::uint64_t folder_hashes[] = {1};\n}\n")
    empty, many = write(scratch / "empty.cpp", "int main() {}\n"), write(scratch / "many.cpp", caller())
    units = {"a caller": (many, CALLER_LIMIT), "the override table": (root / "include/mgfl/override/table.cpp", TABLE_LIMIT)}

    busy = busy_machine()
    failures = []
    for compiler in arguments.compilers.split(","):
        command = [compiler, "-std=c++20", "-O0", f"-I{scratch}", f"-I{root}/include", f"-I{root}", "-c", "-o", scratch / "unit.o"]
        for what, (unit, limit) in units.items():
            limit *= 2 if busy else 1
            pairs = [(sum(cpu_seconds([*command, empty])), sum(cpu_seconds([*command, unit]))) for _ in range(3)]
            over = statistics.median(m - e for e, m in pairs)
            print(f"{compiler}: with {TARGETS} targets {what} costs {over:.2f} s over an empty unit (limit {limit} s"
                  f"{', on a busy machine' if busy else ''})")
            if over >= limit:
                failures.append(f"{compiler}: {what} takes {over:.2f} s with {TARGETS} targets, the limit is {limit} s")
    if failures:
        sys.exit("\n".join(failures))


main()
