"""Figures in notebooks: what the backend sets when it is loaded is still set after hierfl's first figure, and each is drawn once."""

import subprocess
import sys
import textwrap


def test_the_first_figure_leaves_what_its_backend_set() -> None:
    # a backend that turns "interactive" on when it is loaded, as that of notebooks does
    code = """
        import sys, types
        import matplotlib
        from matplotlib.backends import backend_agg

        class Loaded(types.ModuleType):
            pass

        backend = Loaded("a_notebooks_backend")
        for name in ("FigureCanvas", "FigureManagerBase"):
            setattr(backend, name, getattr(backend_agg, name, None) or getattr(matplotlib.backend_bases, name))

        class Finder:
            def find_spec(self, name, path=None, target=None):
                from importlib.machinery import ModuleSpec
                return ModuleSpec(name, self) if name == "a_notebooks_backend" else None
            def create_module(self, spec):
                return backend
            def exec_module(self, module):
                matplotlib.interactive(True)

        sys.meta_path.insert(0, Finder())
        matplotlib.use("module://a_notebooks_backend", force=False)
        matplotlib.rcParams["backend"] = "module://a_notebooks_backend"
        from hierfl.house_style import house_style
        import matplotlib.pyplot as plt
        with house_style():
            plt.subplots()
        assert matplotlib.is_interactive()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_figure_is_drawn_once_whether_it_is_the_value_of_a_cell_or_not() -> None:
    code = """
        from IPython.core.formatters import DisplayFormatter
        from IPython.core.interactiveshell import InteractiveShell

        class Shell(InteractiveShell):
            def enable_gui(self, gui=None):
                pass  # a notebook has none

        drawn = []

        class Counted(DisplayFormatter):
            def format(self, shown, *given, **settings):
                data, metadata = super().format(shown, *given, **settings)
                drawn.append("image/png" in data)
                return data, metadata

        shell = Shell.instance(active_types=["text/plain", "image/png"])
        shell.display_formatter = Counted(parent=shell, active_types=["text/plain", "image/png"])
        shell.run_line_magic("matplotlib", "inline")
        shell.run_cell("import hierfl as hf; federation = hf.Federation([hf.Client()])")
        for cell in ("federation.plot()", "federation.plot();", "kept = federation.plot(); kept", "kept"):
            drawn.clear()
            shell.run_cell(cell).raise_error()
            assert sum(drawn) == 1, (cell, drawn)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
