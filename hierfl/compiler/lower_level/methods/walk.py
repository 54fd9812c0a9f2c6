"""An iteration on y as one loop that projects at one place: the start, the steps and the certificate are all trips of it.

A trip projects the point ahead, asks for F where the iteration says, and decides on the next point ahead. A projection may be a
Newton method of its own; each further copy of it in the program would cost XLA as much again, and tracing too.

There are iterations of first order: accelerated projected gradient with restart, and extragradient where a map is no gradient.

They need no Lipschitz constant: the step starts from a power iteration, about 1 / L, and shrinks when the observed differences of F ask
for it. They are what makes Newton's method safe (O'Donoghue and Candes, 2015; Korpelevich, 1976). Accelerated gradient is a method of
its own as well, for whoever asks for it. And there is a semismooth Newton method for 0 in F(y) + N_Y(y), safeguarded by first-order steps.

Its unknown is z of the normal map G(z) = (z - P(z)) / s + F(P(z)), y = P(z), with s about 1 / L: unscaled maps may cycle. With
D = DP(z) and H = DF(y) a Newton step solves (H D + (I - D) / s) dz = -G. In v = D dz this is (I - D + s D H) v = -s D G, and
dz = v - s (G + H v). For gradients v = D u makes it symmetric and positive, (D - D^2 + s D H D) u = -s D G, so that conjugate
gradients solve it from products alone (Milzarek and Ulbrich, 2014), and GMRES where F is no gradient, or, where they take long, a factorisation;
small systems are solved densely.

A Newton step counts if it halves |G|, which bounds the natural residual. A few that do not may lead to one that does, since |G|
may grow while the active set settles; else some steps of the safeguard are taken from the best point, so that the method is never
much worse than its safeguard and needs no line search (a watchdog: Chamberlain, Powell, Lemarechal and Pedersen, 1982).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg, gmres
from jaxtyping import Bool, Float, Int

from hierfl.compiler.lower_level.certificate import Evidence, LowerSolution, Map, target
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, IterativeMethod, Question, Verdict, told_apart
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.programs.convex_program import ONE, SEVERAL, UNKNOWN

START, STEPS, CERTIFICATE, END = range(4)  # what a trip is for
POWER_STEPS = 15


S = TypeVar("S")  # where an iteration stands: a ``y`` of Y(x) with F there, ``force``, its ``step``, and how many were ``taken``
T = TypeVar("T")


class Onward(NamedTuple, Generic[S]):
    """The stand after a trip, what is projected next, and whether the iteration has ended at its y."""

    stand: S
    ahead: Array
    done: Array


class Iteration(ABC, Generic[S]):
    """A rule that leads from a point of Y(x) to the solution, trip by trip; the first one projects a step along -F."""

    @abstractmethod
    def begin(self, y: Array, force: Array, step: Array) -> S:
        """Where it stands at the start, a point of Y(x), from F there and a first step."""

    @abstractmethod
    def arrive(self, stand: S, nearest: Array) -> tuple[S, Array]:
        """The stand once the point ahead is projected, and where F is asked for."""

    @abstractmethod
    def depart(self, stand: S, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array) -> Onward[S]:
        """How it goes on from the projection of ``ahead``, with F at ``point``; used if ``stepping``, for what costs something."""

    def project(self, project: Map, ahead: Array) -> tuple[Array, Any]:
        """The nearest point of Y(x), and the slope of the projection if ``depart`` needs one."""
        return project(ahead), None


class Walk(NamedTuple):
    """What the next trip is for and what it projects, where the iteration stands, and the evidence for its end."""

    purpose: Array
    ahead: Array
    stand: Any
    evidence: Evidence


def walked(
    question: Question, iteration: Iteration[Any], start: Array, power_steps: Array | int = POWER_STEPS
) -> LowerSolution:
    """The solution of a question by an iteration, from the projection of ``start``, with its evidence."""
    owner, asked, wanted = question.owner, question.asked, question.wanted

    def unfinished(walk: Walk) -> Array:
        return walk.purpose < END

    def trip(walk: Walk) -> Walk:
        purpose, ahead, stand, evidence = walk
        starting, stepping = purpose == START, purpose == STEPS
        nearest, slope = iteration.project(owner.project, ahead)
        stand, point = one_of_two(stepping, iteration.arrive(stand, nearest), (stand, nearest))
        force = operator(purpose, point)
        # side by side all owners start at once: nobody takes power steps later
        step = first_step(owner.operator, nearest, force, jnp.where(starting, power_steps, 0))
        start = Walk(jnp.asarray(STEPS), nearest - step * force, iteration.begin(nearest, force, step), evidence)

        moved, onward, done = iteration.depart(stand, ahead, point, force, slope, stepping)
        onward = jnp.where(done, moved.y - moved.step * moved.force, onward)
        steps = Walk(jnp.where(done, CERTIFICATE, STEPS), onward, moved, evidence)

        looked, onward = evidence.looked(ahead, nearest, force, stand.step, wanted)
        certificate = Walk(jnp.where(looked.complete, END, CERTIFICATE), onward, stand, looked)
        return one_of_two(starting, start, one_of_two(stepping, steps, certificate))

    def operator(purpose: Array, point: Array) -> Array:
        """F, in the certificate as it was asked."""
        if asked is owner:
            return owner.operator(point)
        return jax.lax.cond(purpose == CERTIFICATE, asked.operator, owner.operator, point)

    zero, one = jnp.zeros_like(start), jnp.ones((), start.dtype)
    first = Walk(jnp.asarray(START), start, iteration.begin(start, zero, one), Evidence.none(start))
    end = jax.lax.while_loop(unfinished, trip, first)
    return end.evidence.judged(end.stand.step, end.stand.taken, wanted)


def one_of_two(condition: Bool[Array, ""], one: T, other: T) -> T:
    """``one`` where the scalar condition holds, else ``other``, a tree of arrays of the same shapes."""
    return jax.tree.map(partial(jax.lax.select, condition), one, other)


def if_wanted(wanted: Array, compute: Callable[[Array], Array], otherwise: Array) -> Array:
    """``compute(True)`` where it is wanted; side by side it is computed only if somebody wants it, where a branch always would be.

    Nor is what it uses copied side by side, as the arguments of a branch are. What does not depend on its argument may be computed at any rate.
    """

    def once(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.zeros_like(state[0]), compute(state[0])

    return jax.lax.while_loop(lambda state: state[0], once, (wanted, otherwise))[1]


def first_step(operator: Map, start: Array, force: Array, iterations: Any = POWER_STEPS) -> Array:
    """1/L from a power iteration on F's Jacobian at the start, F there being known; L from below, hence the later safeguards."""
    size = stretch(lambda v: jax.jvp(operator, (start,), (v,))[1], start, iterations)
    length = jnp.linalg.norm(force)
    # F constant here: any step will do
    flat = 100.0 * (1.0 + jnp.linalg.norm(start)) / jnp.where(length > 0, length, 1.0)
    curved = (size * flat > 1e-6) & jnp.isfinite(size)
    return jnp.where(curved, 1.0 / (1.05 * jnp.where(size > 0, size, 1.0)), flat)


def stretch(multiply: Map, like: Array, iterations: Any = POWER_STEPS) -> Array:
    """The norm of a linear map by a power iteration, from below."""
    probe = generic(like)

    def once(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        image = multiply(state[0])
        size = jnp.linalg.norm(image)
        return image / jnp.where(size > 0, size, 1.0), size

    first = probe / jnp.linalg.norm(probe), jnp.zeros((), like.dtype)
    return jax.lax.fori_loop(0, iterations, once, first)[1]


def generic(like: Array) -> Array:
    """A vector without anything special."""
    return jnp.cos(jnp.arange(1, like.size + 1, dtype=like.dtype) ** 2)


class Extrapolated(NamedTuple):
    """A stand of accelerated gradient; ``force`` is F at ``point``, which is y pushed on, but y itself at the end."""

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    point: Float[Array, " size"]
    momentum: Float[Array, ""]
    taken: Int[Array, ""]
    done: Bool[Array, ""]


@dataclass(frozen=True)
class AcceleratedSteps(Iteration[Extrapolated]):
    """Accelerated projected gradient with restart."""

    mu: Array
    tolerance: Array | float
    limit: int

    def begin(self, y: Array, force: Array, step: Array) -> Extrapolated:
        return Extrapolated(y, force, step, y, jnp.ones((), y.dtype), jnp.zeros((), int), jnp.zeros((), bool))

    def arrive(self, stand: Extrapolated, nearest: Array) -> tuple[Extrapolated, Array]:
        y, force, step, point, momentum, taken, _ = stand
        taken, gap = taken + 1, jnp.linalg.norm(point - nearest)
        done = (gap / step <= target(nearest, force, step, self.mu, self.tolerance)) | (taken >= self.limit)
        restart = jnp.vdot(point - nearest, nearest - y) > 0
        after = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        push = jnp.where(restart | done, 0.0, (momentum - 1) / after)
        stand = Extrapolated(nearest, force, step, point, jnp.where(restart, 1.0, after), taken, done)
        return stand, nearest + push * (nearest - y)

    def depart(
        self, stand: Extrapolated, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array
    ) -> Onward[Extrapolated]:
        distance, difference, tiny = jnp.linalg.norm(point - stand.point), jnp.linalg.norm(force - stand.force), _tiny(point)
        # a step that is longer than ||F(a) - F(b)|| allows, beyond rounding, is shortened; where it is much longer (an exponential, until it
        # overflows), the next is taken from the last point again
        long = stand.step * difference > 1.0001 * distance + tiny
        over = ~(stand.step * difference <= 10 * distance + tiny) & jnp.isfinite(jnp.linalg.norm(stand.force))
        step = jnp.where(long, 0.95 * distance / jnp.where(difference > 0, difference, 1.0), stand.step)
        step = jnp.where(over, 0.1 * stand.step, step)
        y, force, point, momentum = one_of_two(
            over, (stand.point, stand.force, stand.point, jnp.ones_like(step)), (stand.y, force, point, stand.momentum)
        )
        stand = stand._replace(y=y, force=force, step=step, point=point, momentum=momentum)
        return Onward(stand, point - step * force, stand.done & ~over)


class Halfway(NamedTuple):
    """A stand of extragradient: a trip goes from y to half a step, the next one, with F there, from y to the ``whole`` step's end."""

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    whole: Bool[Array, ""]
    taken: Int[Array, ""]


@dataclass(frozen=True)
class ExtragradientSteps(Iteration[Halfway]):
    """Extragradient with a step that shrinks until it is short of 1/L along the way."""

    mu: Array
    tolerance: Array | float
    limit: int

    def begin(self, y: Array, force: Array, step: Array) -> Halfway:
        return Halfway(y, force, step, jnp.zeros((), bool), jnp.zeros((), int))

    def arrive(self, stand: Halfway, nearest: Array) -> tuple[Halfway, Array]:
        return stand, nearest

    def depart(
        self, stand: Halfway, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array
    ) -> Onward[Halfway]:
        y, old, step, whole, taken = stand
        moved, changed = jnp.linalg.norm(point - y), jnp.linalg.norm(force - old)
        short = step * changed <= 0.9 * moved + _tiny(y)
        met = ~whole & (moved / step <= target(point, old, step, self.mu, self.tolerance))
        arrived, half = whole | (met & short), ~whole & short
        shrunk = jnp.minimum(0.7 * moved / jnp.where(changed > 0, changed, 1.0), 0.7 * step)
        step = jnp.where(whole | short, step, shrunk)
        new_y, new_force = jnp.where(arrived, point, y), jnp.where(arrived, force, old)
        onward = jnp.where(half, y - step * force, new_y - step * new_force)
        taken = taken + ~whole
        return Onward(Halfway(new_y, new_force, step, half, taken), onward, met | (~half & (taken >= self.limit)))


def _tiny(like: Array) -> Array:
    """A length that rounding alone may make."""
    return jnp.asarray(1e-13 if like.dtype == jnp.float64 else 1e-6, like.dtype)


class AcceleratedGradient(IterativeMethod):
    """The method for Lipschitz gradients F over sets with an exact projection.

    Never the first choice, since Newton's method is safeguarded by it.
    """

    name: ClassVar[str] = "accelerated gradient"
    cost: ClassVar[str] = "a full pass over the data and a projection in each step, until the residual is met"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        if not structure.is_gradient:
            return Verdict(False, "needs a gradient; F is not one")
        return Verdict(True, "F is a Lipschitz gradient and Y(x) can be projected on")

    def answer(self, question: Question) -> LowerSolution:
        rule = AcceleratedSteps(question.mu, question.tolerance, ITERATION_LIMIT)
        return walked(question, rule, question.warm)


DENSE_LIMIT = 64
LIMIT = 200
PATIENCE = 3  # Newton steps that may fail to count, one after another
SAFE_STEPS = 50
ROUGHLY = 3  # power steps
KRYLOV_STEPS, RESTART = 400, 30
INEXACT = 20  # Newton steps by products alone, after which a matrix is factorised
FACTORISED, TOGETHER = 1000, 32  # its scalars of y at most, and how many of its columns are had side by side
REFINED = 4  # times that a way without curvature is
SHARES = (1.0, 0.1, 0.01, 1e-3)  # of 1 + |y|, how far other solutions are looked for


@dataclass(frozen=True, eq=False)
class SemismoothNewton(IterativeMethod):
    """The method for smooth maps F over sets with an exact projection; ``looks_beside`` it for other solutions, where F is a gradient."""

    looks_beside: bool = False
    of_several: ClassVar[str] = "that at which the iteration ends"
    name: ClassVar[str] = "semismooth Newton"
    cost: ClassVar[str] = "some Newton steps; each takes tens of products with the Hessian, of the cost of a gradient"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        how = "Newton-CG" if structure.lower_set.kind == "free" and structure.is_gradient else "on the normal map"
        safeguard = "accelerated gradient" if structure.is_gradient else "extragradient"
        return Verdict(True, f"F is smooth and Y(x) has an exact projection ({how}); safeguarded by {safeguard}")

    def answer(self, question: Question) -> LowerSolution:
        # where nothing is projected, Newton steps are the same whatever s is: a rough one will do
        steps = ROUGHLY if self.structure.lower_set.kind == "free" else POWER_STEPS
        found = newton_from(question, question.warm, self.structure.is_gradient, steps)
        if not self.looks_beside:
            return found
        several, ends = solutions_beside(question, found.y, found.converged)
        unique = jnp.where(question.mu > 0, ONE, jnp.where(several, SEVERAL, UNKNOWN))
        return found._replace(unique=told_apart(unique, found.y, ends, question.owner))


def newton_from(
    question: Question, start: Array, gradient: bool, power_steps: Array | int = POWER_STEPS
) -> LowerSolution:
    """The solution of a question by Newton's method, from a start of its own; ``gradient`` says whether F is one."""
    rule = AcceleratedSteps if gradient else ExtragradientSteps
    safeguard = rule(question.mu, question.tolerance, SAFE_STEPS)
    newton = NewtonSteps(safeguard, question.owner.operator, gradient, question.mu, question.tolerance)
    return walked(question, newton, start, power_steps)


def solutions_beside(question: Question, y: Array, solved: Array) -> tuple[Bool[Array, ""], Float[Array, "2 size"]]:
    """(whether a solution of 0 in F(y) + N_Y(y) is seen to be one of several, others on both sides of it); F is a gradient.

    The way to them is what conjugate gradients leave of a generic vector, a kernel of Newton's matrix; what is found along it counts
    where a projected step is the same as at y. No F that grows by a millionth of a millionth of its steepest growth is told from a flat one.
    """
    owner, eps = question.owner, 1e3 * jnp.finfo(y.dtype).eps
    force = owner.operator(y)
    step = first_step(owner.operator, y, force)
    slope, hessian = jax.linearize(owner.project, y - step * force)[1], jax.linearize(owner.operator, y)[1]

    def product(u: Array) -> Array:
        du = slope(u)
        return slope(u - du + step * hessian(du))

    limit = jnp.where(solved & (question.mu <= 0), KRYLOV_STEPS, 0)

    def without_curvature(_: Any, way: Array) -> Array:
        return slope(way - cg(product, product(way), tol=1e-5, maxiter=limit)[0])

    flat = jax.lax.fori_loop(0, REFINED, without_curvature, slope(generic(y)))  # each refines the last, down to rounding
    flat = flat * (1.0 + jnp.linalg.norm(y)) / jnp.maximum(jnp.linalg.norm(flat), eps)

    def beside(way: Array) -> tuple[Array, Array]:
        other = owner.project(y + way)
        return other, owner.project(other - step * owner.operator(other)) - other

    ways = jnp.concatenate([jnp.zeros((1, y.size), y.dtype), *(share * jnp.stack([flat, -flat]) for share in SHARES)])
    others, moved = jax.lax.map(beside, ways)
    length = jnp.linalg.norm(others - y, axis=1)
    same = jnp.linalg.norm(moved - moved[0], axis=1) <= eps * length
    counts = (same & (length > 0.5 * jnp.linalg.norm(ways, axis=1)))[1:]
    found = solved & counts.any() & jnp.isfinite(flat).all()
    return found, jnp.stack([others[1 + jnp.argmax(counts)], others[len(counts) - jnp.argmax(counts[::-1])]])


class Safeguarded(NamedTuple):
    """A stand of Newton's method: the best y with F there, and ``error``, |G| at the z that it comes from.

    The point ahead is a trial z where ``newton`` is set, ``failed`` of which have not counted since the best, else it is the
    safeguard's. A ``fresh`` trial, that of the first z or the first after the safeguard, counts whatever its error.
    """

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    error: Float[Array, ""]
    newton: Bool[Array, ""]
    fresh: Bool[Array, ""]
    failed: Int[Array, ""]
    safe: Extrapolated | Halfway
    taken: Int[Array, ""]


@dataclass(frozen=True)
class NewtonSteps(Iteration[Safeguarded]):
    """Semismooth Newton steps on the normal map, or those of the ``safeguard`` for a while after a trial that failed."""

    safeguard: Iteration[Any]
    operator: Map
    symmetric: bool
    mu: Array
    tolerance: Array | float

    def begin(self, y: Array, force: Array, step: Array) -> Safeguarded:
        yes, none, error = jnp.ones((), bool), jnp.zeros((), int), jnp.full((), jnp.inf, y.dtype)
        return Safeguarded(y, force, step, error, yes, yes, none, self.safeguard.begin(y, force, step), none)

    def project(self, project: Map, ahead: Array) -> tuple[Array, Map]:
        return jax.linearize(project, ahead)

    def arrive(self, stand: Safeguarded, nearest: Array) -> tuple[Safeguarded, Array]:
        safe, point = one_of_two(stand.newton, (stand.safe, nearest), self.safeguard.arrive(stand.safe, nearest))
        return stand._replace(safe=safe), point

    def depart(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, slope: Map, stepping: Array
    ) -> Onward[Safeguarded]:
        after_trial = self._after_trial(stand, ahead, point, force, slope, stepping)
        after_safe_step = self._after_safe_step(stand, ahead, point, force, stepping)
        return one_of_two(stand.newton, after_trial, after_safe_step)

    def _after_trial(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, slope: Map, stepping: Array
    ) -> Onward[Safeguarded]:
        y, best_force, step, best, newton, fresh, failed, _, taken = stand
        g = (ahead - point) / step + force
        error = jnp.linalg.norm(g)
        enough = target(point, force, step, self.mu, self.tolerance)
        good = fresh | (error <= jnp.maximum(0.5 * best, enough))
        # what the safeguard has solved is given a Newton step, which gains digits
        met_at_first = (taken == 0) & (error <= enough)
        y, best_force, least = one_of_two(good, (point, force, error), (y, best_force, best))
        met = least <= target(y, best_force, step, self.mu, self.tolerance)
        last = jnp.where(fresh, met_at_first | ~jnp.isfinite(error), met)
        again = ~last & (good | (jnp.isfinite(error) & (failed < PATIENCE)))
        shrunk = jnp.where(fresh, 1.0, error / best)
        forcing = jnp.clip(0.5 * shrunk**2, 1e-6, 0.1)  # Eisenstat and Walker (1996), choice 2

        def newton_step(_: Array) -> Array:
            return _newton_step(slope, self.operator, point, g, step, forcing, self.symmetric, taken > INEXACT)

        move = if_wanted(stepping & newton & again, newton_step, jnp.zeros_like(point))
        failed, taken, no = jnp.where(good, 0, failed + 1), taken + good, jnp.zeros((), bool)
        safe = self.safeguard.begin(y, best_force, step)
        onward = jnp.where(again, ahead + move, y - step * best_force)
        moved = Safeguarded(y, best_force, step, least, again, no, failed, safe, taken)
        return Onward(moved, onward, last | (taken >= LIMIT))

    def _after_safe_step(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, stepping: Array
    ) -> Onward[Safeguarded]:
        safe, onward, done = self.safeguard.depart(stand.safe, ahead, point, force, None, stepping)
        best = stand.y, stand.force, stand.step
        y, best_force, step = one_of_two(done, (safe.y, safe.force, safe.step), best)
        taken, none = stand.taken + done, jnp.zeros((), int)
        moved = Safeguarded(y, best_force, step, stand.error, done, done, none, safe, taken)
        return Onward(moved, jnp.where(done, y - step * best_force, onward), taken >= LIMIT)


def _newton_step(
    derivative: Map, operator: Map, point: Array, g: Array, step: Array, forcing: Array, symmetric: bool, exact: Array
) -> Array:
    """dz for the normal map's value g at a point; 0 where it is not finite, which the next trial does not count."""
    right, identity = -step * derivative(g), jnp.eye(g.size, dtype=g.dtype)
    if g.size <= DENSE_LIMIT:
        # pushed forward side by side, in one pass over the data that keeps nothing: linearised first, it would keep every row's slopes
        h, d = jax.jacfwd(operator)(point), jax.vmap(derivative, out_axes=1)(identity)
        v = jnp.linalg.solve(identity - d + step * (d @ h), right)
        return _finite(v - step * (g + h @ v))
    hessian = jax.linearize(operator, point)[1]

    def factorised(wanted: Array) -> Array:
        columns = jnp.where(wanted, identity, 0.0)
        d, h = (jax.lax.map(multiply, columns, batch_size=TOGETHER).T for multiply in (derivative, hessian))
        return jnp.linalg.solve(identity - d + step * (d @ h), right)

    def product(u: Array) -> Array:
        du = derivative(u)
        return derivative(u - du + step * hessian(du))

    def mixed(v: Array) -> Array:
        return v - derivative(v - step * hessian(v))

    if not symmetric and g.size <= KRYLOV_STEPS:
        v = factorised(jnp.ones((), bool))
    else:
        exact = exact & (g.size <= FACTORISED)
        if symmetric:
            v = derivative(cg(product, right, tol=forcing, maxiter=jnp.where(exact, 1, KRYLOV_STEPS))[0])
        else:
            v = gmres(mixed, right, tol=forcing, restart=RESTART, maxiter=jnp.where(exact, 1, KRYLOV_STEPS // RESTART))[0]
        if g.size <= FACTORISED:
            v = if_wanted(exact, factorised, v)
    return _finite(v - step * (g + hessian(v)))


def _finite(dz: Array) -> Array:
    return jnp.where(jnp.isfinite(dz).all(), dz, 0.0)
