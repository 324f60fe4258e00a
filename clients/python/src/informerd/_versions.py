"""Order of versions."""

from __future__ import annotations


def parse(version: str) -> tuple[str, tuple[int, str]]:
    """Returns the lineage, which is empty for a decimal version, and what compares as the number, of any length.

    Raises ValueError for another form.
    """
    lineage, dot, number = version.rpartition(".")
    if not (number.isascii() and number.isdigit()) or (dot and not lineage):
        raise ValueError(f"invalid version {version[:80]!r}: neither a decimal number nor <lineage>.<number>")
    # Without leading zeros, the longer number is the larger one. int() has a limit.
    number = number.lstrip("0")
    return lineage, (len(number), number)


def reaches(version: str, wanted: str) -> bool:
    """Returns True if `version` is `wanted` or later; False if it is empty.

    Raises ValueError for versions that have no order: of different lineages.
    """
    if not version:
        return False
    (lineage, number), (wanted_lineage, wanted_number) = parse(version), parse(wanted)
    if lineage != wanted_lineage:
        raise ValueError(f"version {wanted!r} is of another lineage than {version!r}: they have no order")
    return number >= wanted_number


def is_before(version: str, other: str) -> bool:
    """Returns True if the version is certainly earlier; False for versions without an order."""
    if version == other:
        return False
    try:
        return not reaches(version, other)
    except ValueError:
        return False
