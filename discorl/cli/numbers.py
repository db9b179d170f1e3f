"""Numbers as people write them: 200_000, 1e6."""

from __future__ import annotations

from contextlib import suppress

import tyro.constructors as constructors

NUMBERS = constructors.ConstructorRegistry()
"""For every call of tyro: whole numbers may be written like any other."""


def whole_number(text: str) -> int:
    """The number that ``text`` is, if it is whole: 1000, 1_000, 1e3, 1.5e6."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            if (value := float(text)).is_integer():
                return int(value)
        raise ValueError(f"'{text}' is not a whole number") from None


@NUMBERS.primitive_rule
def _whole_numbers(
    type_info: constructors.PrimitiveTypeInfo,
) -> constructors.PrimitiveConstructorSpec[int] | None:
    if type_info.type is not int:
        return None
    return constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: whole_number(args[0]),
        is_instance=lambda instance: isinstance(instance, int) and not isinstance(instance, bool),
        str_from_instance=lambda instance: [str(instance)],
    )
