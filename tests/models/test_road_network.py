"""Networks of roads: files that are read, flows and tolls against CVXPY, gradients against differences."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from hierfl.errors import SettingError
from hierfl.models import RoadNetwork

NET = """<NUMBER OF ZONES> 2
<NUMBER OF NODES> 3
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 4
<END OF METADATA>

~\tinit\tterm\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\ttype\t;
\t1\t3\t2000\t5\t6\t0.15\t4\t0\t0\t1\t;
\t3\t2\t4000\t5\t1.5\t0.15\t4\t0\t0\t1\t;
\t2\t3\t4000\t5\t1.5\t0.15\t4\t0\t0\t1\t;
\t3\t1\t1000\t5\t6\t0.3\t2\t0\t0\t1\t;
"""
TRIPS = """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 1600.0
<END OF METADATA>

Origin \t1
    1 :      0.0;     2 :    1100.0;
Origin \t2
    1 :    500.0;
"""
NODES = "Node\tX\tY\t;\n2\t3.0\t4.0\t;\n1\t0.5\t-1\t;\n3\t1\t1\t;\n"


def braess(trips: float) -> RoadNetwork:
    """Two ways from node 0 to node 1, over 2 and over 3, and a short cut from 2 to 3."""
    links = np.array([[0, 2], [2, 1], [0, 3], [3, 1], [2, 3]])
    room, empty = np.array([3.0, 20, 20, 3, 20]), np.array([1.0, 6, 6, 1, 0.2])
    wanted = np.array([[0.0, trips], [0.0, 0.0]])
    return RoadNetwork(links, room, empty, np.full(5, 0.8), np.full(5, 4.0), wanted)


def by_cvxpy(network: RoadNetwork, tolls: np.ndarray, drivers: bool) -> np.ndarray:
    """The flows on links: of drivers who each are quickest, or best for all together."""
    zones, count = len(network.trips), len(network.links)
    y = cp.Variable((zones, count), nonneg=True)
    v = cp.sum(y, axis=0)
    slower = network.free_flow_time * network.steepness / network.capacity**4
    each = slower / 5.0 if drivers else slower
    into = [np.flatnonzero(network.links[:, 1] == n) for n in range(network.links.max() + 1)]
    out = [np.flatnonzero(network.links[:, 0] == n) for n in range(network.links.max() + 1)]
    rows = []
    for zone in range(zones):
        for node in range(len(into)):
            if node == zone:
                continue
            ends = network.trips[zone, node] if node < zones else 0.0
            rows.append(cp.sum(y[zone, into[node]]) - cp.sum(y[zone, out[node]]) == ends)
        rows.append(cp.sum(y[zone, into[zone]]) == 0)
    cost = (network.free_flow_time + tolls) @ v + cp.sum(cp.multiply(each, cp.power(v, 5)))
    cp.Problem(cp.Minimize(cost), rows).solve(solver="CLARABEL")
    return np.asarray(v.value)


def total(network: RoadNetwork, flows: np.ndarray) -> float:
    ratio = flows / network.capacity
    return float(flows @ (network.free_flow_time * (1 + network.steepness * ratio**4)))


NETWORKS = [braess(6.0), RoadNetwork.town(3, 3, zones=3, seed=1), RoadNetwork.town(seed=0)]


@pytest.mark.parametrize("network", NETWORKS[:2], ids=["Braess", "small town"])
def test_drivers_take_the_routes_that_cvxpy_finds(network: RoadNetwork) -> None:
    tolls = np.random.default_rng(0).uniform(0.0, 3.0, len(network.links))
    problem = network.tolling(50.0)
    flows = network.link_flows(problem.implicit.response(tolls))
    expected = by_cvxpy(network, tolls, drivers=True)
    np.testing.assert_allclose(flows, expected, atol=2e-3 * expected.max())  # the cost is flat, and CVXPY's is right to 1e-8
    assert problem.implicit(tolls) == pytest.approx(total(network, flows), rel=1e-12)


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_nobody_could_be_quicker_by_another_route(network: RoadNetwork) -> None:
    """Wardrop's own condition: all drivers together take as long as each of them on the shortest route there is."""
    tolls = np.random.default_rng(0).uniform(0.0, 3.0, len(network.links))
    y = np.asarray(network.tolling(50.0).implicit.response(tolls)).reshape(len(network.links), -1)
    start, end = network.links.T
    for zone in range(len(network.trips)):
        left = np.bincount(end, y[:, zone], network.links.max() + 1) - np.bincount(start, y[:, zone], network.links.max() + 1)
        wanted = np.zeros_like(left)
        wanted[: len(network.trips)] = network.trips[zone]
        wanted[zone] = -network.trips[zone].sum()
        np.testing.assert_allclose(left, wanted, atol=1e-9)
    flows = y.sum(axis=1)
    ratio = flows / network.capacity
    each = network.free_flow_time * (1 + network.steepness * ratio**4) + tolls
    shortest = dijkstra(sp.csr_array((each, (start, end)), (len(left),) * 2))
    zones = len(network.trips)
    assert each @ flows == pytest.approx(float((network.trips * np.nan_to_num(shortest[:zones, :zones], posinf=0.0)).sum()), rel=1e-9)


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_the_gradient_is_that_of_differences(network: RoadNetwork) -> None:
    rng = np.random.default_rng(1)
    problem, tolls = network.tolling(50.0), rng.uniform(0.2, 1.0, len(network.links))
    gradient, way = problem.implicit.gradient(tolls), rng.normal(size=len(network.links))
    step = 1e-5
    difference = (problem.implicit(tolls + step * way) - problem.implicit(tolls - step * way)) / (2 * step)
    assert gradient @ way == pytest.approx(difference, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_tolls_bring_what_is_best_for_all(network: RoadNetwork) -> None:
    """Without a setting; from no tolls, which in the towns keep every other route empty."""
    best = network.tolling(50.0).solve(progress=False)
    together = total(network, by_cvxpy(network, np.zeros(len(network.links)), drivers=False))
    assert best.value == pytest.approx(together, rel=1e-5)
    assert best.x.min() >= 0.0
    assert best.x.max() <= 50.0


def test_some_roads_alone_have_tolls() -> None:
    """A toll on the short cut of Braess, whose drivers then do what a closed one makes them do: half of them each way."""
    network = braess(6.0)
    problem = network.tolling(50.0, tolled=np.array([4]))
    assert problem.implicit([50.0]) == pytest.approx(total(network, np.array([3.0, 3, 3, 3, 0])), rel=1e-9)
    assert problem.implicit([0.0]) > problem.implicit([50.0])


def test_files_are_read(tmp_path: Path) -> None:
    for kind, text in (("net", NET), ("trips", TRIPS), ("node", NODES)):
        (tmp_path / f"Toy_{kind}.tntp").write_text(text)
    network = RoadNetwork.read(tmp_path, "Toy")
    np.testing.assert_array_equal(network.links, [[0, 2], [2, 1], [1, 2], [2, 0]])
    np.testing.assert_allclose(network.capacity, [2.0, 4.0, 4.0, 1.0])
    np.testing.assert_allclose(network.free_flow_time, [6.0, 1.5, 1.5, 6.0])
    np.testing.assert_allclose([network.steepness[3], network.power[3]], [0.3, 2.0])
    np.testing.assert_allclose(network.trips, [[0.0, 1.1], [0.5, 0.0]])
    assert network.through == 2
    assert network.positions is not None
    np.testing.assert_allclose(network.positions, [[0.5, -1.0], [3.0, 4.0], [1.0, 1.0]])
    problem = network.tolling(10.0)
    np.testing.assert_allclose(network.link_flows(problem.implicit.response(np.zeros(4))), [1.1, 1.1, 0.5, 0.5], atol=1e-9)
    expected = 1.1 * network.times(np.full(4, 1.1))[:2].sum() + 0.5 * network.times(np.full(4, 0.5))[2:].sum()
    assert problem.implicit(np.zeros(4)) == pytest.approx(expected, rel=1e-9)


def test_zones_before_the_first_through_node_are_not_passed() -> None:
    """From 0 to 1 the way over zone 2 is shorter, and no way; the other one is over node 3."""
    links = np.array([[0, 2], [2, 1], [0, 3], [3, 1]])
    trips = np.zeros((3, 3))
    trips[0, 1] = trips[2, 1] = 1.0
    ones = np.ones(4)
    network = RoadNetwork(links, 10 * ones, np.array([1.0, 1, 2, 2]), 0.1 * ones, 4 * ones, trips, through=3)
    flows = network.link_flows(network.tolling(1.0).implicit.response(np.zeros(4)))
    np.testing.assert_allclose(flows, [0.0, 1.0, 1.0, 1.0], atol=1e-9)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no file .*Nowhere_net.tntp"):
        RoadNetwork.read(tmp_path, "Nowhere")
    (tmp_path / "Odd_net.tntp").write_text("nothing of that kind\n")
    with pytest.raises(SettingError, match="is it a TNTP network"):
        RoadNetwork.read(tmp_path, "Odd")
