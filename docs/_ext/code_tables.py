"""Tables that are read from the code: atoms, families of sets, and the choice of a projection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from cvxpy import cumprod
from cvxpy.atoms.affine.affine_atom import AffAtom
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from hierfl.atoms import table as atoms
from hierfl.atoms.row import AtomRow
from hierfl.compiler.sets.blocks import KINDS
from hierfl.compiler.sets.families import FAMILIES


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> nodes.table:
    """A table of texts; what stands between backquotes is code."""
    table, group = nodes.table(), nodes.tgroup(cols=len(head))
    table += group
    for width in widths:
        group += nodes.colspec(colwidth=width)
    header, body = nodes.thead(), nodes.tbody()
    header += _row(head)
    body += [_row(row) for row in rows]
    group += [header, body]
    return table


def _row(cells: Sequence[str]) -> nodes.row:
    row = nodes.row()
    for text in cells:
        entry, paragraph = nodes.entry(), nodes.paragraph()
        for place, part in enumerate(text.split("`")):
            paragraph += nodes.literal(part, part) if place % 2 else nodes.Text(part)
        entry += paragraph
        row += entry
    return row


def opening(documented: Any) -> str:
    """The first line of its own docstring, what is code in it between single backquotes; an inherited one says nothing of it."""
    told = (documented.__doc__ or "").strip().split("\n")[0].replace("``", "`")
    if not told or told.count("`") % 2:
        raise ValueError(f"{documented!r} has no first line that a table can show.")
    return told


class AtomTable(Directive):
    """Every class of CVXPY's atoms, the family it is in, and what is known of it."""

    def run(self) -> list[nodes.Node]:
        """One table for each family, and one of the refused."""
        found: list[nodes.Node] = []
        for family in atoms.FAMILIES:
            compiled = [row for row in family.ROWS if row.lower is not None and row.classes]
            if not compiled:
                continue
            title, _, _ = opening(family).partition(". ")  # what follows is for whoever changes it
            found.append(nodes.rubric("", title.rstrip(".")))
            rows = [[_names(row), *_known(row)] for row in compiled]
            found.append(table_of(("atom", "kinks", "curvature", "formula"), rows, (40, 20, 20, 20)))
        refused = sorted(atoms.refused_atoms().items(), key=lambda pair: pair[0].__name__)
        found.append(nodes.rubric("", "Refused, by name"))
        found.append(table_of(("atom", "because"), [(f"`{kind.__name__}`", why) for kind, why in refused], (30, 70)))
        return found


def _names(row: AtomRow) -> str:
    return ", ".join(f"`{kind.__name__}`" for kind in row.classes if not kind.__name__.startswith("_"))


def _known(row: AtomRow) -> Iterator[str]:
    """What rows say of kinks, of curvature, and of formulas."""
    affine = all(issubclass(kind, AffAtom) and kind is not cumprod for kind in row.classes)  # which CVXPY calls affine
    if not (row.kinked or row.opaque):
        yield "none"
    else:
        yield "told by their cause" if row.switches is not None else "found by search"
    bounded = row.curvature is not None or row.second_derivative is not None
    yield "bounded" if bounded else "affine" if affine else "not known"
    yield "yes" if affine or row.formula is not None else "no"


class FamilyTable(Directive):
    """The families of sets of one convex term."""

    def run(self) -> list[nodes.Node]:
        """One row for each family of the compiler's catalogue."""
        rows = [(family.name, opening(family), family.cost) for family in FAMILIES]
        return [table_of(("set", "what it is", "cost of a projection"), rows, (20, 50, 30))]


class ProjectionTable(Directive):
    """The kinds of projection, in the order in which the compiler tries them."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """One row for each kind."""
        rows = [(str(place), opening(kind)) for place, kind in enumerate(KINDS, 1)]
        return [table_of(("tried", "what it projects on, and how"), rows, (10, 90))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the three directives."""
    app.add_directive("atom-table", AtomTable)
    app.add_directive("family-table", FamilyTable)
    app.add_directive("projection-table", ProjectionTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
