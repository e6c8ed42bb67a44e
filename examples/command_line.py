"""What the scripts here have in common: errors of the user's are one line on stderr and status 1."""

import argparse
import sys
from pathlib import Path


class InputError(Exception):
    """The user's input is wrong; the message says what, where and what to do."""


class ArgumentParser(argparse.ArgumentParser):
    """argparse's, with the description as it stands and InputError for wrong arguments."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message):
        raise InputError(f"{message}; see {self.prog} --help")


def one_line(error):
    """The message of an exception on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def run_main(main):
    """Runs main() as a program."""
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {one_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)
