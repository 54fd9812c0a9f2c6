"""How the documentation is built: MyST pages whose cells run at the build, an error in one of which fails it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HIERFL_PROGRESS"] = "off"

# what kernels say of their transport is about other machines; here both ends are on this one
PROFILE = HERE / "_build" / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
WARNED = "warnings.formatwarning = lambda message, kind, *where, **more: f'{kind.__name__}: {message}\\n'"  # no file of this machine's
(PROFILE / "ipython_kernel_config.py").write_text(
    f"c.IPKernelApp.log_level = 40\nc.IPKernelApp.exec_lines = {['import warnings', WARNED]!r}\n"
)
os.environ["IPYTHONDIR"] = str(PROFILE.parent)

from sphinx.domains.python._object import PyObject  # noqa: E402

from hierfl.version import VERSION  # noqa: E402

project = "hierfl"
author = "the hierfl developers"
copyright = "the hierfl developers, Apache-2.0"
version = release = VERSION


def digest_of_the_code() -> str:
    """What cells printed is kept for as long as no file of hierfl changes."""
    files = sorted(path for folder in ("hierfl", "solvers", "models") for path in (HERE.parent / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "code_tables",
    "docstring_formulas",
    "gallery",
    "mathml",
    "public_names",
    "wide_outputs",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = False

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "cache"  # what has not changed is not run again; `make docs` on a clean clone runs everything
nb_execution_cache_path = str(HERE / "_build" / "cells" / digest_of_the_code())
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_merge_streams = True
nb_render_markdown_format = "gfm"
nb_mime_priority_overrides = [("html", "text/latex", 5)]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # one list, under the name that readers know
next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
napoleon_attr_annotations = False  # words say what a setting may be
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "hierfl"
html_static_path = ["_static"]
html_css_files = ["hierfl.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "hierfl"},
    "show_toc_level": 2,
    "secondary_sidebar_items": {"[!g]*": ["page-toc"], "gu*": ["page-toc"], "gallery/*": []},  # whose formulas are wide
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}
html_sidebars = {page: [] for page in ("index", "troubleshooting", "benchmarks", "reproductions")}
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True

linkcheck_ignore = [r"https?://.*"]  # what the network says is not the site's to prove


OUTCOMES = ("hierfl.result", "hierfl.runs", "hierfl.sweeping", "hierfl.study.comparison", "hierfl.inspect", "hierfl.compiler")


def without_making(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None) -> tuple[str, str | None] | None:
    """Leave out how outcomes and errors are made, which only hierfl does."""
    made = signature and (what == "exception" or (what == "class" and obj.__module__.startswith(OUTCOMES)))
    return ("", None) if made else (signature.replace("1000000000000000.0", "1e15"), returned) if signature else None


def together(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Read names that a docstring explains together, ``rounds, seed``, as one entry: napoleon takes the others for a type, or repeats the text."""
    for place, (line, after) in enumerate(pairwise(lines)):
        if re.fullmatch(r"\w+(, \w+)+", line) and after.startswith("    ") and not line.endswith("Error"):
            lines[place] = line.replace(", ", "/\u200b")  # a blank would part a type from a name


def setup(app: Any) -> None:
    """Connect what this page defines."""
    app.connect("autodoc-process-docstring", together, priority=400)
    app.connect("autodoc-process-signature", without_making)
