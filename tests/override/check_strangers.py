"""A stranger's vendor folder with one mistake: the vendors are configured, then the override table is compiled by each compiler, as
the build does first. The first error line must say in our words what is wrong, with vendor, target and file; what to do follows.
The same folder written in other legal ways must pass without a word."""
import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys

SWIGLU = "kernels/swiglu.hpp"
LR = "scheduler/warmup_lr.hpp"
SPECIALIZATION = "struct implementation<targets::swiglu, vendors::acme> : overrides<targets::swiglu, vendors::acme> {"
LISTED = """list<targets::compile_dependencies, targets::unscale_main_grads,
                         targets::CosineAnnealingLR, targets::swiglu>"""
INHERITS = "class WarmupLR : public scheduler::original::CosineAnnealingLR {"

# name: (edits of (file, old text, new text; a new text without an old one is a new file, None deletes the file), stage, first
# error line, what to do)
MISTAKES = {
    "wrong_signature": (
        [(SWIGLU, "Tensor& activated", "Tensor activated")], "compile",
        "mgfl: vendor 'acme', targets::swiglu in {dir}/kernels/swiglu.hpp: its call() must have exactly the original's signature;",
        "copy it from policies/kernels/kernels_decl.hpp"),
    "wrong_method_signature": (
        [("optimizer/unscale_main_grads.hpp", "Self& self", "const Self& self")], "compile",
        "mgfl: vendor 'acme', targets::unscale_main_grads in {dir}/optimizer/unscale_main_grads.hpp: its call() must have exactly",
        "copy it from policies/optimizer/unscale_main_grads_decl.hpp"),
    "call_misspelt": (
        [(SWIGLU, "void call", "void Call")], "compile", "targets::swiglu in {dir}/kernels/swiglu.hpp: its call() must have", "copy it"),
    "forgotten_file": (
        [(SWIGLU, None, None)], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp lists targets::swiglu, but no header of {dir} specializes it.",
        "Write `template <> struct implementation<targets::swiglu, vendors::acme>` in a .hpp of that folder"),
    "written_in_a_source": (
        [(SWIGLU, None, None), ("kernels/swiglu.cpp", '#include "swiglu.hpp"', "template <>\n" + SPECIALIZATION + "};")], "configure",
        "lists targets::swiglu, but no header of {dir} specializes it.", "{dir}/kernels/swiglu.cpp specializes it, where no caller sees it"),
    "hidden_by_a_macro": (  # text alone cannot tell
        [(SWIGLU, "template <>\n" + SPECIALIZATION, "SDK_OVERRIDE(swiglu) {")], "compile",
        "mgfl: implementation<T, V> was not visible at first use, although V's manifest lists T",
        "targets::swiglu, mgfl::vendors::acme>"),
    "broken_include": (  # an override that cannot be read stops the build
        [(SWIGLU, '#include "../manifest.hpp"', '#include "../manifest.hpp"\n#include "no_such_helper.hpp"')], "compile",
        "no_such_helper.hpp", "{dir}/kernels/swiglu.hpp"),
    "misspelt_in_manifest": (
        [("manifest.hpp", "targets::swiglu", "targets::swigul")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp lists targets::swigul, which is no target.", "Did you mean targets::swiglu?"),
    "misspelt_in_header": (
        [(SWIGLU, SPECIALIZATION, SPECIALIZATION.replace("targets::swiglu", "targets::swigl"))], "configure",
        "mgfl: vendor 'acme': {dir}/kernels/swiglu.hpp specializes targets::swigl, which is no target.", "Did you mean targets::swiglu?"),
    "nothing_like_it": (
        [("manifest.hpp", "targets::swiglu", "targets::flux_capacitor")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp lists targets::flux_capacitor, which is no target.",
        "The headers in include/mgfl/override/targets/ name every target."),
    "listed_twice": (
        [("manifest.hpp", "targets::swiglu>", "targets::swiglu, targets::compile_dependencies>")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp lists targets::compile_dependencies twice.", "Delete one of the two."),
    "listed_twice_under_an_alias": (
        [("manifest.hpp", "targets::swiglu>", "targets::swiglu, again>"),
         ("manifest.hpp", "template <>", "using again = targets::compile_dependencies;\ntemplate <>")], "compile",
        "mgfl_list_names_each_type_once<", "compile_dependencies"),
    "written_twice": (
        [("swiglu_again.hpp", None, '#include "manifest.hpp"\nnamespace mgfl {\ntemplate <>\n' + SPECIALIZATION + "};\n}")], "configure",
        "mgfl: vendor 'acme': targets::swiglu is specialized twice, in {dir}/kernels/swiglu.hpp and in {dir}/swiglu_again.hpp.",
        "Delete one of the two."),
    "not_inherited": (
        [(LR, INHERITS, "class WarmupLR {"),
         (LR, "  using CosineAnnealingLR::CosineAnnealingLR;\n", "  WarmupLR(optimizer::Optimizer&, std::int64_t, double = 0);\n")], "compile",
        "mgfl: vendor 'acme', targets::CosineAnnealingLR in {dir}/scheduler/warmup_lr.hpp: its `type` must be a class that inherits from",
        "derive publicly from the class in policies/scheduler/cosine_annealing_lr_decl.hpp"),
    "inherited_privately": (
        [(LR, INHERITS, INHERITS.replace("public ", "private "))], "compile",
        "targets::CosineAnnealingLR in {dir}/scheduler/warmup_lr.hpp: its class must inherit publicly and unambiguously;", "public original::"),
    "constructor_missing": (
        [(LR, "  using CosineAnnealingLR::CosineAnnealingLR;\n", "  WarmupLR(optimizer::Optimizer&, std::int64_t, double, int);\n")], "compile",
        "targets::CosineAnnealingLR in {dir}/scheduler/warmup_lr.hpp: its class must accept the constructor arguments that callers",
        "see `constructor` in policies/scheduler/cosine_annealing_lr_decl.hpp"),
    "no_type": (
        [(LR, "using type = acme::WarmupLR", "using Type = acme::WarmupLR")], "compile",
        "targets::CosineAnnealingLR in {dir}/scheduler/warmup_lr.hpp: its implementation must name its class;",
        "write `using type = YourClass;`"),
    "callers_header": (
        [(SWIGLU, "kernels_decl.hpp", "kernels.hpp")], "configure",
        "mgfl: vendor 'acme': {dir}/kernels/swiglu.hpp includes policies/kernels/kernels.hpp, the callers' header, which asks for the "
        "choice that this override is a part of.", "Include policies/kernels/kernels_decl.hpp."),
    "callers_header_in_angles": (
        [("optimizer/unscale_main_grads.hpp", '"policies/optimizer/unscale_main_grads_decl.hpp"',
          "<policies/optimizer/unscale_main_grads.hpp>")], "configure",
        "includes policies/optimizer/unscale_main_grads.hpp, the callers' header", "Include policies/optimizer/unscale_main_grads_decl.hpp."),
    "callers_header_through_a_private_one": (
        [(SWIGLU, '#include "../manifest.hpp"', '#include "../common.hpp"'),
         ("common.hpp", None, '#pragma once\n#include "manifest.hpp"\n#include "mgfl/engine/engine.hpp"\n#ifdef ACME\n#endif\n')],
        "configure", "mgfl: vendor 'acme': {dir}/common.hpp includes mgfl/engine/engine.hpp, the callers' header",
        "Include the original's *_decl.hpp here, and this header in the .cpp that needs it."),
    "dispatch_in_the_manifest": (
        [("manifest.hpp", "mgfl/override/target.hpp", "mgfl/override/dispatch.hpp")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp includes mgfl/override/dispatch.hpp, the callers' header",
        "Include the original's *_decl.hpp here"),
    "source_of_another_ending": (
        [("kernels/swiglu.cpp", None, None), ("kernels/swiglu.cc", None, '#include "swiglu.hpp"\n')], "configure",
        "mgfl: vendor 'acme': {dir}/kernels/swiglu.cc is not compiled: a vendor's sources end in .cpp.",
        "Rename it, or add it to the target mgfl in a .cmake file of the folder."),
    "header_of_another_ending": (
        [(SWIGLU, None, None), ("kernels/swiglu.h", None, "#pragma once\ntemplate <>\n" + SPECIALIZATION + "};\n"),
         ("kernels/swiglu.cpp", "swiglu.hpp", "swiglu.h")], "configure",
        "lists targets::swiglu, but no header of {dir} specializes it.",
        "{dir}/kernels/swiglu.h specializes it, and the build reads headers that end in .hpp: rename it to .hpp."),
    "forgotten_comma": (
        [("manifest.hpp", "targets::CosineAnnealingLR, targets::swiglu", "targets::CosineAnnealingLR\n    targets::swiglu")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp lists targets::CosineAnnealingLR and targets::swiglu with no comma between.",
        "Write `targets::CosineAnnealingLR, targets::swiglu`."),
    "not_listed": (
        [("manifest.hpp", ", targets::swiglu>", ">")], "configure",
        "mgfl: vendor 'acme': {dir}/kernels/swiglu.hpp overrides targets::swiglu, but {dir}/manifest.hpp does not list it, so that it",
        "Add targets::swiglu to the list there, or delete the override."),
    "not_listed_under_an_alias": (  # the list's text cannot be understood
        [("manifest.hpp", LISTED, "listed"),
         ("manifest.hpp", "template <>", "using listed = " + LISTED.replace(", targets::swiglu", "") + ";\ntemplate <>")], "compile",
        "mgfl: implementation<T, V> exists, but vendors/<V>/manifest.hpp does not list T", "targets::swiglu, mgfl::vendors::acme>"),
    "wrong_tag": (
        [("manifest.hpp", "struct acme {", "struct acmee {"), ("manifest.hpp", "vendors::acme>", "vendors::acmee>")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp defines no tag of that name, and the folder's name is the vendor's.", "struct acme {"),
    "wrong_name": (
        [("manifest.hpp", '"acme"', '"ACME"')], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp says name = \"ACME\", and the folder's name is the vendor's.", 'name = "acme";'),
    "no_name": (
        [("manifest.hpp", '  static constexpr std::string_view name = "acme";', "")], "configure",
        "mgfl: vendor 'acme': the tag in {dir}/manifest.hpp has no name.", 'Write `static constexpr std::string_view name = "acme";`'),
    "manifest_of_another": (
        [("manifest.hpp", "struct manifest<vendors::acme>", "struct manifest<vendors::musa>")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp specializes manifest<vendors::musa>, another vendor's.", "struct manifest<vendors::acme>"),
    "override_of_another": (
        [(SWIGLU, SPECIALIZATION, SPECIALIZATION.replace("vendors::acme", "vendors::musa"))], "configure",
        "mgfl: vendor 'acme': {dir}/kernels/swiglu.hpp specializes implementation<targets::swiglu, vendors::musa>, another vendor's.",
        "Write vendors::acme"),
    "wrong_fallback": (
        [("manifest.hpp", "fallback = default_", "fallback = defualt")], "configure",
        "mgfl: vendor 'acme' falls back to 'defualt', which is no vendor of this build.", "Known vendors: default, acme"),
    "kernel_set_as_fallback": (
        [("manifest.hpp", "fallback = default_", "fallback = x86")], "configure",
        "mgfl: vendor 'acme' falls back to 'x86', which is a kernel set, not a vendor.",
        "Write `using fallback = default_;` in {dir}/manifest.hpp: after default comes the kernel set that -DMGFL_KERNELS chooses."),
    "aten_as_fallback": (
        [("manifest.hpp", "fallback = default_", "fallback = aten")], "configure",
        "mgfl: vendor 'acme' falls back to 'aten', which is a kernel set, not a vendor.", "Write `using fallback = default_;`"),
    "fallback_not_declared": (
        [("manifest.hpp", "fallback = default_", "fallback = musa")], "configure",
        "mgfl: vendor 'acme': {dir}/manifest.hpp falls back to musa and does not declare that tag.",
        "Write `struct musa;` above `struct acme {`, or include that vendor's manifest.hpp."),
    "no_fallback": (
        [("manifest.hpp", "using fallback = default_;", "")], "configure",
        "mgfl: {dir}/manifest.hpp names no fallback.", "Write `using fallback = default_;` on one line"),
    "wrapped_fallback": (
        [("manifest.hpp", "using fallback = default_;", "using fallback =\n      default_;")], "configure",
        "mgfl: {dir}/manifest.hpp names no fallback.", "Write `using fallback = default_;` on one line"),
    "fallback_without_underscore": (
        [("manifest.hpp", "fallback = default_;", "fallback = default;")], "configure",
        "mgfl: {dir}/manifest.hpp says `using fallback = default;`, and vendor default's tag is default_.",
        "Write `using fallback = default_;`."),
}

GUARDED = "#ifndef ACME_SWIGLU_HPP\n#define ACME_SWIGLU_HPP\n"
# name: edits; the folder must then configure and compile
LEGAL = {
    "as_it_is": [],
    "outside_the_namespace": [
        (SWIGLU, "template <>\n" + SPECIALIZATION, "}\ntemplate <>\nstruct\n    mgfl::implementation<mgfl::targets::swiglu, mgfl::vendors::acme>"
                                                  "\n  : mgfl::overrides<mgfl::targets::swiglu, mgfl::vendors::acme> {\n  using Tensor = mgfl::Tensor;"),
        (SWIGLU, "}  // namespace mgfl", "")],
    "fallback_declared": [("manifest.hpp", "fallback = default_", "fallback = musa"), ("manifest.hpp", "struct acme {", "struct musa;\nstruct acme {")],
    "fallback_included": [("manifest.hpp", "fallback = default_", "fallback = musa"),
                          ("manifest.hpp", "#pragma once", '#pragma once\n#include "tags.hpp"'),
                          ("tags.hpp", None, '#pragma once\n#include "vendors/musa/manifest.hpp"\n')],
    "attribute_and_final": [(SWIGLU, SPECIALIZATION, SPECIALIZATION.replace("struct implementation", "struct [[maybe_unused]] implementation")
                             .replace(" : overrides", " final\n  : overrides"))],
    "one_line": [(SWIGLU, "template <>\n" + SPECIALIZATION, "template<>struct implementation<targets::swiglu,vendors::acme>"
                                                              ":overrides<targets::swiglu,vendors::acme>{")],
    "using_directives": [("manifest.hpp", "template <>", "using namespace targets;\ntemplate <>"),
                         ("manifest.hpp", LISTED, LISTED.replace("targets::", "")),
                         (SWIGLU, SPECIALIZATION, SPECIALIZATION.replace("targets::", ""))],
    "aliases": [(SWIGLU, "template <>", "using T = targets::swiglu;\nusing V = vendors::acme;\ntemplate <>"),
                (SWIGLU, SPECIALIZATION, "struct implementation<T, V> : overrides<T, V> {")],
    "macro": [(SWIGLU, "template <>\n" + SPECIALIZATION, "ACME_OVERRIDE(swiglu) {"),
              (SWIGLU, "namespace mgfl {", "#define ACME_OVERRIDE(x) \\\n  template <>  \\\n"
                       "  struct implementation<targets::x, vendors::acme> : overrides<targets::x, vendors::acme>\nnamespace mgfl {")],
    "comments": [(SWIGLU, "#pragma once", "#pragma once\n// struct implementation<targets::rms_norm, vendors::acme> { it's \"old\"\n"
                          "/* struct implementation<targets::swigluuu, vendors::acme> : /* don't\n ** stars **/"),
                 ("manifest.hpp", "targets::compile_dependencies,", "targets::compile_dependencies,  // targets::swiglu,\n /* targets::nothing, */")],
    "literals": [("private.hpp", None, "#pragma once\ninline const char* text = \"/* \\\" struct implementation<targets::attention, vendors::acme> {\";\n"
                                         "inline char c = '\"'; inline int n = 1'000'000;\n")],
    "both_branches": [(SWIGLU, SPECIALIZATION, "#if __cplusplus > 1\n" + SPECIALIZATION + "\n#else\n" + SPECIALIZATION + "\n#endif")],
    "switched_off": [("old.hpp", None, "#pragma once\n#if 0\ntemplate <> struct implementation<targets::swiglu, vendors::acme> {};\n"
                                       "template <> struct implementation<targets::attention, vendors::acme> {};\n#endif\n")],
    "include_guard": [(SWIGLU, "#pragma once", GUARDED), (SWIGLU, "}  // namespace mgfl\n", "}\n#endif  // ACME_SWIGLU_HPP\n")],
    "declared_before": [(SWIGLU, "template <>\n", "template <>\nstruct implementation<targets::swiglu, vendors::acme>;\ntemplate <>\n")],
    "friend_elsewhere": [("private.hpp", None, "/// Private.\n#pragma once\n#error \"private headers are not included\"\n"
                                               "class Heap { friend struct mgfl::implementation<targets::linear, vendors::acme>; };\n")],
    "callers_header_unused": [  # by what dispatch.hpp includes
        (SWIGLU, "#pragma once", '#pragma once\n// #include "policies/kernels/kernels.hpp"\n#if 0\n#include "mgfl/override/dispatch.hpp"\n#endif'),
        ("private.hpp", None, '#pragma once\n#include "policies/kernels/kernels.hpp"\n'),
        ("kernels/swiglu.cpp", '#include "swiglu.hpp"', '#include "swiglu.hpp"\n#include "policies/kernels/kernels.hpp"\n')],
    "compiled_by_its_script": [("more.cc", None, "int acme_more;\n"),
                               ("more.cmake", None, "target_sources(mgfl PRIVATE ${CMAKE_CURRENT_LIST_DIR}/more.cc)\n")],
    "specialized_in_a_h": [  # which another override header includes
        (SWIGLU, None, None), ("training/initialize.hpp", "namespace mgfl {\n", 'namespace mgfl {\n#include "../kernels/body.h"\n'),
        ("kernels/body.h", None, "template <>\n" + SPECIALIZATION + " static void call(const Tensor&, Tensor&); };\n")],
    "long_tables": [("table.hpp", None, "#pragma once\ninline const char* names[] = {" + '"a name, not a /* comment",\n' * 20000 + "};\n"),
                    (SWIGLU, "namespace mgfl {", "inline const int numbers[] = {" + "0x12345678, " * 20000 + "0};\n"
                             "inline const char* words[] = {" + '"word", ' * 3000 + "};\nnamespace mgfl {")],
    "windows_line_ends": [(SWIGLU, "\n", "\r\n"), ("manifest.hpp", "\n", "\r\n")],
}


def run(command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)


def flat(text):
    return " ".join(text.split())


def first_error(text):
    """CMake's sentence (which it wraps), or the compiler's first error line."""
    if "CMake Error" in text:
        return flat(text.split("CMake Error", 1)[1].split("\n", 1)[1].split("Call Stack")[0])
    return next((line for line in text.splitlines() if "error:" in line or "error: " in line), "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--compilers", required=True, help="with commas")
    parser.add_argument("--only", default="", help="one case")
    arguments = parser.parse_args()
    root, failures = arguments.root, []
    shutil.rmtree(arguments.scratch, ignore_errors=True)

    def prepare(name, edits):
        folder = arguments.scratch / name / "acme"
        shutil.copytree(root / "examples/04_write_a_vendor/acme", folder)
        for file, old, new in edits:
            path = folder / file
            if old is None and new is None:
                path.unlink()
            elif old is None:
                path.write_text(new, newline="")
            else:
                text = path.read_text()
                if old not in text:
                    sys.exit(f"{name}: {file} of the example has no text {old!r}")
                path.write_text(text.replace(old, new), newline="")
        return folder

    def configure(name, folder):
        return run([arguments.cmake, "-E", "env", "--unset=MG_FL_PREFER", arguments.cmake, "-S", root / "tests/override/choice",
                    "-B", folder.parent / "build", f"-DMGFL_ROOT={root}", "-DMG_FL_PREFER=acme", f"-DMGFL_VENDOR_DIRS={folder}",
                    "-DMGFL_KERNELS=aten"])

    def compile_table(compiler, folder):
        return run([compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/include", f"-I{root}", f"-I{folder.parent}/build/generated",
                    root / "include/mgfl/override/table.cpp"])

    def check_mistake(name):
        edits, stage, error, remedy = MISTAKES[name]
        folder = prepare(name, edits)
        error, remedy = error.format(dir=folder) if "{dir}" in error else error, remedy.replace("{dir}", str(folder))
        result = configure(name, folder)
        results = {"cmake": result.stderr}
        if stage == "compile":
            if result.returncode:
                return [f"{name}: the configuration fails, which text cannot decide:\n{result.stderr}"]
            results = {c: compile_table(c, folder).stderr for c in arguments.compilers.split(",")}
        found = []
        for tool, text in results.items():
            first = first_error(text)
            if error not in first or flat(remedy) not in flat(text):
                found.append(f"{name}, {tool}: expected first: {error}\n  and: {remedy}\n  got: {first or text or 'no error'}")
        return found

    def check_legal(name):
        folder = prepare("legal_" + name, LEGAL[name])
        result = configure(name, folder)
        if result.returncode or "Warning" in result.stderr:
            return [f"{name} is legal, but the configuration says:\n{result.stderr}"]
        return [f"{name} is legal, but {c} says:\n{r.stderr[:2000]}" for c in arguments.compilers.split(",")
                for r in [compile_table(c, folder)] if r.returncode]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        mistakes = [n for n in MISTAKES if arguments.only in ("", n)]
        legal = [n for n in LEGAL if arguments.only in ("", n)]
        for found in list(pool.map(check_mistake, mistakes)) + list(pool.map(check_legal, legal)):
            failures += found
    print(f"{len(mistakes)} mistakes, {len(legal)} legal folders, {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


main()
