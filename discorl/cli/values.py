"""Values as people write them: 200_000, 1e6, and JSON for groups of them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, get_origin

import tyro.constructors as constructors

from discorl.errors import DiscorlError

VALUES = constructors.ConstructorRegistry()
"""For every call of tyro: whole numbers may be written like any other, and mappings in JSON."""


def whole_number(text: str) -> int:
    """The number that ``text`` is, if it is whole: 1000, 1_000, 1e3, 1.5e6."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            if (value := float(text)).is_integer():
                return int(value)
        raise ValueError(f"'{text}' is not a whole number") from None


@VALUES.primitive_rule
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


@VALUES.primitive_rule
def _named_values(
    type_info: constructors.PrimitiveTypeInfo,
) -> constructors.PrimitiveConstructorSpec[dict[str, Any]] | None:
    """A group of named values of any kind is one argument, in JSON."""
    if get_origin(type_info.type) is not dict:
        return None

    def read(args: list[str]) -> dict[str, Any]:
        try:
            found = json.loads(args[0])
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DiscorlError(
                f"{args[0]!r:.80} should be named values in JSON, in quotes for the shell: "
                """'{"continuous": true}'"""
            )
        return found

    return constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=read,
        is_instance=lambda x: isinstance(x, dict),
        str_from_instance=lambda x: [json.dumps(x)],
    )
