"""The report in headless Chromium, from disk and without a network: sliders, hover, zoom, wide and narrow windows."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from matplotlib import image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import hierfl as hf
from hierfl.solvers import ZOHFL

WIDE, NARROW = 1400, 420
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * 0.0.0.0",  # no network
)
TRACE = """
const figure = document.getElementById("line-figure"), found = [];
figure.data.forEach((trace, place) => {
  const drawn = figure._fullData[place];  // with its arrays decoded
  if (trace.meta === arguments[0]) {
    found.push({x: Array.from(drawn.x || []), y: Array.from(drawn.y || []), visible: drawn.visible});
  }
});
return found;
"""


@pytest.fixture(scope="module")
def run() -> hf.Result:
    """Two clients, a server, kinks, and a part of the window outside X."""
    x, y, c = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(2, name="c")
    clients = [hf.Client(parameters={c: np.array([a, 0.0])}) for a in (0.0, 3.0)]
    problem = hf.Problem(
        hf.Minimize(server=0.1 * cp.sum_squares(x), clients=cp.sum_squares(y - np.array([0.0, 2.0]))),
        hf.ArgMin(y, cp.sum_squares(y - c), [cp.norm(y - x) <= 1], scope="client"),
        [x >= -2],
        hf.Federation(clients),
    )
    return problem.solve(ZOHFL(step_size=0.05), rounds=20, x0=np.array([3.0, 0.5]), evaluate_every=2, progress=False)


@pytest.fixture(scope="module")
def path(run: hf.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "run.html"
    return run.report(file, radius=4.0, points=41, smoothing=[0.2, 0.8], samples=8, progress=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, found in programs.items() if found is None]
    if missing:
        pytest.fail(
            f"{' and '.join(missing)} not found: the report is tested in Debian's browser; run "
            f"apt-get install chromium chromium-driver"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(str(programs["chromedriver"])))
    yield driver
    driver.quit()


@pytest.fixture(params=[WIDE, NARROW])
def page(request: pytest.FixtureRequest, browser: webdriver.Chrome, path: Path) -> webdriver.Chrome:
    """The report, opened in a window of either width."""
    size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get(path.as_uri())
    until(browser, "return document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    return browser


def until(page: webdriver.Chrome, condition: str, *arguments: Any) -> None:
    WebDriverWait(page, 20).until(lambda driver: driver.execute_script(condition, *arguments), condition)


def drag_slider(page: webdriver.Chrome, name: str, share: float) -> None:
    """Press the slider's rail at a share of its length."""
    rail = page.find_element(By.ID, f"{name}-slider")
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", rail)
    offset = (share - 0.5) * (rail.rect["width"] - 2)
    ActionChains(page).move_to_element_with_offset(rail, int(offset), 0).click().perform()


def traces(page: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.execute_script(TRACE, kind)
    return found


def point_at(page: webdriver.Chrome, x: float, y: float) -> None:
    """Move the mouse to a place in the figure's own coordinates."""
    figure = page.find_element(By.ID, "line-figure")
    page.execute_script("arguments[0].scrollIntoView({block: 'start', behavior: 'instant'})", figure)
    place = page.execute_script(
        """const [figure, x, y] = arguments, box = figure.getBoundingClientRect(), layout = figure._fullLayout;
        return [box.left + layout.xaxis._offset + layout.xaxis.d2p(x), box.top + layout.yaxis._offset + layout.yaxis.d2p(y)]""",
        figure, x, y,
    )  # fmt: skip
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(int(place[0]) + 6, int(place[1]))
    actions.w3c_actions.pointer_action.move_to_location(round(place[0]), round(place[1]))
    actions.perform()


def test_it_opens_without_errors_and_asks_for_nothing(page: webdriver.Chrome) -> None:
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert page.execute_script("return document.querySelectorAll('.js-plotly-plot').length") >= 4


def test_nothing_is_wider_than_the_window(page: webdriver.Chrome) -> None:
    width, inner = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inner in (WIDE, NARROW) and width <= inner
    too_wide = """return Array.from(document.querySelectorAll(".js-plotly-plot, h1, h2, p, dl, nav")).filter(
        element => element.getBoundingClientRect().right > window.innerWidth + 0.5).length"""
    assert page.execute_script(too_wide) == 0


def test_every_figure_is_as_wide_as_its_place(page: webdriver.Chrome) -> None:
    widths = """return Array.from(document.querySelectorAll(".js-plotly-plot")).map(figure =>
        [figure.id, figure.clientWidth, figure.querySelector(".main-svg").getBoundingClientRect().width])"""
    until(page, widths.replace("return ", "return (") + ").every(([id, place, drawn]) => Math.abs(place - drawn) < 1)")
    assert {name for name, *_ in page.execute_script(widths)} >= {"convergence-0", "convergence-1", "line-figure"}


def test_the_place_slider_moves_the_marker_and_the_words(page: webdriver.Chrome, run: hf.Result) -> None:
    (before,) = traces(page, "place")
    assert before["x"] == [0.0] and before["y"][0] == pytest.approx(run.value)
    drag_slider(page, "place", 0.7)
    until(page, "return document.getElementById('place-t').textContent !== '0'")
    (after,), (curve,) = traces(page, "place"), traces(page, "curve")
    place = curve["x"].index(after["x"][0])
    assert after["x"][0] > 0.5 and after["y"][0] == curve["y"][place]
    assert float(page.find_element(By.ID, "place-f").text) == pytest.approx(after["y"][0])
    assert float(page.find_element(By.ID, "place-t").text) == pytest.approx(after["x"][0])
    assert "norm(y - x) <= 1 of client" in page.find_element(By.ID, "place-active").text
    assert page.get_log("browser") == []


def test_the_smoothing_slider_changes_the_curve(page: webdriver.Chrome) -> None:
    assert [trace["visible"] for trace in traces(page, "smoothed")] == [True, False]
    drag_slider(page, "smoothing", 1.0)
    wanted = (
        "return document.getElementById('line-figure').data.filter(t => t.meta === arguments[0])[1].visible === true"
    )
    until(page, wanted, "smoothed")
    assert [trace["visible"] for trace in traces(page, "smoothed")] == [False, True]
    assert [trace["visible"] for trace in traces(page, "band")] == [False, True]
    drag_slider(page, "smoothing", 0.0)
    until(page, wanted.replace("[1].visible === true", "[1].visible === false"), "smoothed")
    assert [trace["visible"] for trace in traces(page, "smoothed")] == [False, False]


def test_hovering_tells_values_constraints_and_causes(page: webdriver.Chrome) -> None:
    (curve,), (kinks,) = traces(page, "curve"), traces(page, "kinks")
    place = next(k for k, t in enumerate(curve["x"]) if min(abs(t - kink) for kink in kinks["x"]) > 0.3 and t > 0.3)
    for where, x, y in (("active:", curve["x"][place], curve["y"][place]), ("before,", kinks["x"][0], kinks["y"][0])):
        point_at(page, x, y)
        shown = "return Array.from(document.querySelectorAll('#line-figure .hovertext')).map(e => e.textContent).join()"
        until(page, shown.replace("return ", "return (") + ").includes(arguments[0])", where)
        text = page.execute_script(shown)
        assert "norm(y - x) <= 1 of client" in text and "f = " in text


def focused(page: webdriver.Chrome) -> dict[str, Any]:
    """What has the keyboard: its id, its name to a screen reader, and whether a ring is drawn around it."""
    found: dict[str, Any] = page.execute_script(
        """const e = document.activeElement, style = getComputedStyle(e);
        return {id: e.id, tag: e.tagName, said: e.getAttribute("aria-valuetext"), name: e.getAttribute("aria-label"),
                ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2}"""
    )
    return found


def test_the_sliders_are_moved_by_the_keyboard_and_say_where_they_stand(page: webdriver.Chrome) -> None:
    until(page, "return document.getElementById('place-slider').hasAttribute('aria-valuetext')")
    visited = []
    for _ in range(60):
        ActionChains(page).send_keys(Keys.TAB).perform()
        visited.append(focused(page))
        if visited[-1]["id"] == "place-slider":
            break
    assert visited[-1]["id"] == "place-slider"
    assert [one for one in visited if not one["ring"]] == []
    (before,) = traces(page, "place")
    ActionChains(page).send_keys(Keys.ARROW_RIGHT).perform()
    until(page, "return document.getElementById('place-t').textContent !== '0'")
    (after,) = traces(page, "place")
    assert after["x"][0] > before["x"][0]
    said = focused(page)["said"]
    assert said.startswith(f"t = {after['x'][0]:.6g}, f = ") and page.find_element(By.ID, "place-at").text in said
    ActionChains(page).send_keys(Keys.HOME).perform()
    until(page, "return document.getElementById('place-t').textContent === '-4'")
    ActionChains(page).send_keys(Keys.TAB).send_keys(Keys.ARROW_RIGHT).perform()
    until(page, "return document.getElementById('smoothing-at').textContent === '0.8'")
    assert [trace["visible"] for trace in traces(page, "smoothed")] == [False, True]
    assert focused(page)["id"] == "smoothing-slider" and focused(page)["said"] == "0.8"
    label = "return Array.from(document.getElementById(arguments[0]).labels).map(e => e.textContent).join()"
    assert page.execute_script(label, "place-slider").startswith("place on the line")


def test_figures_and_buttons_have_names_and_buttons_can_be_pressed(page: webdriver.Chrome) -> None:
    until(page, "return document.querySelectorAll('.modebar-btn[aria-label]').length > 0")
    names = page.execute_script("return Array.from(document.querySelectorAll('.plot')).map(e => e.ariaLabel)")
    assert (all(names) and "kinks" in names[0]) or "kink" in names[0]
    buttons = page.execute_script(
        "return Array.from(document.querySelectorAll('.modebar-btn')).map(e => [e.role, e.tabIndex, e.ariaLabel])"
    )
    assert buttons and all(role == "button" and place == 0 and name for role, place, name in buttons)
    pan = page.find_element(By.CSS_SELECTOR, "#line-figure .modebar-btn[data-val=pan]")
    page.execute_script("arguments[0].focus()", pan)
    ActionChains(page).send_keys(Keys.ENTER).perform()
    until(page, "return document.getElementById('line-figure')._fullLayout.dragmode === 'pan'")


def test_check_and_lowering_are_folded_until_a_link_or_paper_opens_them(page: webdriver.Chrome) -> None:
    opened = "return Array.from(document.querySelectorAll('#check details, #lowering details')).map(e => e.open)"
    assert page.execute_script(opened) == [False, False]
    assert "it means" in page.find_element(By.ID, "check").text  # what it came to is not folded
    page.find_element(By.CSS_SELECTOR, "nav a[href='#check']").click()
    until(page, opened + "[0]")
    assert page.execute_script(opened) == [True, False]
    page.execute_script(
        f"window.seen = null; addEventListener('beforeprint', () => {{ seen = (() => {{ {opened} }})() }})"
    )
    page.execute_cdp_cmd("Page.printToPDF", {})
    until(page, "return window.seen !== null")
    assert page.execute_script("return window.seen") == [True, True]
    assert page.execute_script(opened) == [True, False]


def test_figures_follow_a_dark_theme(page: webdriver.Chrome) -> None:
    """What a figure is drawn on is as dark as the page, within a few levels of grey."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    try:
        plot = page.find_element(By.ID, "line-figure")
        page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
        pixels = image.imread(io.BytesIO(plot.screenshot_as_png))[..., :3]
        around = image.imread(io.BytesIO(page.find_element(By.TAG_NAME, "nav").screenshot_as_png))[..., :3]
        paper = np.median(around, axis=(0, 1))
        assert paper.max() < 0.15 and np.abs(np.median(pixels, axis=(0, 1)) - paper).max() < 0.05
        assert pixels.max() > 0.6  # and what is drawn on it is light
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_printing_waits_for_the_figures(page: webdriver.Chrome) -> None:
    """Asked to print before they are drawn, the page keeps the browser from it, and prints when they are."""
    early = """
        window.printed = null;
        window.print = () => { printed = document.querySelectorAll(".js-plotly-plot .main-svg").length > 0; };
        addEventListener("DOMContentLoaded", () => {
          const asked = new KeyboardEvent("keydown", {key: "p", ctrlKey: true, cancelable: true});
          window.kept = !window.dispatchEvent(asked);
        });
    """
    added = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": early})
    try:
        page.refresh()
        until(page, "return window.printed !== null")
        assert page.execute_script("return [kept, printed]") == [True, True]
    finally:
        page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})
