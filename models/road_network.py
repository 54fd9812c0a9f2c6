"""Tolls on the roads of a town: drivers take the routes that are shortest to them, in time and tolls, and crowd each other.

The delay on a link is that of the Bureau of Public Roads, time = free (1 + steepness (flow / capacity)^power), and drivers are in Wardrop's
equilibrium: it minimises a convex function of flows by origin (Beckmann, McGuire and Winsten, 1956). Upstairs are tolls on all links,
and the time that all drivers spend. Networks are read from files in the format of the Transportation Networks for Research Core Team
(TNTP), or made up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import cvxpy as cp
import numpy as np
from jaxtyping import Float, Int

import hierfl as hf
from hierfl.errors import SettingError


@dataclass(frozen=True, eq=False)
class RoadNetwork:
    """Links, their delays, and trips.

    Parameters
    ----------
    links
        (links, 2), the nodes that each link leads from and to, counted from 0; zones are the first nodes.
    capacity, free_flow_time, steepness, power
        (links,), of each link's delay.
    trips
        (zones, zones), from each zone to each; those within a zone do not count.
    through
        The first node that trips may pass: before it are zones at which they only begin and end.
    positions
        (nodes, 2), for maps; None where they are not known.

    Examples
    --------
    >>> town = hf.models.RoadNetwork.town(rows=3, columns=3, zones=4, seed=0)
    >>> problem = town.tolling(highest=10.0)
    """

    links: Int[np.ndarray, "links 2"]
    capacity: Float[np.ndarray, " links"]
    free_flow_time: Float[np.ndarray, " links"]
    steepness: Float[np.ndarray, " links"]
    power: Float[np.ndarray, " links"]
    trips: Float[np.ndarray, "zones zones"]
    through: int = 0
    positions: Float[np.ndarray, "nodes 2"] | None = None

    @classmethod
    def read(cls, folder: str | Path, name: str, unit: float = 1000.0) -> RoadNetwork:
        """From ``name_net.tntp``, ``name_trips.tntp`` and, if it is there, ``name_node.tntp``; flows are told in so many vehicles.

        Raises
        ------
        SettingError
            If a file is missing or is none of that format; says which.
        """
        place = Path(folder)
        told, lines = _parts(place / f"{name}_net.tntp")
        rows = np.array([line.split()[:7] for line in lines if line[0].isdigit()], float)
        if not rows.size or "NUMBER OF ZONES" not in told:
            raise SettingError(f"{place / f'{name}_net.tntp'} has no links, or no number of zones: is it a TNTP network?")
        zones = int(told["NUMBER OF ZONES"])
        trips, origin = np.zeros((zones, zones)), 0
        for line in _parts(place / f"{name}_trips.tntp")[1]:
            if found := re.match(r"Origin\s+(\d+)", line):
                origin = int(found[1]) - 1
            for zone, count in re.findall(r"(\d+)\s*:\s*([\d.eE+-]+)", line):
                trips[origin, int(zone) - 1] = float(count) / unit
        nodes, positions = place / f"{name}_node.tntp", None
        if nodes.exists():
            numbered = [line.split() for line in _parts(nodes)[1] if line[0].isdigit()]
            positions = np.array([row[1:3] for row in numbered], float)[np.argsort([int(row[0]) for row in numbered])]
        through = int(told.get("FIRST THRU NODE", 1)) - 1
        links = rows[:, :2].astype(int) - 1
        return cls(links, rows[:, 2] / unit, rows[:, 4], rows[:, 5], rows[:, 6], trips, through, positions)

    @classmethod
    def town(cls, rows: int = 4, columns: int = 4, zones: int = 5, seed: int = 0) -> RoadNetwork:
        """A made-up town: streets both ways along a grid, of different lengths and widths, and trips between all of some zones."""
        rng = np.random.default_rng(seed)
        at = np.array([(c, r) for r in range(rows) for c in range(columns)], float)[rng.permutation(rows * columns)]
        apart = np.abs(at[:, None] - at).sum(axis=2)
        one, other = np.nonzero(np.triu(apart == 1))
        capacity, time = rng.uniform(4.0, 10.0, len(one)), rng.uniform(2.0, 6.0, len(one))
        both = np.tile(np.arange(len(one)), 2)
        trips = rng.uniform(1.0, 5.0, (zones, zones)) * (1.0 - np.eye(zones))
        links = np.vstack([np.stack([one, other], axis=1), np.stack([other, one], axis=1)])
        alike = np.ones(len(links))
        positions = at + rng.uniform(-0.2, 0.2, at.shape)
        return cls(links, capacity[both], time[both], 0.15 * alike, 4.0 * alike, trips, 0, positions)

    def link_flows(self, y: Float[np.ndarray, " flows"]) -> Float[np.ndarray, " links"]:
        """The flow on each link, of a response."""
        return np.asarray(y).reshape(len(self.links), -1).sum(axis=1)

    def times(self, flows: Float[np.ndarray, " links"]) -> Float[np.ndarray, " links"]:
        """The time that each link takes."""
        return self.free_flow_time * (1.0 + self.steepness * (flows / self.capacity) ** self.power)

    def tolling(self, highest: float, tolled: Int[np.ndarray, " tolled"] | None = None) -> hf.Problem:
        """Tolls from 0 to ``highest``, in units of time, on some links or all, such that the total time is least."""
        zones, count = len(self.trips), len(self.links)
        nodes, (start, end) = max(int(self.links.max()) + 1, zones), self.links.T
        leaves, trips = np.zeros((nodes, count)), self.trips * (1.0 - np.eye(zones))
        leaves[start, np.arange(count)], leaves[end, np.arange(count)] = 1.0, -1.0
        wanted = np.zeros((nodes, zones))
        wanted[:zones] = np.diag(trips.sum(axis=1)) - trips.T
        barred = np.nonzero((start[:, None] < self.through) & (start[:, None] != np.arange(zones)))
        tolled = np.arange(len(self.links)) if tolled is None else np.asarray(tolled)
        y = cp.Variable((count, zones), nonneg=True, name="y")  # on each link, from each origin
        toll = cp.Variable(len(tolled), nonneg=True, name="toll")
        flows = cp.sum(y, axis=1)
        total = beckmann = self.free_flow_time @ flows
        for power in np.unique(self.power[self.steepness > 0]):
            alike = np.flatnonzero((self.power == power) & (self.steepness > 0))
            slower = (self.free_flow_time * self.steepness / self.capacity**power)[alike]
            each = cp.power(flows[alike], power + 1.0)
            total += slower @ each
            beckmann += slower / (power + 1.0) @ each
        rows = [leaves @ y == wanted, *([y[barred] == 0] if len(barred[0]) else [])]
        routes = hf.ArgMin(y, beckmann + toll @ flows[tolled], rows)
        return hf.Problem(hf.Minimize(clients=total), lower=routes, constraints=[toll <= highest])


def _parts(place: Path) -> tuple[dict[str, str], list[str]]:
    """(what a file tells of itself, its other lines, without comments)."""
    if not place.exists():
        raise SettingError(f"there is no file {place}: give the folder of the network's TNTP files, and its name.")
    lines = [line.partition("~")[0].strip().rstrip(";").strip() for line in place.read_text().splitlines()]
    told = {found[1].strip(): found[2].strip() for line in lines if (found := re.match(r"<(.*?)>(.*)", line))}
    return told, [line for line in lines if line and line[0] != "<"]
