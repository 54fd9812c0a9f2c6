"""The layer in PyTorch, run by ``make test-torch`` in an environment of its own: its Linux wheel brings gigabytes of CUDA with it."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import hierfl as hf
from hierfl.errors import DataError, NoGradientError

N = 4


def declared() -> tuple[hf.Problem, cp.Parameter, cp.Parameter]:
    x, y = cp.Variable(2, name="x"), cp.Variable(N, name="y")
    a, b = cp.Parameter((N, 2), name="A"), cp.Parameter(name="b", nonneg=True)
    lower = hf.ArgMin(y, cp.sum_squares(y - a @ x) + b * cp.norm1(y), [y >= -1, y <= 1])
    return hf.Problem(hf.Minimize(server=cp.sum_squares(y - 0.3) + cp.sum_squares(x)), lower), a, b


def drawn(seed: int, *batch: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    random = np.random.default_rng(seed)
    x, a, b = random.normal(size=(*batch, 2)), random.normal(size=(*batch, N, 2)), random.uniform(0.1, 1, size=batch)
    return torch.tensor(x, requires_grad=True), {"A": torch.tensor(a, requires_grad=True), "b": torch.tensor(b, requires_grad=True)}


def answer(x: np.ndarray, a: np.ndarray, b: float) -> np.ndarray:
    """The soft threshold of A x at b / 2, clipped."""
    middle = a @ x
    return np.clip(np.sign(middle) * np.maximum(np.abs(middle) - b / 2, 0), -1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_values_and_slopes_are_those_of_the_formula(seed: int) -> None:
    problem, *parameters = declared()
    layer = problem.implicit.torch(*parameters)
    x, theta = drawn(seed)
    y = layer.y(x, theta)
    np.testing.assert_allclose(y.detach().numpy(), answer(*(one.detach().numpy() for one in (x, theta["A"], theta["b"]))), atol=1e-9)
    assert torch.autograd.gradcheck(lambda x, a, b: (layer.f(x, {"A": a, "b": b}), layer.y(x, {"A": a, "b": b})), (x, theta["A"], theta["b"]), atol=1e-5)


def test_a_batch_is_its_elements_one_by_one() -> None:
    problem, *parameters = declared()
    layer = problem.implicit.torch(*parameters)
    x, theta = drawn(7, 6)
    layer.f(x, theta).sum().backward()
    for k in range(6):
        own, inner = x.detach()[k].requires_grad_(), {name: one.detach()[k] for name, one in theta.items()}
        value = layer.f(own, inner)
        value.backward()
        assert value.item() == pytest.approx(layer.f(x, theta)[k].item(), rel=1e-12)
        np.testing.assert_allclose(own.grad, x.grad[k], rtol=1e-9)
    shared = layer.f(x, {name: one[0] for name, one in theta.items()})  # theta for all elements
    assert shared.shape == (6,) and layer.status(x, theta).f.tolist() == [2] * 6


def test_precision_and_inputs_without_slopes_come_back_as_they_are_given() -> None:
    problem, *parameters = declared()
    layer = problem.implicit.torch(*parameters)
    x, theta = drawn(3)
    single = x.detach().float().requires_grad_()
    value = layer.f(single, {name: one.detach().float() for name, one in theta.items()})
    value.backward()
    assert value.dtype == single.grad.dtype == torch.float32
    short = x.detach().bfloat16()  # which NumPy has not
    assert layer.f(short, theta) == layer.f(short.double(), theta)
    assert not layer.f(x.detach(), {name: one.detach() for name, one in theta.items()}).requires_grad


def test_it_learns_as_a_part_of_a_model() -> None:
    """Adam on A brings y to a target."""
    problem, *parameters = declared()
    layer = problem.implicit.torch(*parameters)
    x, theta = drawn(1)
    target, a = torch.linspace(-0.5, 0.5, N, dtype=torch.float64), theta["A"].detach().requires_grad_()
    theta["b"] = torch.tensor(0.01, dtype=torch.float64)
    optimizer = torch.optim.Adam([a], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = ((layer.y(x.detach(), {"A": a, "b": theta["b"]}) - target) ** 2).sum()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3


def test_what_is_no_derivative_or_no_tensor_is_an_error_of_hierfl() -> None:
    problem, *parameters = declared()
    layer = problem.implicit.torch(*parameters)
    kink = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # at the bound of the threshold
    theta = {"A": torch.eye(N, 2, dtype=torch.float64), "b": torch.tensor(2.0, dtype=torch.float64)}
    at_kink = (kink.detach() + torch.tensor([1.0, 0.0])).requires_grad_()
    with pytest.raises(NoGradientError, match="f has no gradient"):
        layer.f(at_kink, theta).backward()
    assert int(layer.status(at_kink, theta).f) == 1
    with pytest.raises(DataError, match=r"'x' has shape \(3,\); expected \(2,\)"):
        layer.f(torch.zeros(3), theta)
    for ask in (layer.f, layer.status):
        with pytest.raises(DataError, match=r"there are 3 of x, 4 of b"):
            ask(torch.zeros(3, 2), {"A": theta["A"], "b": torch.zeros(4)})
    with pytest.raises(NoGradientError, match="first derivatives only"):  # which PyTorch would tell are 0
        torch.autograd.functional.hessian(lambda x: layer.f(x, theta), kink.detach() + 0.1)
    with pytest.raises(DataError, match="expected a tensor"):
        layer.f("one", theta)
    with pytest.raises(DataError, match="A, c; expected"):
        layer.f(kink, {"A": theta["A"], "c": theta["b"]})
    with pytest.raises(DataError, match="real numbers"):
        layer.f(torch.zeros(2, dtype=torch.complex128), theta)
