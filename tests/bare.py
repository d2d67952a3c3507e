"""Runs a script as if only some packages, and what they need, were installed: ``python -m tests.bare PACKAGE,... SCRIPT ...``.

All others are hidden from imports; if one was loaded all the same, that is an error.
"""

from __future__ import annotations

import re
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import Any

OURS = {"harness", "strategies", "tasks", "conf", "hydra_plugins"}  # an installed kvgate is the tree that is tested


def plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def closure(distributions: list[str]) -> set[str]:
    """These, and whatever they require without extras, by plain name; those that are not installed add nothing."""
    found: set[str] = set()
    while distributions:
        name = plain(distributions.pop())
        if name not in found:
            found.add(name)
            try:
                wanted = requires(name) or []
            except PackageNotFoundError:
                continue
            distributions += [re.split(r"[^\w.-]", one)[0] for one in wanted if "extra ==" not in one]
    return found


class Hiding(PathFinder):
    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname.split(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


if __name__ == "__main__":
    allowed = closure(sys.argv[1].split(","))
    by_module = packages_distributions()
    Hiding.hidden = frozenset(name for name, of in by_module.items() if not allowed & set(map(plain, of))) - OURS
    sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    if loaded := sorted(Hiding.hidden & {name.split(".")[0] for name in sys.modules}):
        sys.exit(f"hidden and loaded all the same: {', '.join(loaded)}")
