"""The pictures of three implicit functions, whose values are computed by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import implicit_functions


def test_the_three_functions_and_the_figure(tmp_path: Path) -> None:
    toy_x, toy, _, minimax_x, minimax, _, game_x, game, followers = implicit_functions.draw(13)
    np.testing.assert_allclose(toy, np.where(toy_x >= 0, 0.5, (toy_x + 1) ** 2 / 2), atol=1e-9)
    np.testing.assert_allclose(minimax, minimax_x**2 - minimax_x, atol=1e-9)
    np.testing.assert_allclose(followers[game_x <= 2], 1.5, atol=1e-12)
    assert np.all(followers[game_x >= 10] < 1e-9)
    np.testing.assert_allclose(game, 0.05 * game_x**2 - game_x * (10 - game_x - followers.sum(axis=1)), atol=1e-9)
    paths = implicit_functions.main(["--figures", str(tmp_path), "--points", "40"])
    assert len(paths) == 2 and all(path.stat().st_size > 10_000 for path in paths)
