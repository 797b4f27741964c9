"""Settings of the documentation site; ``make docs`` builds it. Nothing is fetched when a page is viewed."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

import holonom  # noqa: E402

project = "holonom"
author = "the holonom authors"
copyright = author
version = release = holonom.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",
    "docstrings",
    "executed",
    "homes",
    "mathml",
]
exclude_patterns = ["_build", "results/**"]
root_doc = "index"
suppress_warnings = ["image.not_readable"]  # tests/docs checks that pictures exist


# Pages
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "anchors.slug"
myst_dmath_double_inline = True
html_math_renderer = "mathml"
executed_pages = ["start", "tutorials/*"]
copybutton_prompt_text = ">>> "
copybutton_copy_empty_lines = True

# The API
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 80
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

# The theme
html_theme = "furo"
html_title = f"holonom {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5a8a", "color-brand-content": "#0b5a8a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f0", "color-brand-content": "#7cc4f0"},
}


def open_files(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Numbers and figures open in the browser instead of being saved."""
    context["body"] = context.get("body", "").replace('download="" href', "href")


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", open_files)
