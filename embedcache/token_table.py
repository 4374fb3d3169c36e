"""Old place of :mod:`embedcache.teacher.token_table`."""

from embedcache.teacher.token_table import TABLE_FILE, TokenTable, read_stored, table_path

__all__ = ["TABLE_FILE", "TokenTable", "read_stored", "table_path"]
