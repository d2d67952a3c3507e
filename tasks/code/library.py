"""The standard library of ``tasks/corpus.py`` file by file, as syntax trees that know their place in the whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from tasks import corpus


class File(NamedTuple):
    """One file: its lines as an editor counts them, its tree, and where in ``corpus.code().lines`` each line stands."""

    name: str
    lines: tuple[str, ...]
    tree: ast.Module
    places: tuple[int, ...]


def files() -> Iterator[File]:
    """All files, in the order of the corpus; blank lines have the place of the line before them.

    They are parsed anew each time: the trees of all together would hold a lot of memory.
    """
    code = corpus.code()
    for name, group in groupby(range(len(code.lines)), key=lambda at: code.files[at]):
        mine = list(group)
        text = "".join(code.lines[at] for at in mine)
        places = tuple(at for at in mine for _ in range(code.lines[at].count("\n")))
        yield File(name, tuple(text.split("\n")[:-1]), ast.parse(text), places)
