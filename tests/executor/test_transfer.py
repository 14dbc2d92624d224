"""What travels, and how: large buffers beside the pickle, without a copy."""

from __future__ import annotations

import importlib
import pickle
import socket
import threading
from typing import Any

import pytest

from gpulaunch import GpuExecutor
from gpulaunch.executor import transfer
from gpulaunch.executor.channel import ITEM, LARGE, RESULT, ChannelMessage, WorkerChannel
from tests.executor import work


class Big:
    """Leaves its bytes out of its pickle, as an array does."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Big, (pickle.PickleBuffer(self.data),)


def channels() -> tuple[WorkerChannel, WorkerChannel]:
    one, other = socket.socketpair()
    return WorkerChannel(one), WorkerChannel(other)


def through(message: ChannelMessage) -> ChannelMessage:
    """The message at the other end."""
    one, other = channels()
    with one.link, other.link:
        sender = threading.Thread(target=one.send, args=(message,))
        sender.start()
        received = other.receive()
        sender.join()
    assert received is not None
    return received


@pytest.mark.parametrize("to_worker", [True, False])
def test_a_large_buffer_is_sent_from_where_it_lies(to_worker: bool) -> None:
    data = bytearray(3 * LARGE)
    message = transfer.message(ITEM, {"a": Big(data)}, to_worker)
    assert len(message.pickle) < 1000
    (buffer,) = message.buffers
    data[7] = 42
    assert memoryview(buffer)[7] == 42, "another name for the same memory"


def test_a_large_buffer_is_used_where_it_was_received() -> None:
    received = through(transfer.message(RESULT, Big(bytearray(3 * LARGE)), to_worker=False))
    value = transfer.value_of(received)
    memoryview(received.buffers[0])[7] = 42
    assert memoryview(value.data)[7] == 42, "another name for the same memory"
    assert not memoryview(value.data).readonly


def test_many_buffers_of_all_sizes_arrive_in_order() -> None:
    values = [bytes([n % 251]) * (4097 + 10 * n) for n in range(1100)]
    received = through(transfer.message(RESULT, [Big(value) for value in values], False))
    assert [bytes(big.data) for big in transfer.value_of(received)] == values


def test_small_buffers_stay_in_the_pickle() -> None:
    message = transfer.message(RESULT, [Big(b"abc")], to_worker=False)
    assert not message.buffers
    assert bytes(transfer.value_of(message)[0].data) == b"abc"


def test_empty_messages_arrive() -> None:
    assert through(ChannelMessage(b"T")).kind == b"T"


@pytest.mark.parametrize("cut", [0, 1, 12, 20, 30])
def test_a_message_that_is_cut_short_is_an_end_of_file(cut: int) -> None:
    one, other = channels()
    with other.link:
        with one.link:
            one.send(ChannelMessage(RESULT, b"0123456789", [bytearray(5000)]))
            whole = other.link.recv(1 << 20)
        a, b = channels()
        with b.link:
            with a.link:
                a.link.sendall(whole[:cut])
            assert b.receive() is None


def test_arrays_travel_both_ways_outside_of_the_pickle() -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(4 * LARGE, dtype=np.uint8)
    message = transfer.message(ITEM, {"a": array, "b": array[::2]}, to_worker=True)
    assert np.shares_memory(np.frombuffer(message.buffers[0], np.uint8), array)
    with GpuExecutor(simulate=1) as executor:
        back = executor.submit(work.echo, array).result(60)
        assert np.array_equal(back, array)
        back[0] = 1  # as writable as any
        part = executor.submit(work.echo, array[::3]).result(60)
        assert np.array_equal(part, array[::3])
        assert executor.submit(np.sum, array).result(60) == array.sum()


def test_tensors_travel_outside_of_the_pickle_and_keep_what_they_are() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("numpy")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = torch.zeros(40, 5000).to(dtype)
        tensor[3, 7] = 1
        for sent in (tensor, tensor.t(), tensor[:, ::3]):
            message = transfer.message(RESULT, sent, to_worker=False)
            assert len(message.pickle) < 1000
            back = transfer.value_of(through(message))
            assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
            assert torch.equal(back, sent)
            back[0, 0] = 1  # as writable as any
    tensor = torch.zeros(40, 5000)
    (buffer,) = transfer.message(RESULT, tensor, to_worker=False).buffers
    tensor[0, 0] = 1.0
    assert memoryview(buffer)[3] != 0, "another name for the same memory"


def test_other_tensors_travel_as_torch_has_it() -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.tensor(3),
        torch.zeros(0, 3),
        torch.zeros(9000, requires_grad=True),
        torch.nn.Parameter(torch.ones(9000)),
        torch.eye(100).to_sparse(),
        torch.zeros(9000, dtype=torch.complex64).conj(),
    ]
    for tensor in tensors:
        back = transfer.value_of(through(transfer.message(RESULT, tensor, to_worker=False)))
        assert type(back) is type(tensor)
        assert back.requires_grad == tensor.requires_grad
        assert torch.equal(back.to_dense(), tensor.to_dense())


def test_unchanged_data_has_the_same_digest() -> None:
    data = {"a": [1, 2, {"b": bytearray(10_000)}], "f": work.double}
    before = transfer.digest(data)
    assert before == transfer.digest(data)
    data["a"][2]["b"][9] = 1  # type: ignore[index]
    assert transfer.digest(data) != before


def test_code_has_no_digest_and_neither_has_what_cannot_be_told() -> None:
    for value in (work.double, Big, importlib, len, threading.Lock()):
        assert transfer.digest(value) is None


def test_what_is_kept_in_a_file_has_its_large_buffers_with_it() -> None:
    data = bytearray(b"x" * LARGE)
    kept = transfer.packed([Big(data), 7], to_worker=False)
    big, number = transfer.unpacked(kept)
    assert (bytes(big.data), number) == (bytes(data), 7)
