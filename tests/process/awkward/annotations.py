"""Without a __future__ import, whatever the server was compiled with."""


def lazy(x: print("evaluated, or not")):
    return x


print(type(lazy.__annotations__.get("x")))
print(compile("0 <> 1", "x", "eval", 0x400000, True).co_filename if False else "one world")
exec("def f(x: 1): pass\nprint(f.__annotations__)")
