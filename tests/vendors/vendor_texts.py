"""What manifests, READMEs and docs/vendors.md say about the vendors' overrides."""
import re

TICKED = re.compile(r"`([^`]+)`")


def targets(root):
    """Name of each target -> its method_key."""
    found = {}
    for header in sorted((root / "include/mgfl/override/targets").glob("*.hpp")):
        for name, path in re.findall(r'struct\s+(\w+)\s*:\s*target<\s*"([^"]+)"\s*>', header.read_text()):
            found[name] = ".".join(path.split(".")[-2:])
    return found


def vendors(root):
    """Vendors that one can prefer; kernel sets are none."""
    return sorted(manifest.parent.name for manifest in (root / "vendors").glob("*/manifest.hpp")
                  if not re.search(r"using\s+fallback\s*=\s*(?:\w+::)*original\s*;", manifest.read_text()))


def listed(root, vendor):
    """method_keys that the vendor's manifest lists."""
    keys = targets(root)
    text = (root / "vendors" / vendor / "manifest.hpp").read_text()
    listing = re.search(r"using\s+overrides\s*=\s*list<([^;]*)>;", text)
    return {keys[name] for name in re.findall(r"targets::(\w+)", listing[1])}


def tables(text):
    """Each table as (cells of the header, rows of cells)."""
    found, rows = [], []
    for line in text.splitlines() + [""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif rows:
            found.append((rows[0], rows[2:]))
            rows = []
    return found


def readme_tables(root, vendor, first):
    text = (root / "vendors" / vendor / "README.md").read_text()
    return [row for header, rows in tables(text) if header[0] == first for row in rows]


def readme_keys(root, vendor):
    """method_keys in the README's table of overrides."""
    return {key for row in readme_tables(root, vendor, "target") for key in TICKED.findall(row[0])}


def readme_waits(root, vendor):
    """Upstream targets in the README's table of what waits."""
    return {row[0] for row in readme_tables(root, vendor, "upstream target")}


def catalogue(root):
    """Rows of docs/vendors.md as dictionaries; `vendors` is a list, `keys` a set."""
    rows = []
    for header, cells in tables((root / "docs/vendors.md").read_text()):
        if header[:3] == ["upstream target", "vendor", "status"]:
            rows += [{"upstream": c[0], "vendors": c[1].split(", "), "status": c[2], "keys": set(TICKED.findall(c[3])),
                      "why": c[4]} for c in cells]
    return rows
