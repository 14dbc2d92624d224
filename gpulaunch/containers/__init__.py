"""Containers: which engine runs an image, how its command line is spelled, how images are pulled.

    Container ─▶ engine that fits and is here ─▶ image, pulled once ─▶ the job's command line inside

What a command line says is pure (`engines`). Pulling runs in a process of its own. The program that
stands for a container among a job's processes is `agent/container`.
"""
