"""docs/add_a_vendor.md shows exactly the files of examples/04_write_a_vendor/acme: each block that a file name precedes, no file less."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
guide = (root / "docs/add_a_vendor.md").read_text()
example = root / "examples/04_write_a_vendor"
shown = dict(re.findall(r"^`(acme/[\w/.]+)`\n```\w+\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
files = {str(p.relative_to(example)): p.read_text() for p in (example / "acme").rglob("*") if p.is_file()}
complaints = [f"docs/add_a_vendor.md does not show {name}" for name in files.keys() - shown.keys()]
complaints += [f"docs/add_a_vendor.md shows {name}, which the example lacks" for name in shown.keys() - files.keys()]
complaints += [f"docs/add_a_vendor.md shows {name} otherwise than the example has it"
               for name in files.keys() & shown.keys() if files[name] != shown[name]]
print(f"{len(files)} files, {len(complaints)} complaints")
if complaints:
    sys.exit("\n".join(sorted(complaints)))
