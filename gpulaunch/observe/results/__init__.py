"""What jobs came to, as one table: a row a job, a column a value. Starts nothing, prints nothing.

    ledger, samples ─┬▶ gathering ─▶ JobValues ─▶ table ─▶ ResultTable ─┬─▶ CSV, JSON, Parquet
    out/JOB.N/FILE ──┘                                                  └─▶ terminal, report

Every column has one type, so that the three formats hold the same values. A column belongs to
gpulaunch, to what `foreach` and `matrix` varied, or to a file that jobs left.
"""
