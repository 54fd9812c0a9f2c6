"""[2S] Figure 4 ([NN] Figure 2): hyperparameter learning and fair classification by FedRZO_bl, as the experiments of [2S] §6.2 and §6.3 run them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import hierfl as hf
from examples.reproduce.relu import PRINTS_CURVES, draw_runs
from examples.reproduce.reproduction import Cell, DataSets, Measured, Plain, Reproduction, Table, by_name, panels
from hierfl.errors import DivergedError, LowerLevelWarning, TheoryWarning
from hierfl.models import ClassificationData, fair_classification, hyperparameter_learning
from hierfl.models.relu_network import initial_weights, parity
from hierfl.runs import interval
from hierfl.solvers import LFD, FedRZO, LocalSGD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS, FLOOR, START = 5, 0.1, 0.5
LEARNED, MIXED = "hyperparameters", "fair classification"
LARGEST = 1.0  # of x, where L_h is taken: X has no bound above, and then L_h has none
LOWERS: dict[str, Callable[[float], Any]] = {
    "Local SGD (Algorithm 3)": lambda smooth: algorithm_3(FLOOR, smooth + LARGEST),
    "LFD": lambda smooth: LFD(rounds=10, steps=5, step_size=0.3, batch_size=None),
}
MIXTURES = {"y in the simplex": (True, 0.1, 5e-4), "y free": (False, 1.0, 5e-5)}  # lambda, gamma


def algorithm_3(mu: float, smooth: float) -> LocalSGD:
    """Local SGD as Algorithm 3 of [2S] sets it for mu_h and L_h, in rounds r below a = max(m, 4 kappa) + 1, where a_r stays a."""
    a = max(CLIENTS, 4 * smooth / mu) + 1
    steps = int(np.ceil(2 * a * np.log(a) / CLIENTS))
    return LocalSGD(rounds=CLIENTS, steps=steps, step_size=1 / (mu * a), batch_size=1)


def bilevel_cell(data: str, variant: str, local_steps: int, seed: int, rounds: int, samples: int | None = None) -> Cell:
    """A run of FedRZO_bl: hyperparameters with one of the lower solvers, or the minimax problem over one of the sets of y."""
    learned = variant in LOWERS
    part, step = (LEARNED, 2e-4) if learned else (MIXED, MIXTURES[variant][2])
    settings = {"part": part, "data": data, "variant": variant, "local_steps": local_steps, "seed": seed, "rounds": rounds}
    settings |= {"smoothing": 0.01, "step_size": step, **({"samples": samples, "floor": FLOOR} if learned else {})}
    return Cell(f"{part}, {data}, {variant}, H = {local_steps}, seed {seed}", settings, f"{part}, {variant}")


def _plan(full: bool, data: DataSets) -> list[Cell]:
    name = data.first("MNIST") if full else "digits"
    rounds, samples = (1000, None) if full else (100, 1000)
    return [
        bilevel_cell(name, variant, steps, seed, rounds, samples)
        for variant in (*LOWERS, *MIXTURES)
        for steps in ((1, 5, 10, 20) if full else (1, 20))
        for seed in range(5 if full else 2)
    ]


def _prepare(cell: Cell, data: DataSets) -> ClassificationData:
    return data.found[cell.settings["data"]]


def _run(cell: Cell, held: ClassificationData) -> Plain:
    """The test loss by rounds (of fair classification, the mean over classes, with the worst class beside it), f at the end, and the
    scalars that the lower level sent up; of a run that diverges, that it did.
    """
    settings = cell.settings
    kind, batch_size, lower, problem, metrics, x0 = (_learned if settings["part"] == LEARNED else _mixed)(settings, held)
    own = {name: settings[name] for name in ("smoothing", "step_size", "local_steps")}
    solver = FedRZO.published(kind, **own, batch_size=batch_size, lower=lower, common_random_numbers=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowerLevelWarning)  # the numbers say it: value beside own
        warnings.simplefilter("ignore", TheoryWarning)  # that queries are projected is told among the differences
        try:
            result = problem.solve(
                solver,
                rounds=settings["rounds"],
                seed=settings["seed"],
                x0=x0,
                metrics=metrics,
                evaluate_every=max(1, settings["rounds"] // 20),
                progress=False,
            )
        except DivergedError as error:
            return {"diverged": str(error)}
    measured = {name: result.metrics[name] for name in ("round", *metrics)}
    sent = result.communication["lower_scalars_up"]
    return {"diverged": "", **measured, "value": result.value, "own": result.own_value, "lower_scalars_up": sent}


Prepared = tuple[str, int | None, Any, hf.Problem, dict[str, Any], Any]  # kind, minibatch, lower solver, problem, metrics, start


def _learned(settings: Plain, held: ClassificationData) -> Prepared:
    features, labels = np.asarray(held.scaled(held.features)), parity(held.labels)
    if settings["samples"] is not None and settings["samples"] < len(labels):
        chosen = np.random.default_rng(0).choice(len(labels), settings["samples"], replace=False)
        features, labels = features[chosen], labels[chosen]
    problem = hyperparameter_learning(features, labels, clients=CLIENTS, floor=settings["floor"])
    assert problem.federation is not None and problem.federation.test is not None
    test = by_name(problem.federation.test)
    rows = [by_name(client.samples)["image"] for client in problem.federation.clients]  # of the lower level
    smooth = max(0.25 * float(np.linalg.norm(own, 2) ** 2) / len(own) for own in rows)

    def loss(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, -test["label"] * (test["image"] @ y))))

    return "bl", None, LOWERS[settings["variant"]](smooth), problem, {"loss": loss}, np.full(CLIENTS, START)


def _mixed(settings: Plain, held: ClassificationData) -> Prepared:
    simplex, lam, _ = MIXTURES[settings["variant"]]
    problem = fair_classification(held, clients=CLIENTS, lam=lam, simplex=simplex, seed=settings["seed"])
    assert problem.federation is not None and problem.federation.test is not None
    test = by_name(problem.federation.test)
    images, classes = np.asarray(held.scaled(test["image"])), np.argmax(test["share"], axis=1)

    def by_class(x: dict[Any, np.ndarray]) -> np.ndarray:
        named = by_name(x)
        errors = (test["target"] - np.maximum(images @ named["Z"].T, 0.0) @ named["w"]) ** 2
        return np.array([errors[classes == c].mean() for c in np.unique(classes)])

    metrics = {"loss": lambda x, y: float(by_class(x).mean()), "worst": lambda x, y: float(by_class(x).max())}
    start = initial_weights(problem, seed=settings["seed"])
    return "mm", 128, LocalSGD(rounds=5, steps=10, batch_size=128), problem, metrics, start


def _tables(measured: Measured) -> Sequence[Table]:
    tables = []
    for part, variant in ((LEARNED, "lower level by"), (MIXED, "set of y")):
        rows = [["data", variant, "H", "test loss at the start", "test loss", "worst class", "f(x)", "own f"]]
        for data, one, steps in measured.each("data", "variant", "local_steps", part=part):
            rows.append([data, one, f"{steps}", *_entries(measured.of(part=part, data=data, variant=one, local_steps=steps))])
        rounds, seeds = (measured.each(name, part=part) for name in ("rounds", "seed"))
        tables.append((f"{part}: {rounds[0]} rounds, means and 95 % intervals over {len(seeds)} seeds", rows))
    return tables


def _entries(runs: Sequence[Plain]) -> list[str]:
    if not runs or any(one["diverged"] for one in runs):
        return ["diverged" if runs else "no data", "", "", "", ""]
    ends = ([one[name][-1] for one in runs if name in one] for name in ("loss", "worst"))
    values = ([one[name] for one in runs] for name in ("value", "own"))
    return [f"{runs[0]['loss'][0]:.4f}", *(interval(found, 4) for found in (*ends, *values))]


def _draw(measured: Measured) -> Figure:
    """Draw hyperparameters to the left and fair classification to the right, a colour for H, dashes for the variants."""
    figure, (axes,) = panels(1, 2, 5.0, 3.9)
    for ax, part in zip(axes, (LEARNED, MIXED)):
        for variant, look in zip(measured.each("variant", part=part), ("-", "--")):
            for place, steps in enumerate(measured.each("local_steps", part=part)):
                runs = measured.of(part=part, variant=variant, local_steps=steps)
                draw_runs(ax, runs, f"H = {steps}, {variant}", color=f"C{place}", linestyle=look)
        ax.set(title=part, xlabel="communication round", ylabel="loss on test data")
        ax.legend(fontsize="small")
    return figure


FIGURE = Reproduction(
    name="2s-fig4",
    about="hyperparameter learning and fair classification by FedRZO_bl, with the lower solver of Algorithm 3 and LFD, y in the simplex and free",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 4, §6.2, §6.3; [NN] (2023), Figure 2",
    caption=(
        "(Left) Convergence of FedRZO_bl in hyperparameter FL for ℓ2 regularized logistic loss, where we plot the loss function on test data for different "
        "values of local steps with 95% CIs. (Right) Convergence of FedRZO_bl in minimax FL, where we present test results in solving a "
        "nondifferentiable nonconvex-strongly concave FL minimax formulation of the fair classification problem."
    ),
    data=("MNIST",),
    plan=_plan,
    prepare=_prepare,
    run=_run,
    tables=_tables,
    draw=_draw,
    smaller="100 of 1000 rounds, 2 of 5 seeds, H = 1 and 20, scikit-learn's digits",
    differs=(
        PRINTS_CURVES,
        "Queries x + v are projected on X, where the paper's are not: a weight below 0 in the lower level would take its strong convexity away.",
        "The local steps of FedRZO_bl use answers y that are computed once a round. y(x) depends on the mean of x alone, and f on x only through y: H local "
        "steps do here what one step H times as long does.",
    ),
    left_open=(
        "the lower losses are means and the upper ones sums: with sums in both, Algorithm 3 asks for millions of steps; 30 % of a client's data are upper samples",
        "mu = 0.1 of X, the start x = 0.5, eta = 0.01, gamma = 2e-4; fair classification: eta = 0.01, gamma = 5e-4 (5e-5 for y free)",
        "the objective of fair classification is printed without y_c before the loss of class c; here it stands, as in the formulation that is cited, with lambda = 0.1 in the "
        "simplex and 1 for y free; its lower solver takes 5 rounds of 10 steps on minibatches of 128",
        "L_h of Algorithm 3: X has no bound above, and then L_h has none; it is taken for x up to 1",
        "samples are shared by the two calls of the lower solver; labels are 1 for even and -1 for odd classes",
    ),
)
