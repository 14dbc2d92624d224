"""The kernel's control groups (cgroups): what memory this process may use, and jobs' own limits.

Sources: cgroups(7); the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""
