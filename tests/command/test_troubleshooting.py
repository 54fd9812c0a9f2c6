"""``hierfl docs``: what errors and warnings name prints, from what an installed package holds."""

from __future__ import annotations

import pytest

import hierfl as hf
from hierfl.command.main import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["docs", *arguments]) == 0
    return capsys.readouterr().out


def test_what_an_error_names_prints_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hf.DataError) as caught:
        hf.Client({hf.Sample(2, name="a"): [[1.0, 2.0, 3.0]]})
    command = caught.value.__notes__[-1].partition("hierfl docs ")[2]
    text = printed(capsys, command)
    assert text.startswith("DataError\n\nThe data of a party, or an x, do not fit")
    assert "    hf.Client({a: np.zeros((10, 3))})" in text and "```" not in text and "told()" not in text
    assert printed(capsys, "dataerror") == text


def test_without_a_topic_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = printed(capsys).splitlines()
    assert {"DataError", "LowerLevelError", "TheoryWarning"} <= set(listed)


def test_a_topic_that_there_is_not_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "DatError"]) == 2
    assert "did you mean 'DataError'?" in capsys.readouterr().err
