"""`gpulaunch mcp`: the same verbs for programs that speak the Model Context Protocol.

    client ── JSON-RPC on standard input and output ── server ── tools ── gpulaunch.run
                                                                    └──── changing ──▶ a run, alone

`arguments` says what a tool takes, `base.documents` what it answers, `looking` and `changing` what
it does; `server` alone knows the protocol and its SDK. Nothing here deletes; nothing but the
protocol is printed to standard output; a run that was started here outlives the server.
"""
