"""Arithmetic on vectors of floats -> a function in LLVM's text, to be put into its callers.

    f = LlvmFunction("twice", 16)
    f.returning(f.sum(f.argument, f.argument))
        define <16 x float> @twice(<16 x float> %x) { %v0 = fadd <16 x float> %x, %x ... }

Which sums of products are rounded once, where the processor can, is said by `fma`.
"""

from __future__ import annotations

import struct

Name = str
"""A value: of an instruction, or a constant."""


class LlvmFunction:
    """A function of one vector of floats with one vector of floats as its result.

    Parameters
    ----------
    name
        Unique for its lanes and its content.
    lanes
        Elements of the vectors; 1: they are no vectors.
    """

    def __init__(self, name: str, lanes: int) -> None:
        self._name, self._lanes = name, lanes
        self._floats, self._integers = self._vector("float"), self._vector("i32")
        self._suffix = "f32" if lanes == 1 else f"v{lanes}f32"
        self._lines: list[str] = []
        self.argument: Name = "%x"

    def returning(self, value: Name) -> str:
        """Return the text of the function with this result, and what it needs declared."""
        kind, suffix = self._floats, self._suffix
        return "\n".join(
            [
                f"declare {kind} @llvm.fmuladd.{suffix}({kind}, {kind}, {kind})",
                f"define {kind} @{self._name}({kind} {self.argument}) {{",
                *self._lines,
                f"  ret {kind} {value}",
                "}",
            ]
        )

    def number(self, value: float) -> Name:
        """A constant, rounded to 32 bits; LLVM writes it as 64."""
        (rounded,) = struct.unpack("f", struct.pack("f", value))
        return self._splat("float", f"0x{struct.pack('>d', rounded).hex().upper()}")

    def sum(self, left: Name, right: Name) -> Name:
        """left + right."""
        return self._add(f"fadd {self._floats} {left}, {right}")

    def product(self, left: Name, right: Name) -> Name:
        """left * right."""
        return self._add(f"fmul {self._floats} {left}, {right}")

    def quotient(self, left: Name, right: Name) -> Name:
        """left / right."""
        return self._add(f"fdiv {self._floats} {left}, {right}")

    def negative(self, value: Name) -> Name:
        """-value."""
        return self._add(f"fneg {self._floats} {value}")

    def fma(self, left: Name, right: Name, addend: Name) -> Name:
        """left * right + addend."""
        return self._call("fmuladd", left, right, addend)

    def difference(self, left: Name, right: Name) -> Name:
        """left - right."""
        return self._add(f"fsub {self._floats} {left}, {right}")

    def compare(self, predicate: str, left: Name, right: Name) -> Name:
        """By an ordered predicate, which never holds of NaN: "olt", "ogt"."""
        return self._add(f"fcmp {predicate} {self._floats} {left}, {right}")

    def select(self, condition: Name, left: Name, right: Name) -> Name:
        """`left` where a comparison holds, else `right`."""
        kind = self._floats
        return self._add(f"select {self._vector('i1')} {condition}, {kind} {left}, {kind} {right}")

    def bits(self, value: Name) -> Name:
        """The bits of floats, as integers."""
        return self._add(f"bitcast {self._floats} {value} to {self._integers}")

    def of_bits(self, value: Name) -> Name:
        """The floats that have these bits."""
        return self._add(f"bitcast {self._integers} {value} to {self._floats}")

    def integers(self, instruction: str, left: Name, right: Name | int) -> Name:
        """An instruction of two vectors of integers, or one and a constant."""
        second = self._splat("i32", str(right)) if isinstance(right, int) else right
        return self._add(f"{instruction} {self._integers} {left}, {second}")

    def _call(self, name: str, *arguments: Name) -> Name:
        given = ", ".join(f"{self._floats} {each}" for each in arguments)
        return self._add(f"call {self._floats} @llvm.{name}.{self._suffix}({given})")

    def _add(self, instruction: str) -> Name:
        name = f"%v{len(self._lines)}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def _vector(self, kind: str) -> str:
        return kind if self._lanes == 1 else f"<{self._lanes} x {kind}>"

    def _splat(self, kind: str, text: str) -> Name:
        if self._lanes == 1:
            return text
        return f"<{', '.join([f'{kind} {text}'] * self._lanes)}>"
