"""Runs an example and judges the numbers that it prints, a line a step: which rise, which fall, and that they do not depend on the
number of ranks.

usage: judge_curve.py [--rises "NAME BY"]... [--falls "NAME BY"]... [--ranks COMMAND] [--within DIFFERENCE] -- program...

A number rises by the difference between the means of its last five and its first five lines. COMMAND (with blanks) starts the same
program on several ranks; by default each line must then be the same to the printed digits.
"""
import argparse
import re
import shlex
import statistics
import subprocess
import sys

NUMBER = re.compile(r"([a-z][a-z ]*[a-z])\s+(-?\d[\d.e+-]*)")
STEPS = 5  # at either end of the curve


def curve_of(command):
    """[{name: number}], one a step."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{shlex.join(command)} ended with status {result.returncode}:\n{result.stdout}{result.stderr}")
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    if len(lines) < 2 * STEPS:
        sys.exit(f"{shlex.join(command)} printed {len(lines)} steps, fewer than {2 * STEPS}:\n{result.stdout}")
    print("\n".join(lines))
    return [{name: float(value) for name, value in NUMBER.findall(line)} for line in lines]


def rise(curve, name):
    if any(name not in line for line in curve):
        sys.exit(f"not every line has a number \"{name}\"; they have {', '.join(curve[0])}")
    values = [line[name] for line in curve]
    return statistics.mean(values[-STEPS:]) - statistics.mean(values[:STEPS])


def differences(alone, together, within):
    """A sentence for each number that depends on the number of ranks."""
    if len(alone) != len(together):
        yield f"{len(alone)} steps on one rank, {len(together)} on several"
    for one, other in zip(alone, together):
        for name in sorted(one.keys() | other.keys()):
            a, b = one.get(name), other.get(name)
            if a is None or b is None or not abs(a - b) <= within:
                yield f"step {one['step']:.0f}: {name} is {a} on one rank and {b} on several"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rises", action="append", default=[])
    parser.add_argument("--falls", action="append", default=[])
    parser.add_argument("--ranks")
    parser.add_argument("--within", type=float, default=0)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    curve, faults = curve_of(arguments.command), []
    for sign, wishes in ((1, arguments.rises), (-1, arguments.falls)):
        for wish in wishes:
            name, _, by = wish.rpartition(" ")
            change = sign * rise(curve, name)
            print(f"{name} {'rises' if sign > 0 else 'falls'} by {change:.6g} (at least {by} is due)")
            if not change >= float(by):
                faults.append(f"{name} {'rises' if sign > 0 else 'falls'} by {change:.6g}, less than {by}")
    if arguments.ranks:
        together = curve_of([*shlex.split(arguments.ranks), *arguments.command])
        faults += differences(curve, together, arguments.within)
    sys.exit("\n".join(faults) or None)


main()
