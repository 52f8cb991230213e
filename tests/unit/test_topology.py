"""Routes, islands and completion times on published rigs whose rates were measured by others."""

import itertools
from dataclasses import replace

import pytest

from arfloor.core.cases import Edge, Node, Topology
from arfloor.core.flows import Flow, complete, loads, max_min_rates
from arfloor.core.topology import Graph, TopologyError, equal_islands, islands, problems


def both(a, b, gbps, latency_us=0.3, **changes):
    fields = {"kind": "pcie", "read_gbps": gbps, "write_gbps": gbps, "latency_us": latency_us}
    fields |= changes
    return [Edge(src=a, dst=b, **fields), Edge(src=b, dst=a, **fields)]


def switched(switches, gpus_each, gbps=56.3):
    """Switches with one uplink each below one socket with memory."""
    nodes = [Node(id="socket0", kind="socket", numa=0), Node(id="memory0", kind="memory", numa=0)]
    edges = both("socket0", "memory0", 200.0)
    gpus = []
    for s in range(switches):
        nodes += [Node(id=f"switch{s}", kind="switch"), Node(id=f"port{s}", kind="root_port")]
        edges += both(f"switch{s}", f"port{s}", gbps) + both(f"port{s}", "socket0", 200.0)
        for _ in range(gpus_each):
            gpu = f"gpu{len(gpus)}"
            gpus.append(gpu)
            nodes.append(Node(id=gpu, kind="gpu"))
            edges += both(gpu, f"switch{s}", gbps)
    return Topology(schema=1, name="rig", nodes=tuple(nodes), edges=tuple(edges), gpus=tuple(gpus))


def all_to_all(topology, nbytes=1e6):
    graph = Graph(topology)
    pairs = itertools.permutations(topology.gpus, 2)
    return [Flow(name=f"{a}>{b}", nbytes=nbytes, usage=graph.write(a, b)) for a, b in pairs]


@pytest.mark.parametrize(
    ("switches", "gpus_each", "gbps"),
    [
        (2, 4, 197.0),  # measured 179 to 196, local-inference-lab/rtx6kpro hardware/wrx90-cpayne-*.md
        (4, 2, 263.0),  # measured 254.2, hardware/wrx90-cpayne-8gpu-2vs-per-chip.md
    ],
)
def test_all_to_all_of_published_rigs(switches, gpus_each, gbps):
    done = complete(all_to_all(switched(switches, gpus_each)))
    assert done.aggregate_gbps == pytest.approx(gbps, abs=0.5)
    assert "switch" in done.bottleneck
    assert "port" in done.bottleneck


def test_flows_within_a_switch_end_first_and_then_free_their_share():
    done = complete(all_to_all(switched(2, 4)))
    ends = dict(zip((f.name for f in all_to_all(switched(2, 4))), done.ends_us, strict=True))
    assert ends["gpu0>gpu1"] < ends["gpu0>gpu4"] == pytest.approx(done.makespan_us)


def test_max_min_by_hand():
    # the textbook line: one flow over both links, one over each; the narrow link decides first
    usages = [{"a": 1 / 10, "b": 1 / 4}, {"a": 1 / 10}, {"b": 1 / 4}]
    rates, frozen_by = max_min_rates(usages)
    assert rates == pytest.approx((2, 8, 2))
    assert frozen_by == ("b", "a", "b")


def test_half_duplex_memory_is_shared_by_both_directions():
    edges = both("gpu0", "memory", 40.0, shared="dram") + both("gpu1", "memory", 40.0, shared="dram")
    nodes = (*(Node(id=g, kind="gpu") for g in ("gpu0", "gpu1")), Node(id="memory", kind="memory"))
    graph = Graph(Topology(schema=1, name="t", nodes=nodes, edges=tuple(edges), gpus=("gpu0", "gpu1")))
    write = Flow(name="w", nbytes=40e3, usage=graph.write("gpu0", "memory"))
    read = Flow(name="r", nbytes=40e3, usage=graph.read("gpu1", "memory"))
    assert complete([write]).makespan_us == pytest.approx(1.0)
    assert complete([write, read]).makespan_us == pytest.approx(2.0, rel=0.1)
    assert complete([write, read]).makespan_us > 2.0  # requests of the reader take their part


def test_reads_share_the_wire_with_writes_of_the_other_end():
    topology = Topology(
        schema=1,
        name="pair",
        nodes=tuple(Node(id=g, kind="gpu") for g in ("gpu0", "gpu1")),
        edges=tuple(both("gpu0", "gpu1", 50.0)),
        gpus=("gpu0", "gpu1"),
    )
    graph = Graph(topology)
    pulled = Flow(name="r", nbytes=50e3, usage=graph.read("gpu0", "gpu1"))
    pushed = Flow(name="w", nbytes=50e3, usage=graph.write("gpu1", "gpu0"))
    away = Flow(name="o", nbytes=50e3, usage=graph.write("gpu0", "gpu1"))
    assert complete([pulled, pushed]).makespan_us == pytest.approx(2.0)
    assert complete([pulled, away]).makespan_us == pytest.approx(1 + 24 / 152)


def test_routes_do_not_pass_through_gpus():
    graph = Graph(switched(2, 2))
    names = [e.dst for e in graph.route("gpu0", "gpu2").edges]
    assert names == ["switch0", "port0", "socket0", "port1", "switch1", "gpu2"]
    assert graph.route("gpu0", "gpu1").latency_us == pytest.approx(0.6)
    assert graph.memory_of("gpu0") == "memory0"


def test_islands_by_switch_and_by_socket():
    rig = switched(2, 2)
    assert islands(rig) == (("gpu0", "gpu1"), ("gpu2", "gpu3"))
    assert islands(rig, "socket") == (rig.gpus,)
    assert equal_islands(rig, rig.gpus) == (("gpu0", "gpu1"), ("gpu2", "gpu3"))
    assert equal_islands(rig, ("gpu0", "gpu1", "gpu2")) == ()
    two_sockets = replace(
        rig,
        nodes=(*rig.nodes, Node(id="socket1", kind="socket", numa=1)),
        edges=tuple(
            replace(e, src="socket1") if e.src == "socket0" and e.dst == "port1"
            else replace(e, dst="socket1") if e.src == "port1" and e.dst == "socket0"
            else e
            for e in rig.edges
        )
        + tuple(both("socket0", "socket1", 100.0)),
    )  # fmt: skip
    assert islands(two_sockets, "socket") == (("gpu0", "gpu1"), ("gpu2", "gpu3"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: replace(t, gpus=("gpu0", "nowhere")), "nowhere"),
        (lambda t: replace(t, gpus=("gpu0",)), "at least 2"),
        (lambda t: replace(t, nodes=(*t.nodes, t.nodes[0])), "twice"),
        (lambda t: replace(t, edges=(*t.edges, t.edges[0])), "twice"),
        (lambda t: replace(t, edges=(replace(t.edges[0], write_gbps=0.0), *t.edges[1:])), "positive"),
        (lambda t: replace(t, edges=(replace(t.edges[0], dst="moon"), *t.edges[1:])), "moon"),
    ],
)
def test_inconsistent_graphs_are_refused(change, words):
    broken = change(switched(2, 2))
    assert any(words in p for p in problems(broken))
    with pytest.raises(TopologyError, match=words):
        Graph(broken)


def test_an_unreachable_gpu_is_named():
    rig = switched(2, 2)
    cut = replace(rig, edges=tuple(e for e in rig.edges if "gpu3" not in (e.src, e.dst)))
    with pytest.raises(TopologyError, match="gpu3"):
        Graph(cut).route("gpu0", "gpu3")


def test_no_schedule_beats_the_loaded_resource():
    flows = all_to_all(switched(4, 2))
    assert complete(flows).makespan_us >= max(loads(flows).values()) * (1 - 1e-9)
    assert complete([]).makespan_us == 0


def test_each_flow_is_held_by_a_resource_of_its_own():
    rates, held_by = max_min_rates([{"left": 0.1}, {"right": 0.1}, {"idle": 0.01, "right": 0.1}])
    assert rates == pytest.approx((10.0, 5.0, 5.0))
    assert held_by == ("left", "right", "right")
    rates, held_by = max_min_rates([{"left": 0.1}, {"right": 0.1}])
    assert held_by == ("left", "right")
