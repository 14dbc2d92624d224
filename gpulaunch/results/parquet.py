"""The table as Parquet. Alone imports pyarrow, which is an extra."""

from __future__ import annotations

from gpulaunch.results.table import ResultTable


def results_parquet(table: ResultTable) -> bytes:
    """Return the table as a Parquet file: each column with its type, null for what is not known."""
    import pyarrow
    from pyarrow import parquet

    types = {
        "boolean": pyarrow.bool_(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "text": pyarrow.string(),
    }
    heads = table.columns
    columns = list(zip(*table.rows, strict=True)) or [()] * len(heads)
    arrays = [
        pyarrow.array(cells, types[head.kind]) for head, cells in zip(heads, columns, strict=True)
    ]
    schema = pyarrow.schema([(head.name, types[head.kind]) for head in heads])
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink)
    return bytes(sink.getvalue())
