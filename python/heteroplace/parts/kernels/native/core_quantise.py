"""Weights that a few bits hold exactly: the search for them, in C++."""

from __future__ import annotations

import heteroplace._core as _core

quantise = _core.quantise
quantise_with_minimums = _core.quantise_with_minimums
