"""Tables from anyone's Parquet, Arrow or Feather file (pyarrow, extra `data`); or one line that says why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koopsim.errors import KoopsimError, first_line
from koopsim.files.memory import require_memory
from koopsim.files.opened import require_plain


@contextmanager
def arrow_table(path: Path, a_cell: int) -> Iterator[Any]:
    """The table in a file, each number of which is to take `a_cell` bytes; whatever is wrong with it inside is said."""
    try:
        from pyarrow import feather, parquet
    except ImportError:
        raise KoopsimError(f"{path} needs pyarrow: pip install 'koopsim[data]'.") from None
    try:
        if path.suffix.lower() == ".parquet":
            described = parquet.ParquetFile(path).metadata
            require_memory(a_cell * described.num_rows * described.num_columns, f"{path} asks for")
            yield parquet.read_table(path)
        else:
            require_memory(a_cell // 8 * require_plain(path), f"{path} asks for")
            yield feather.read_table(path, memory_map=False)
    except KoopsimError:
        raise
    except Exception as error:  # what a damaged file makes of a C++ library is not one kind of error
        raise KoopsimError(f"{path} cannot be read as {path.suffix[1:].capitalize()}: {first_line(error)}.") from error
