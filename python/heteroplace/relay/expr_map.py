"""A mapping by expression and a set of them, without a call into TVM for each look.

TVM asks its library for the hash of an expression each time that a `dict` has one for a key, which
takes longer than most of what walks do with it. Two Python objects of one expression have one
address, and that is known here without a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSet
from typing import TypeVar

from tvm import relay

T = TypeVar("T")


class ExprMap(MutableMapping[relay.Expr, T]):
    """Expressions, by identity, to values, in the order in which they came.

    It holds its expressions, so that no other one gets the address of one of them.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, tuple[relay.Expr, T]] = {}

    def __getitem__(self, key: relay.Expr) -> T:
        item = self._items.get(key.handle.value)
        if item is None:
            raise KeyError(key)
        return item[1]

    def __setitem__(self, key: relay.Expr, value: T) -> None:
        self._items[key.handle.value] = key, value

    def __delitem__(self, key: relay.Expr) -> None:
        if self._items.pop(key.handle.value, None) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, relay.Expr) and key.handle.value in self._items

    def __iter__(self) -> Iterator[relay.Expr]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


class ExprSet(MutableSet[relay.Expr]):
    """Expressions, by identity, in the order in which they came; it holds them too."""

    __slots__ = ("_items",)

    def __init__(self, expressions: Iterable[relay.Expr] = ()) -> None:
        self._items: dict[int, relay.Expr] = {}
        for each in expressions:
            self.add(each)

    def add(self, value: relay.Expr) -> None:
        """Take an expression in."""
        self._items[value.handle.value] = value

    def discard(self, value: relay.Expr) -> None:
        """Take it out, if it is in."""
        self._items.pop(value.handle.value, None)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, relay.Expr) and value.handle.value in self._items

    def __iter__(self) -> Iterator[relay.Expr]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)
