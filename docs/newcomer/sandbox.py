"""An empty home, an environment with nothing in it, and if asked for a Debian with nothing in it.

Nothing of the caller's environment is kept but what says how the package index is reached.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_KEPT = ("PIP_", "SSL_CERT", "REQUESTS_CA", "http_", "https_", "HTTP_", "HTTPS_")
_SUITE = "bookworm"
# Debian's Python and what it needs to speak to a package index.
_DEBIAN = "python3,ca-certificates"


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    printed: str
    """Both of its streams, as they came."""
    waited_s: float
    processor_s: float


class Sandbox:
    """A folder of its own, in this system or in a Debian that is made for it.

    Parameters
    ----------
    folder
        Where everything is put; it must not exist, or be empty.
    in_chroot
        Whether `debootstrap` makes a Debian below `folder`; that takes root.
    bound
        Folders of this machine that the Debian is to see in the same place, such as certificates.
    """

    def __init__(self, folder: Path, in_chroot: bool, bound: list[Path]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty")
        self.folder = folder
        self.root = folder / "debian" if in_chroot else None
        self.bound = bound
        if self.root:
            options = ["--variant=minbase", f"--include={_DEBIAN}", _SUITE]
            subprocess.run(
                ["debootstrap", *options, self.root], check=True, stdout=subprocess.DEVNULL
            )
            for name in ("resolv.conf", "hosts"):
                if Path("/etc", name).exists():
                    shutil.copy(Path("/etc", name), self.root / "etc" / name)
        self.home = Path("/root") if self.root else folder / "home"
        self.environment = self.home / "env"
        self.on_host(self.home).mkdir(exist_ok=True)

    def on_host(self, path: Path) -> Path:
        """Return where a path of the sandbox is in this system."""
        return self.root / path.relative_to("/") if self.root else path

    def types(self, command: str, folder: Path) -> Finished:
        """Run a command by bash in a folder of the sandbox, which is made if it is not there.

        The environment `env` of the home, once it is there, is the active one.
        """
        self.on_host(folder).mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
        variables = {
            **kept,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": f"{self.environment}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        }
        script = f"cd {shlex.quote(str(folder))} && {command}"
        words = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        words += ["bash", "-c", script]
        if self.root:
            words = ["unshare", "--mount", "bash", "-c", self._entered(words)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Finished(done.returncode, done.stdout, time.monotonic() - started, processor_s)

    def _entered(self, words: list[str]) -> str:
        """What a namespace of its own runs: mounts that end with it, then the command."""
        root = shlex.quote(str(self.root))
        lines = ["set -e", f"mount -t proc proc {root}/proc"]
        for path in (Path("/dev"), Path("/sys"), *self.bound):
            target = f"{root}{shlex.quote(str(path))}"
            lines += [f"mkdir -p {target}", f"mount --rbind {shlex.quote(str(path))} {target}"]
        return "\n".join([*lines, f"exec chroot {root} {shlex.join(words)}"])
