"""Old place of :mod:`embedcache.projection`."""

from embedcache.projection import (
    OUTPUT,
    PROJECTION,
    apply_projection,
    base_of,
    extend,
    is_derived,
    projection_bytes,
    projection_contract,
    projection_digest,
    read_projection,
    write_derived,
)

__all__ = [
    "OUTPUT",
    "PROJECTION",
    "apply_projection",
    "base_of",
    "extend",
    "is_derived",
    "projection_bytes",
    "projection_contract",
    "projection_digest",
    "read_projection",
    "write_derived",
]
