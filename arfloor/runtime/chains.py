"""Chains of operations on GPUs, timed by events on the device: as CUDA graphs, or launched by the host."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any, Protocol

from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.jit import checked


class TimingError(Exception):
    """A case that cannot be timed; the message says why."""


class Op(Protocol):
    """What is timed: `arfloor.backends.base.PreparedOp`, as far as timing needs it."""

    slots: int

    def run(self, slot: int) -> None: ...


class Events:
    """Two events that a graph records anew at each replay (external), and the time between them."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self.begin = checked(runtime.cudaEventCreate())
        self.end = checked(runtime.cudaEventCreate())

    def record(self, event: Any, stream: int, *, captured: bool) -> None:
        from cuda.bindings import runtime

        flags = runtime.cudaEventRecordExternal if captured else runtime.cudaEventRecordDefault
        checked(runtime.cudaEventRecordWithFlags(event, stream, flags))

    def elapsed_us(self) -> float:
        """Wait for the end, then the time between both, in us."""
        from cuda.bindings import runtime

        checked(runtime.cudaEventSynchronize(self.end))
        return float(checked(runtime.cudaEventElapsedTime(self.begin, self.end))) * 1e3

    def close(self) -> None:
        from cuda.bindings import runtime

        runtime.cudaEventDestroy(self.begin)
        runtime.cudaEventDestroy(self.end)


def current_stream() -> int:
    """Torch's current stream as a handle, resolved now: a captured stream is another one."""
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


@lru_cache(maxsize=1)
def capture_stream() -> Any:
    """The side stream that graphs are captured on: the default stream cannot be captured."""
    import torch

    return torch.cuda.Stream()


@lru_cache(maxsize=16)
def side_stream(index: int) -> Any:
    """A stream beside the one that is captured, the same for the same index.

    Torch hands out 32 streams in turn, so a fresh one may be the captured one, or one of its neighbours:
    what should run side by side would then run in a row, and kernels that wait for each other would hang.
    """
    import torch

    taken = {capture_stream().cuda_stream, *(side_stream(i).cuda_stream for i in range(index))}
    while (stream := torch.cuda.Stream()).cuda_stream in taken:
        pass
    return stream


def captured_nodes(stream: int) -> int:
    """Number of nodes that the capture under way on `stream` holds so far."""
    from cuda.bindings import runtime

    query = getattr(runtime, "cudaStreamGetCaptureInfo_v2", None) or runtime.cudaStreamGetCaptureInfo
    info = checked(query(stream))
    return int(checked(runtime.cudaGraphGetNodes(info[2]))[1])


class Chain:
    """[barrier, event, `count` operations, event] as a CUDA graph, or launched by the host.

    `least_nodes`: how many nodes the operations must have left in the graph (default: one each).
    """

    def __init__(
        self,
        op: Op | None,
        count: int,
        barrier: DeviceBarrier,
        *,
        graph: bool,
        least_nodes: int | None = None,
    ) -> None:
        self._op, self._count, self._barrier = op, count, barrier
        self._least_nodes = 3 + (count if least_nodes is None else least_nodes)
        self._events = Events()
        self._graph: Any = None
        if graph:
            try:
                self._graph = self._capture()
            except BaseException:
                self._events.close()
                raise

    def _enqueue(self, *, captured: bool) -> None:
        stream = current_stream()
        self._barrier.enqueue(stream)
        self._events.record(self._events.begin, stream, captured=captured)
        for i in range(self._count):
            assert self._op is not None
            self._op.run(i % self._op.slots)
        self._events.record(self._events.end, stream, captured=captured)

    def _capture(self) -> Any:
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # not torch.cuda.graph(), which collects Python's garbage at every capture
        with torch.cuda.stream(capture_stream()):
            # thread-local: NCCL's and torch's watchdog threads may call CUDA meanwhile
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._enqueue(captured=True)
                nodes = captured_nodes(current_stream())
            except BaseException:
                with contextlib.suppress(Exception):  # the first error says more than the broken capture
                    graph.capture_end()
                raise
            graph.capture_end()
        if nodes < self._least_nodes:  # barrier, two events, and at least a node an operation
            raise TimingError(
                f"the captured graph holds {nodes} nodes for {self._count} operations: "
                "the operation does not run on torch's current stream, so it was not captured"
            )
        return graph

    def start(self) -> None:
        """Enqueue on torch's current stream, and return."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._enqueue(captured=False)

    def replay_us(self) -> float:
        """Run once on every rank; the time between the events on this rank, in us."""
        self.start()
        return self._events.elapsed_us()

    def close(self) -> None:
        self._graph = None
        self._events.close()
