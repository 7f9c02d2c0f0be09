"""Messages between the hosts of a plan: transports, and the check of all hosts' programs.

They are those of the core (see `src/exec/net`, `src/parts/hosts`, `src/exec/program`).
"""

from __future__ import annotations

import heteroplace._core as _core

Transport = _core.Transport
local_transports = _core.local_transports
check_programs = _core.check_programs
