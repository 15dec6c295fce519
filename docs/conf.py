"""Configuration of the documentation site (Sphinx with MyST-NB); `make docs` builds it.

The build needs no network: the theme's scripts, styles and fonts come with its package. Tutorials are Python files
(`tutorials/*.py`, py:percent). `make docs-execute` executes them and stores their outputs in a cache; `make docs` takes
the outputs from there.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "mirrored"
author = "the authors of mirrored"
version = release = importlib.metadata.version("mirrored")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "command_line",
    "gallery",
    "public_names",
]
exclude_patterns = ["_extensions"]
html_theme = "sphinx_book_theme"
html_title = "mirrored"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navigation_with_keys": False,
    "navbar_persistent": [],  # One search field: the sidebar's.
}
html_show_sourcelink = False

# Single backticks in docstrings are names or code.
default_role = "py:obj"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autosummary_generate = False
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Tutorials: Python files that Jupytext reads as notebooks.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = os.environ.get("MIRRORED_DOCS_CACHE", str(HERE.parent / "build" / "docs" / ".jupyter_cache"))
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_excludepatterns = ["conf.py"]

exclude_patterns += ["conf.py", "**/_*.py"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
