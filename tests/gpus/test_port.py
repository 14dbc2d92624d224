from __future__ import annotations

import socket

import pytest

from gpulaunch.agent.ports import is_unused, port_range
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.gpus.socket_locks import PortPool, reserve_port


def test_two_reservations_never_name_one_port() -> None:
    among = port_range()[:3]
    first, second, third = (reserve_port(among) for _ in range(3))
    assert {first.port, second.port, third.port} == set(among)
    with pytest.raises(GpulaunchError, match="no free TCP port"):
        reserve_port(among)
    for lease in (first, second, third):
        lease.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_stranger_uses_is_passed_over(address: str) -> None:
    with socket.socket() as stranger:
        stranger.bind((address, 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        assert not is_unused(port)
        with pytest.raises(GpulaunchError):
            reserve_port(range(port, port + 1))


def test_ports_lie_outside_of_what_the_kernel_hands_out_itself() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    ports = port_range()
    if low > 21_000 or high < 64_000:
        assert ports[-1] < low or ports[0] > high


def test_a_port_that_was_given_back_goes_to_the_next_job_while_nobody_else_uses_it() -> None:
    pool = PortPool()
    first = pool.take()
    pool.give_back([first])
    second = pool.take()
    assert second.port == first.port
    with socket.socket() as left:
        left.bind(("127.0.0.1", second.port))
        pool.give_back([second])
    third = pool.take()
    assert third.port != second.port
    assert second.fileno() == -1
    pool.give_back([third])
    pool.close()
    assert third.fileno() == -1


def test_the_port_can_be_bound_by_the_job_that_was_given_it() -> None:
    with reserve_port() as lease, socket.socket() as job:
        job.bind(("127.0.0.1", lease.port))
