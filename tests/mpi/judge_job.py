"""Starts one MPI job, and judges how it ends: its time, its status, its words, and that no process stays behind.

usage: judge_job.py --seconds S --status nonzero|0|N [--says REGEX]... [--never REGEX]... [--once REGEX]... -- command...
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time
import uuid

MARK = "MGFL_TEST_JOB"


def marked_processes(mark):
    """Processes of the job by a variable in their environment: mpirun gives each rank a process group of its own."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--status", required=True)
    parser.add_argument("--says", action="append", default=[])
    parser.add_argument("--never", action="append", default=[])
    parser.add_argument("--once", action="append", default=[])
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()

    mark = uuid.uuid4().hex
    faults = []
    begin = time.monotonic()
    job = subprocess.Popen(args.command, env={**os.environ, MARK: mark}, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        output, _ = job.communicate(timeout=args.seconds)
    except subprocess.TimeoutExpired:
        faults.append(f"the job still runs after {args.seconds} s")
        output = ""
    finally:
        # Ranks may take a moment to go after mpirun has gone.
        left, until = marked_processes(mark), time.monotonic() + (0 if faults else 2)
        while left and time.monotonic() < until:
            time.sleep(0.1)
            left = marked_processes(mark)
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
    if faults:
        output, _ = job.communicate()
    elif left:
        faults.append(f"{len(left)} process(es) stayed behind")
    seconds = time.monotonic() - begin

    status = job.returncode
    if args.status == "nonzero" and status == 0 or args.status.isdigit() and status != int(args.status):
        faults.append(f"status {status}, expected {args.status}")
    for regex in args.says:
        if not re.search(regex, output):
            faults.append(f"the output does not say /{regex}/")
    for regex in args.once:
        if len(re.findall(regex, output)) != 1:
            faults.append(f"the output says /{regex}/ {len(re.findall(regex, output))} times, expected once")
    for regex in args.never:
        if re.search(regex, output):
            faults.append(f"the output says /{regex}/")
    print(output)
    print(f"ended after {seconds:.1f} s with status {status}")
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
