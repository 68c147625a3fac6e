"""The documentation site: MyST pages, the public names from their docstrings, the command from click.

``make docs`` builds it into out/docs; every warning is an error.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mpicomp

project = "mpicomp"
copyright = "the mpicomp contributors"
version = release = mpicomp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_click",
    "sphinx_copybutton",
]
templates_path = []
smartquotes = False  # options begin with two hyphens, also in running text
html_theme = "furo"
html_title = f"mpicomp {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "none"  # the signature has them; napoleon's sections say what they mean
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"


def escape_bars(app, what, name, obj, options, lines):
    """Docstrings write magnitudes as |u|, which reStructuredText would take for a substitution."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[number] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in parts)


def setup(app):
    app.connect("autodoc-process-docstring", escape_bars)
