"""Runs check_layers.py on a small tree in which each file breaks one rule, and on the same tree without the mistakes."""
import pathlib
import subprocess
import sys
import tempfile

GOOD = {
    "include/mgfl/base/error.hpp": "/// Errors.\n#pragma once\n#include <string>\n",
    "include/mgfl/override/dispatch.hpp": "/// Dispatch.\n#pragma once\n#include <mgfl/generated/selected_vendor.hpp>\n",
    "include/mgfl/override/targets/used.hpp": '/// Targets.\n#pragma once\nstruct norm : target<"a.norm"> {};\n',
    "include/mgfl/tensor/lean.hpp": "/// Tensor.\n#pragma once\n#include <ATen/core/Tensor.h>\n",
    "policies/norm_decl.hpp": '/// Norm.\n#pragma once\n#include "mgfl/tensor/lean.hpp"\n',
    "policies/norm.hpp": '/// Norm.\n#pragma once\n#include "mgfl/override/dispatch.hpp"\n#include "policies/norm_decl.hpp"\n'
                         "static_assert(family_is_checked<targets::norm>);\nauto x = dispatch_family<targets::norm, C>;\n",
    "policies/norm.cpp": "#include <ATen/ops/add_ops.h>\n#include <mpi.h>\n",
    "vendors/musa/manifest.hpp": "/// musa.\n#pragma once\n  using fallback = default_;\n",
    "vendors/default/manifest.hpp": "/// default.\n#pragma once\n",
    "vendors/default/norm.hpp": '/// Norm.\n#pragma once\n#include "policies/norm_decl.hpp"\n',
    "vendors/musa/engine.hpp": '/// E.\n#pragma once\n#include "policies/norm.hpp"\nstruct e : vendor_engine<e, vendors::musa> {};\n',
    "vendors/musa/norm.hpp": '/// Norm.\n#pragma once\n#include "vendors/default/norm.hpp"\n',
}
BAD = {  # file: (text, what the check must say)
    "include/mgfl/base/up.hpp": ('/// Up.\n#pragma once\n#include "mgfl/tensor/lean.hpp"\n', "layer 0 (include/mgfl/base/) includes"),
    "include/mgfl/override/targets/dead.hpp": ('/// T.\n#pragma once\nstruct nowhere\n    : target<"a.nowhere"> {};\n',
                                               "nobody calls the target nowhere"),
    "include/mgfl/engine/up.cpp": ('#include "policies/norm.hpp"\n', "layer 6 (include/mgfl/engine/) includes policies/norm.hpp"),
    "policies/vendor.cpp": ('#include "vendors/musa/norm.hpp"\n', "layer 7 (policies/) includes vendors/musa/norm.hpp"),
    "policies/heavy.hpp": ("/// Heavy.\n#pragma once\n#include <ATen/ops/add.h>\n", "a header includes ATen/ops/add.h"),
    "policies/heavier.hpp": ("/// Heavy.\n#pragma once\n#include <mpi.h>\n", "a header includes mpi.h"),
    "policies/generated.hpp": ("/// G.\n#pragma once\n#include <mgfl/generated/selected_vendor.hpp>\n",
                               "which only include/mgfl/override/dispatch.hpp may"),
    "policies/engines.hpp": ("/// G.\n#pragma once\n#include <mgfl/generated/vendor_engines.hpp>\n",
                             "which only policies/engine/registered_engines.hpp may"),
    "policies/silent.hpp": ("#pragma once\n", "opens without a /// sentence"),
    "policies/twice.hpp": ("/// Twice.\n", "has no #pragma once"),
    "policies/late.hpp": ("/// Late.\n#pragma once\nauto x = dispatch_family<targets::norm, C>;\n",
                          "calls the family norm without static_assert"),
    "vendors/default/stranger.hpp": ('/// S.\n#pragma once\n#include "vendors/musa/norm.hpp"\n',
                                     "vendor 'default' includes vendors/musa/norm.hpp of vendor 'musa'"),
    "vendors/musa/facade.hpp": ('/// F.\n#pragma once\n#include "policies/norm.hpp"\n', "reaches mgfl/override/dispatch.hpp"),
}


def check(root):
    script = pathlib.Path(__file__).with_name("check_layers.py")
    return subprocess.run([sys.executable, script, root], capture_output=True, text=True, check=False)


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    write(root, GOOD)
    result = check(root)
    if result.returncode:
        sys.exit(f"complaints about a tree without mistakes:\n{result.stderr}")
    write(root, {name: text for name, (text, _) in BAD.items()})
    lines = check(root).stderr.splitlines()
    missing = [f"{name}: {words}" for name, (_, words) in BAD.items()
               if not any(line.startswith(f"{name}: ") and words in line for line in lines)]
    if missing:
        sys.exit("no complaint about\n" + "\n".join(missing) + "\namong\n" + "\n".join(lines))
    if len(lines) != len(BAD):
        sys.exit("more complaints than mistakes:\n" + "\n".join(lines))
