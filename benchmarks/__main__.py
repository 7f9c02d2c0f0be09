"""`python -m benchmarks`: benchmarks/command.py, which is loaded where Ctrl-C is answered."""

import sys

from heteroplace.entry import start

if __name__ == "__main__":
    sys.exit(start("heteroplace.interrupts", "run_program", "benchmarks.command"))
