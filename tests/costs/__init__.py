"""What a job costs, counted where no other load of the machine can change it; held to a record.

    python -m tests.costs        measure, and write record.json: the way to accept a new cost

Jobs run one after the other on a pretend card, by the real command with its real keepers. Counted
are the supervisor's bytecode instructions (gated.py), and the system calls of supervisor and
keepers (tracer.c), per further job: start-up and end are not in it. Neither sees time spent inside
of one call of a C library: those costs the benchmarks' section `cpu` shows, in milliseconds.

A Python's minor version decides what its bytecode is, so each has a record of its own.
"""
