"""multiprocessing with each start method, and what goes by pickle: `processes.py METHOD`."""

import concurrent.futures
import enum
import multiprocessing
import os
import pickle
import sys
import typing


class Thing:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self) is type(other) and self.value == other.value


class Color(enum.Enum):
    RED = 1


class Pair(typing.NamedTuple):
    left: int
    right: "Thing"


def double(thing):
    return Thing(thing.value * 2)


def fails(value):
    raise LookupError(value)


def tell(queue, value):
    queue.put((value, multiprocessing.parent_process() is not None, os.getcwd(), __name__))


if __name__ == "__main__":
    method = sys.argv[1]
    print(pickle.loads(pickle.dumps(Thing(3))) == Thing(3), pickle.loads(pickle.dumps(Color.RED)))
    print(pickle.dumps(double), pickle.dumps(Pair(1, Color.RED)))
    print(typing.get_type_hints(Pair))
    print(multiprocessing.process.ORIGINAL_DIR)
    context = multiprocessing.get_context(method)
    print(multiprocessing.current_process().name, multiprocessing.active_children())
    queue = context.Queue()
    process = context.Process(target=tell, args=(queue, 5))
    process.start()
    print(queue.get(timeout=60))
    process.join()
    print(process.exitcode, process.name)
    with context.Pool(2) as pool:
        print([thing.value for thing in pool.map(double, [Thing(1), Thing(2)])])
        try:
            pool.apply(fails, ("x",))
        except LookupError as error:
            print(repr(error))
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        print(executor.submit(double, Thing(4)).result().value)
    value = context.Value("i", 4)
    lock = context.Lock()
    with lock, value.get_lock():
        value.value += 1
    print(value.value)
