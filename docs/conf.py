"""How `make docs` builds the site; the pages that are made from the code are written first."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sphinx.domains.python import PythonDomain  # noqa: E402

import heteroplace  # noqa: E402
from docs.pages import write_pages  # noqa: E402
from docs.pages.api import INTERNALS  # noqa: E402
from docs.pages.docstrings import to_rst  # noqa: E402

write_pages(ROOT / "docs" / "generated")

project = "heteroplace"
release = version = heteroplace.__version__
copyright = "the authors of heteroplace, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["README.md", "outputs"]
html_theme = "furo"
html_title = f"heteroplace {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_selector = "div:not(.output) > div.highlight > pre"
html_show_sourcelink = False
html_copy_source = False
default_role = "code"
highlight_language = "none"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries = False
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # two classes may have a member of one name
linkcheck_timeout = 20
linkcheck_retries = 2


class PublicPython(PythonDomain):
    """The domain of Python, whose search offers public names alone."""

    def get_objects(self):
        """Yield every name: pages come before members, and modules are left out (below 0)."""
        for name, shown, kind, page, anchor, priority in super().get_objects():
            if page.startswith(f"generated/{INTERNALS}/"):
                priority = -1
            elif kind in ("attribute", "method", "property"):
                priority = 2
            yield name, shown, kind, page, anchor, priority


def setup(app):
    """Docstrings become reStructuredText before napoleon reads them."""
    app.add_domain(PublicPython, override=True)

    def convert(_app, _what, _name, _object, _options, lines):
        lines[:] = to_rst(lines)

    app.connect("autodoc-process-docstring", convert, priority=400)
