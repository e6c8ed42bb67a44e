"""Checks who includes whom: the order of the layers, the headers that no header may pull in, and the rules of vendors."""
import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "headers"))
import project_headers as project  # noqa: E402

LAYERS = ["include/mgfl/base/", "include/mgfl/override/", "include/mgfl/tensor/", "include/mgfl/parallel/",
          "include/mgfl/pipeline/", "include/mgfl/policy/", "include/mgfl/engine/", "policies/", "vendors/", "examples/"]

# The generated headers reach upward, and these files alone may read them.
GENERATED = {"mgfl/generated/selected_vendor.hpp": {"include/mgfl/override/dispatch.hpp"},
             "mgfl/generated/override_checks.hpp": {"include/mgfl/override/table.cpp"},
             "mgfl/generated/vendor_engines.hpp": {"policies/engine/registered_engines.hpp"}}

FORBIDDEN_IN_HEADERS = re.compile(
    r"torch/torch\.h|torch/types\.h|torch/extension\.h|ATen/ATen\.h|ATen/TensorOperators\.h|ATen/Functions\.h|ATen/ops/.*"
    r"|.*c10d/.*|nccl\.h|mpi\.h|range/v3/all\.hpp|boost/hana\.hpp|nlohmann/json\.hpp")

FAMILY_CALL = re.compile(r"dispatch_family<\s*(?:mgfl::)?targets::(\w+)")
TARGET = re.compile(r"^\s*struct\s+(\w+)\s*:\s*target<", re.MULTILINE)
USE = re.compile(r"\b(?:dispatch|dispatch_family|override_class_t)<\s*(?:mgfl::)?targets::(\w+)\b")
VENDOR_ENGINE = re.compile(r"\bvendor_engine\s*<")  # read after everything else, by policies/engine/registered_engines.hpp
FALLBACK = re.compile(r"^\s*using\s+fallback\s*=\s*(?:\w+::)*(\w+)\s*;", re.MULTILINE)


def layer(path):
    return next((i for i, prefix in enumerate(LAYERS) if str(path).startswith(prefix)), None)


def vendor(path):
    return path.parts[1] if path.parts[0] == "vendors" and len(path.parts) > 2 else None


def fallbacks(root, name):
    """The vendors that `name` falls back to, in order."""
    found = []
    while True:
        manifest = root / "vendors" / name / "manifest.hpp"
        match = FALLBACK.search(manifest.read_text()) if manifest.is_file() else None
        if not match or match[1] == "original" or match[1] in found:
            return found
        name = "default" if match[1] == "default_" else match[1]
        found.append(name)


def complaints(root, path):
    """Yields a sentence for each broken rule of one file."""
    own_layer, header = layer(path), path.suffix in (".hpp", ".cuh")
    text = (root / path).read_text()
    if header and not text.startswith("/// "):
        yield f"{path}: opens without a /// sentence that says what it gives"
    if header and "#pragma once" not in text:
        yield f"{path}: has no #pragma once"
    for name in project.includes(root, path):
        if name in GENERATED and str(path) not in GENERATED[name]:
            yield f"{path}: includes {name}, which only {', '.join(sorted(GENERATED[name]))} may"
        if header and FORBIDDEN_IN_HEADERS.fullmatch(name):
            yield f"{path}: a header includes {name}; use mgfl/tensor/fwd.hpp or lean.hpp, or move the body to a .cpp"
        included = project.resolve(root, name)
        if not included or layer(included) is None:
            continue
        if layer(included) > own_layer:
            yield (f"{path}: layer {own_layer} ({LAYERS[own_layer]}) includes {name} of layer {layer(included)} "
                   f"({LAYERS[layer(included)]})")
        mine, theirs = vendor(path), vendor(included)
        if mine and theirs and mine != theirs and theirs not in fallbacks(root, mine):
            yield f"{path}: vendor '{mine}' includes {name} of vendor '{theirs}', which it does not fall back to"
    if vendor(path) and header and not VENDOR_ENGINE.search(text) and project.reaches(root, path, "mgfl/override/dispatch.hpp"):
        yield (f"{path}: reaches mgfl/override/dispatch.hpp, which reads this file first; override headers include "
               "the *_decl.hpp of what they override, their .cpp may call everything")
    if header:
        for target in sorted(set(FAMILY_CALL.findall(text))):
            if not re.search(rf"static_assert\(\s*(?:mgfl::)?family_is_checked<\s*(?:mgfl::)?targets::{target}\s*>", text):
                yield f"{path}: calls the family {target} without static_assert(family_is_checked<targets::{target}>)"


def dead_targets(root, files):
    """A target that nobody dispatches could be overridden without any effect."""
    used = {name for path in files if path.parts[0] in ("include", "policies") for name in USE.findall((root / path).read_text())}
    for path in files:
        if str(path).startswith("include/mgfl/override/targets/"):
            for name in TARGET.findall((root / path).read_text()):
                if name not in used:
                    yield f"{path}: nobody calls the target {name}; its overrides would never run"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    root = parser.parse_args().root.resolve()
    files = sorted(p.relative_to(root) for folder in ("include", "policies", "vendors", "examples")
                   for suffix in ("*.hpp", "*.cpp", "*.cuh", "*.cu") for p in (root / folder).rglob(suffix))
    found = [sentence for path in files if layer(path) is not None for sentence in complaints(root, path)]
    found += dead_targets(root, files)
    print(f"{len(files)} files, {len(found)} complaints")
    if found:
        sys.exit("\n".join(found))


main()
