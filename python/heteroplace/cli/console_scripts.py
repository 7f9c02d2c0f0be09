"""The commands as programs: the modules of both are loaded where Ctrl-C is answered."""

from heteroplace.entry import start


def heteroplace() -> int:
    """Run the command `heteroplace` on the arguments of this process."""
    return start("heteroplace.cli.main", "main")


def tvmc() -> int:
    """Run the command `tvmc` on the arguments of this process."""
    return start("heteroplace.cli.tvmc_plugin.tvmc", "main")
