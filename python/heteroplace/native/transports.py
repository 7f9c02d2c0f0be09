"""Messages between the hosts of a plan: the interface of transports, the check of all programs.

They are those of the core (see `src/exec/net`, `src/exec/program`).
"""

from __future__ import annotations

import heteroplace._core as _core

Transport = _core.Transport
check_programs = _core.check_programs
