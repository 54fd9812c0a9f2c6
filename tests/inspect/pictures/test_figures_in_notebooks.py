"""What a notebook's backend sets when it is loaded is still set after hierfl's first figure."""

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
        from hierfl.inspect.pictures.style import house_style
        import matplotlib.pyplot as plt
        with house_style():
            plt.subplots()
        assert matplotlib.is_interactive()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
