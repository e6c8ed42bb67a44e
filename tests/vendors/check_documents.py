"""Manifests, the vendors' READMEs and docs/vendors.md name the same overrides, and the last two the same waiting ones."""
import pathlib
import sys

import vendor_texts as texts


def differences(what, one, other):
    return [f"{what}: only in the first: {sorted(one - other)}; only in the second: {sorted(other - one)}"] if one != other else []


def main():
    root = pathlib.Path(sys.argv[1])
    catalogue = texts.catalogue(root)
    complaints = []
    for row in catalogue:
        if row["status"] not in ("here", "waits", "covered", "refused"):
            complaints.append(f"docs/vendors.md: {row['upstream']} has the status '{row['status']}'")
        if bool(row["keys"]) != (row["status"] == "here"):
            complaints.append(f"docs/vendors.md: {row['upstream']} is '{row['status']}' with targets {sorted(row['keys'])}")
        if not row["why"]:
            complaints.append(f"docs/vendors.md: {row['upstream']} gives no reason")
    overrides = 0
    for vendor in texts.vendors(root):
        listed = texts.listed(root, vendor)
        overrides += len(listed)
        mine = [row for row in catalogue if vendor in row["vendors"]]
        documented = {key for row in mine if row["status"] == "here" for key in row["keys"]}
        complaints += differences(f"{vendor}: manifest.hpp, README.md", listed, texts.readme_keys(root, vendor))
        complaints += differences(f"{vendor}: manifest.hpp, docs/vendors.md", listed, documented)
        if vendor != "default":  # its README has no list of its own
            waiting = {row["upstream"] for row in mine if row["status"] == "waits"}
            complaints += differences(f"{vendor}: README.md, docs/vendors.md: what waits", texts.readme_waits(root, vendor), waiting)
    unknown = {v for row in catalogue for v in row["vendors"]} - set(texts.vendors(root)) - {"none"}
    if unknown:
        complaints.append(f"docs/vendors.md names vendors that have no folder: {sorted(unknown)}")
    print(f"{len(catalogue)} rows, {len(texts.vendors(root))} vendors, {overrides} overrides, {len(complaints)} complaints")
    if complaints or not overrides:
        sys.exit("\n".join(complaints) or "no override found")


main()
