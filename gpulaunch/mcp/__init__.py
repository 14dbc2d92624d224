"""`gpulaunch mcp`: the same verbs for programs that speak the Model Context Protocol.

    client ── JSON-RPC on standard input and output ── server ── tools ── gpulaunch.app
                                                                    └──── launching ──▶ a run, alone

`arguments` says what a tool takes, `contracts.tools` what it answers, `tools` and its neighbours
what it does, `server` alone knows the protocol and its SDK. Nothing here deletes; nothing but the
protocol is printed to standard output; a run that was started here outlives the server.
"""
