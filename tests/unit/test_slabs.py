"""Slabs without a GPU: the host segments, joint failure, and that nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from threads import Shared, ThreadGroup, together

from arfloor.runtime import slabs

runtime = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-core: pip install 'arfloor[cuda]'")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A CUDA runtime that registers host memory as is, and counts what is still registered."""
    registered: dict[int, int] = {}
    ok = (0,)

    def register(address: int, size: int, flags: int) -> tuple[Any, ...]:
        registered[address] = size
        return ok

    def unregister(address: int) -> tuple[Any, ...]:
        registered.pop(address)
        return ok

    monkeypatch.setattr(slabs, "_SHM", tmp_path)
    monkeypatch.setattr(slabs, "device_numa_node", lambda: None)
    monkeypatch.setattr(runtime, "cudaHostRegister", register)
    monkeypatch.setattr(runtime, "cudaHostUnregister", unregister)
    monkeypatch.setattr(runtime, "cudaHostGetDevicePointer", lambda address, flags: (0, address))
    return {"registered": registered, "shm": tmp_path}


def test_host_regions_are_shared_zeroed_and_leave_nothing(no_gpu: dict[str, Any]) -> None:
    import ctypes

    def body(group: ThreadGroup) -> list[int]:
        with slabs.host_slab(group, 100) as slab:
            assert slab.nbytes == slabs.ALIGNMENT
            assert ctypes.string_at(slab.own, 100) == bytes(100)
            group.barrier()  # every rank has unlinked its own region by now
            assert not list(no_gpu["shm"].iterdir())
            group.barrier()
            ctypes.memset(slab.own, group.rank + 1, 1)
            group.barrier()
            seen = [ctypes.string_at(p, 1)[0] for p in slab.pointers]
            group.barrier()
            return seen

    assert together(3, body) == [[1, 2, 3]] * 3
    assert not no_gpu["registered"]
    assert not list(no_gpu["shm"].iterdir())


def test_one_ranks_failure_is_everyones_and_frees_all(
    no_gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = slabs._create_segment

    def refuse_one(name: str, size: int, node: int | None) -> None:
        if node == 1:
            raise OSError("no space")
        create(name, size, node)

    monkeypatch.setattr(slabs, "_create_segment", refuse_one)
    answers = together(3, lambda g: slabs.host_slab(g, 64, numa=g.rank))
    assert [type(a) for a in answers] == [slabs.SlabError] * 3
    assert all("rank 1" in str(a) and "no space" in str(a) for a in answers)
    assert not no_gpu["registered"]
    assert not list(no_gpu["shm"].iterdir())


def test_a_registration_that_fails_late_frees_all(
    no_gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail_third(address: int, flags: int) -> tuple[int, int]:
        calls.append(address)
        return (2, 0) if len(calls) == 3 else (0, address)

    monkeypatch.setattr(runtime, "cudaHostGetDevicePointer", fail_third)
    answers = together(2, lambda g: slabs.host_slab(g, 64))
    assert [type(a) for a in answers] == [slabs.SlabError] * 2
    assert not no_gpu["registered"]
    assert not list(no_gpu["shm"].iterdir())


def test_close_is_idempotent_and_runs_undo_steps_in_reverse_order() -> None:
    order: list[int] = []
    release = slabs._Releases()
    for i in range(3):
        release.add(lambda i=i: order.append(i))  # type: ignore[misc]
    release.add(lambda: 1 / 0)
    slab = slabs.Slab("peer", 1, 0, (0,), release)
    slab.close()
    slab.close()
    assert order == [2, 1, 0]


def test_sysfs_lists_and_nodes(tmp_path: Path) -> None:
    assert slabs.parse_cpulist("0-2,8\n") == {0, 1, 2, 8}
    assert slabs.parse_cpulist("\n") == frozenset()
    file = tmp_path / "numa_node"
    assert slabs.numa_node_of(file) is None
    file.write_text("-1\n")
    assert slabs.numa_node_of(file) is None
    file.write_text("1\n")
    assert slabs.numa_node_of(file) == 1


def test_sizes_and_paths_are_checked() -> None:
    with pytest.raises(ValueError, match="positive"):
        slabs.peer_slab(ThreadGroup(Shared(1), 0), 0)
    with pytest.raises(ValueError, match="'peer' or 'host'"):
        slabs.slab("nvlink", ThreadGroup(Shared(1), 0), 8)
