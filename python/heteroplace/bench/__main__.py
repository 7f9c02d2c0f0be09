"""`python -m heteroplace.bench`: bench/command.py, which is loaded where Ctrl-C is answered."""

import sys

from heteroplace.interrupts import run_program

if __name__ == "__main__":
    sys.exit(run_program("heteroplace.bench.command"))
