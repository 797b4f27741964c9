"""The documentation's structure: every public module and name is described, every page can be reached."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import holonom

DOCS = Path(__file__).parents[2] / "docs"
DEPRECATED, PROGRAMS = "holonom.soft", "holonom.cli"  # the command line has a page of its own
MODULES = sorted(
    f"holonom.{module.name}" for module in pkgutil.iter_modules(holonom.__path__) if not module.name.startswith("_")
)
API_MODULES = ["holonom", *(name for name in MODULES if name not in (DEPRECATED, PROGRAMS))]


def public_names(module: ModuleType) -> list[str]:
    """What a module exports: its ``__all__``, or what it defines."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return [name for name in getattr(module, "__all__", own) if not name.startswith("_")]


def undocumented(thing: object, name: str) -> list[str]:
    """Of a class or function and its public methods: those without a docstring or without types."""
    missing = [] if thing.__doc__ and not thing.__doc__.startswith(f"{name}(") else [f"{name}: no docstring"]
    if inspect.isfunction(thing):
        parameters = list(inspect.signature(thing).parameters.values())
        untyped = [p.name for p in parameters if p.annotation is p.empty and p.name not in ("self", "cls")]
        missing += [f"{name}: {p} has no type" for p in untyped]
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and not member.startswith("_") and not inspect.getdoc(getattr(thing, member)):
            missing.append(f"{name}.{member}: no docstring")
    return missing


@pytest.mark.parametrize("name", API_MODULES)
def test_public_names_have_docstrings_and_types(name):
    module = importlib.import_module(name)
    assert module.__doc__
    things = {name: getattr(module, name) for name in public_names(module)}
    kept = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [line for name, thing in kept.items() for line in undocumented(thing, name)] == []


def test_a_missing_docstring_would_be_seen():
    def bare(x):
        return x

    assert undocumented(bare, "bare") == ["bare: no docstring", "bare: x has no type"]


def test_every_public_module_is_in_the_api():
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.rst"))
    written = set(re.findall(r"^\.\. (?:auto)?(?:module|class|function):: (holonom[\w.]*)", pages, re.MULTILINE))
    homes = {**{name: name for name in API_MODULES[1:]}, "holonom.optimizer": "holonom.Langevin"}
    assert {home for home in homes.values() if home not in written} == set()


def test_every_page_can_be_reached():
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md") if "_" not in page.parts}
    pages |= {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.rst")}
    pages = {page for page in pages if not page.startswith("_")}
    reached = {"index"}
    for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]:
        folder = page.relative_to(DOCS).parent
        for tree in re.findall(r"```\{toctree\}\n(.*?)```|\.\. toctree::\n(.*?)\n\.\.", page.read_text(), re.DOTALL):
            lines = [line.strip() for line in "".join(tree).splitlines()]
            found = [re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")]
            reached |= {(folder / entry).as_posix() for entry in found}
    assert pages - reached == set()
    assert reached - pages == set()
