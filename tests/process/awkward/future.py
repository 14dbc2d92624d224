from __future__ import annotations

x: int = 3
print(__annotations__)
exec("def f(x: 1): pass\nprint(f.__annotations__)")
