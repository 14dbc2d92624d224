"""The job file: text -> tree with lines -> validated entries -> expanded, named, checked Jobs.

    load.load(path, Surroundings(os.environ)) ──▶ Plan(jobs=(Job, ...), selection, limits, ...)

Reads files and looks at directories; starts nothing, writes nothing, prints nothing. The
configuration is read here as well, because it is read as a job file is.
"""
