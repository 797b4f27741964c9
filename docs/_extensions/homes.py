"""References to a name by another path than the one it is documented under: ``holonom.partition``, private modules."""

import importlib
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def named(path: str) -> Any:
    """What a dotted path leads to, or None."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found
    return None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """The documented object of the same name that is the same object."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("holonom.") or (thing := named(target)) is None:
        return None
    last = target.rpartition(".")[2]
    for path in env.domaindata["py"]["objects"]:
        if path.rpartition(".")[2] == last and named(path) is thing:
            domain = env.get_domain("py")
            return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], path, node, content)
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
