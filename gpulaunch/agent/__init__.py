"""What runs beside jobs, in other processes or on other machines, and what both sides agree on.

Standard library alone, Python 3.8 to 3.13, and no import from the rest of gpulaunch: its programs
are run by path (`__main__.py`), some of them by the interpreters of people's jobs, or from a copy
on a cluster's file system.

    wire.py     bytes in JSON, messages with descriptors, the record of an end, own environment
    launch.py   a command on its way to keepers
    proc.py     processes, as /proc has them
    shared.py   files on a file system that machines share: claims
    ports.py    reserved TCP ports
    ending.py   ends as another process did
    client.py   starts a spawner and its pairs, and talks to them
    native/     the keepers, compiled: the processes between the supervisor and a job
    node/       the program in a job's place on a node of a cluster
    worker/     a worker's own side
    container/  the program in a job's place where docker or podman runs it in a container
    preload/    a spawner in the jobs' interpreter
"""
