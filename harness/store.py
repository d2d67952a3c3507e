"""The only writer of results.

Immutable part files, one writer each, each whole or not there. A cell's folder is named by the hash of what was asked;
its records are the union of its parts; its finish mark comes last. Nothing is ever rewritten in place, so a reader, a second
writer or a kill at any moment cannot corrupt what is there. On a disk and in an object store alike (``harness.places``).

::

    results/                                a folder, or s3://bucket/prefix
      cells/<address>/ask.json              what was asked: the address is its hash
                      loaded.json           what became known on loading (resolved dtype, devices)
                      part-*.jsonl          records, one a line, each with its checksum
                      finished-<samples>    empty: every sample of that set has a record
                      damaged/              part files that held a damaged line, moved aside
      loads/<address>/                      of a timed load: the same, its lines are measurements
      samples/<key>.parquet                 the samples of a task, made once
      looks/<pair>/<number>.json            one file for each set of samples a pair of cells was tested on
      runs/<name>/                          what one command made; it points at cells
      jobs/<session>/<number>.json          what came of each shard of one command, until that was told; .taken: whose it is
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from harness.places import Place, create, place, read_all, remove, write_atomic
from harness.s3 import S3Path
from harness.types import BadInput, Measurement, Record, State, canonical, digest

Line = TypeVar("Line", Record, Measurement)

READ_TRIES = 20  # reads of a cell while others merge its parts
_LINE = re.compile(r'\{"checksum":"(?P<checksum>[0-9a-f]{16})","record":(?P<record>.*)\}')
MERGE_ABOVE = 1  # parts of a finished cell are merged into one file when there are more than this


class Damage(NamedTuple):
    """A line that is not a whole record."""

    file: Place
    line: int
    reason: str

    def __str__(self) -> str:
        return f"damaged record: {self.file}, line {self.line}: {self.reason}"


@contextmanager
def told(folder: Place) -> Iterator[None]:
    """Raise BadInput where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"results_dir: {folder} could not be written ({error.strerror or error}); "
            "what was written before is kept: start the run again to go on"
        ) from error


def _lines(content: bytes) -> list[str]:
    """The lines of a part. A damaged byte may not even be text; it must cost one line, not the file."""
    return content.decode("utf-8", errors="replace").splitlines()


def _line(record: Record | Measurement) -> str:
    """``{"checksum":"...","record":...}``: the checksum is of the record's text as it stands in the line."""
    text = canonical(record.to_json())
    return f'{{"checksum":"{_checksum(text)}","record":{text}}}'


def _body(line: str) -> dict[str, Any]:
    """Raises ValueError if the line is not whole."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise ValueError("not a line of checksum and record")
    if _checksum(parts["record"]) != parts["checksum"]:
        raise ValueError("checksum does not match")
    return dict(json.loads(parts["record"]))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rank(record: Record) -> int:
    """Of several records of one sample the lowest is believed: an answer, one for which something was lost, then the model's
    failure, then ours."""
    if record.state is State.FAILED:
        return 5 if record.fault == "infrastructure" else 4
    if record.state is State.NOT_RUN:
        return 6
    return (record.state is State.TRUNCATED) + (0 if record.final else 2)


class Parts(ABC, Generic[Line]):
    """One folder of part files, whose lines are of one kind."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.address = folder.name

    @abstractmethod
    def _parse(self, body: dict[str, Any]) -> Line:
        """Raises ValueError, KeyError or TypeError if it is no such line."""

    @abstractmethod
    def _key(self, record: Line) -> tuple[str, str]:
        """Of the lines with one key the best counts."""

    def _rank(self, record: Line) -> int:
        """The lowest is the best."""
        return 0

    def _read(self) -> tuple[dict[tuple[str, str], Line], list[Damage]]:
        """The best record of every key. Read again if another writer merged parts meanwhile."""
        found: tuple[dict[tuple[str, str], Line], list[Damage]] = ({}, [])
        for _ in range(READ_TRIES):
            before = self._parts()
            try:
                found = self._read_files(before)
            except FileNotFoundError:
                continue
            after = set(self._parts())
            if after.issuperset(before) and (before or not after):
                break
        return found

    def _parts(self) -> list[Place]:
        return sorted(self.folder.glob("part-*.jsonl"), key=str)

    def _read_files(self, files: list[Place]) -> tuple[dict[tuple[str, str], Line], list[Damage]]:
        records: dict[tuple[str, str], Line] = {}
        damaged = []
        for file, content in zip(files, read_all(files), strict=True):
            for number, line in enumerate(_lines(content), start=1):
                try:
                    record = self._parse(_body(line))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    damaged.append(Damage(file, number, f"{type(error).__name__}: {error}"))
                    continue
                key = self._key(record)
                if key not in records or self._rank(record) < self._rank(records[key]):
                    records[key] = record
        return records, damaged

    def repair(self) -> list[Damage]:
        """Move every part with a damaged line aside, keeping its whole lines. Returns what was damaged."""
        _, damaged = self._read()
        for file in sorted({damage.file for damage in damaged}):
            bad = {damage.line for damage in damaged if damage.file == file}
            try:
                content = file.read_bytes()
            except FileNotFoundError:  # another repaired it meanwhile
                continue
            whole = [line for number, line in enumerate(_lines(content), start=1) if number not in bad]
            write_atomic(self.folder / "damaged" / file.name, content)
            if not whole or self._write_part(whole) != file:  # a name is the hash of whole lines: it may be the same
                file.unlink(missing_ok=True)
        if damaged:
            remove(self.folder.glob("finished-*"))
        return damaged

    def append(self, records: Iterable[Line]) -> None:
        """Add records as one new part file. Raises BadInput if it cannot be written; then nothing of it is there."""
        with told(self.folder):
            self._write_part([_line(record) for record in records])

    def _write_part(self, lines: list[str]) -> Place:
        text = "\n".join(lines) + "\n"
        name = f"part-{hashlib.sha256(text.encode()).hexdigest()[:20]}.jsonl"
        write_atomic(self.folder / name, text)
        return self.folder / name

    def finish(self, samples: str) -> None:
        """Mark that every sample of the set with this hash has a record, and merge the parts into one file.

        Only parts whose records the merged file holds are removed, after it is in place; so whatever two writers do at
        once, every record stays in some file. Raises BadInput as ``append`` does.
        """
        with told(self.folder):
            self._merge()
            write_atomic(self.folder / f"finished-{samples}", "")

    def _merge(self) -> None:
        parts = self._parts()
        if len(parts) > MERGE_ABOVE:
            records, damaged = self._read()
            if not damaged:
                merged = self._write_part([_line(records[key]) for key in sorted(records)])
                remove(part for part in parts if part != merged)

    def finished(self, samples: str) -> bool:
        return (self.folder / f"finished-{samples}").exists()

    def note_loaded(self, facts: Mapping[str, Any]) -> None:
        """Store what became known by loading; refuse to add records to a cell that was loaded otherwise."""
        path = self.folder / "loaded.json"
        with told(self.folder):
            first = create(path, canonical(facts))
        if not first and (before := json.loads(path.read_text(encoding="utf-8"))) != json.loads(canonical(facts)):
            raise BadInput(f"cell {self.address} was run as {before}, now the model loads as {dict(facts)}; not mixed")

    def loaded(self) -> dict[str, Any]:
        """What became known by loading; empty if nothing was."""
        return self._facts("loaded.json")

    def asked(self) -> dict[str, Any]:
        """What was asked of this cell; empty if it was never noted."""
        return self._facts("ask.json")

    def _facts(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


class Cell(Parts[Record]):
    """One cell's folder."""

    def _parse(self, body: dict[str, Any]) -> Record:
        return Record.from_json(body)

    def _key(self, record: Record) -> tuple[str, str]:
        return record.sample_id, record.sample_hash

    def _rank(self, record: Record) -> int:
        return _rank(record)

    def read(self, hashes: Mapping[str, str] | None = None) -> tuple[dict[str, Record], list[Damage]]:
        """Records by sample id, and what was damaged.

        Args:
            hashes: The samples wanted, id to hash. Records of other samples, or of a sample that has since changed under its
                id, are left out. None gives all; of a changed sample any.
        """
        records, damaged = self._read()
        wanted = {
            sample: record
            for (sample, sample_hash), record in records.items()
            if hashes is None or hashes.get(sample) == sample_hash
        }
        return wanted, damaged


class LoadCell(Parts[Measurement]):
    """The folder of one setting under one load."""

    def _parse(self, body: dict[str, Any]) -> Measurement:
        return Measurement.from_json(body)

    def _key(self, record: Measurement) -> tuple[str, str]:
        return record.trial, ""

    def read(self) -> tuple[dict[str, Measurement], list[Damage]]:
        """Measurements by trial, oldest first by the clocks that they were taken with, and what was damaged.

        A clock that jumps changes this order, on which nothing that is decided rests.
        """
        found, damaged = self._read()
        ordered = sorted(found.values(), key=lambda one: (one.began, one.trial))
        return {one.trial: one for one in ordered}, damaged


class ResultStore:
    """A results folder, on a disk, a network share or in an object store. Many may read and write it at once."""

    def __init__(self, root: Place | str) -> None:
        self.root = place(root)

    def problems(self) -> list[str]:
        """Why nothing can be written here, found by trying."""
        if isinstance(self.root, S3Path):
            return [f"results_dir {problem}" for problem in (self.root.problem(),) if problem]
        probe = self.root / f".probe-{uuid.uuid4().hex}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            return [f"results_dir must be a folder that can be written, got {self.root} ({error.strerror or error})"]
        return []

    def cell(self, address: str) -> Cell:
        return Cell(self.root / "cells" / address)

    def load(self, address: str) -> LoadCell:
        return LoadCell(self.root / "loads" / address)

    def ask(self, ask: Mapping[str, Any]) -> str:
        """The address of the cell that answers ``ask``."""
        return digest(ask, 24)

    def note_ask(self, ask: Mapping[str, Any], kind: Literal["cells", "loads"] = "cells") -> None:
        create(self.root / kind / self.ask(ask) / "ask.json", json.dumps(ask, indent=1, sort_keys=True))

    def samples_file(self, key: str) -> Place:
        return self.root / "samples" / f"{key}.parquet"

    def run(self, name: str) -> Place:
        return self.root / "runs" / name

    def runs(self, *names: str) -> Iterator[tuple[dict[str, Any], ...]]:
        """These files of every run that has them all; one that is damaged or not finished is passed over."""
        first: list[Place] = sorted(self.root.glob(f"runs/*/{names[0]}"), key=str)
        for file in first:
            try:
                found = tuple(json.loads((file.parent / name).read_text(encoding="utf-8")) for name in names)
            except (OSError, ValueError):
                continue
            yield found

    def job(self, name: str) -> Place:
        return self.root / "jobs" / name

    def look(self, pair: str, samples: str, promise: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Count this test of a pair of cells on a set of samples.

        Testing the same samples again is the same look. Looks are never forgotten, nor what was promised before the first.
        Their order is that of their numbers, each of which one writer alone can take: no clock has a say.

        Args:
            pair: Which two cells are compared.
            samples: Hash of the set of samples.
            promise: The gate as it stands now.

        Returns:
            Which look this is, from 1, and the promise that the first look was made under.
        """
        folder = self.root / "looks" / pair
        while samples not in (looks := _looks(folder)):
            create(folder / f"{len(looks) + 1:06}.json", canonical({"samples": samples, "promise": promise}))
        return 1 + list(looks).index(samples), next(iter(looks.values()))


def store_of(results_dir: str) -> tuple[ResultStore | None, list[str]]:
    """The store that an option names, and why nothing can be written there."""
    try:
        store = ResultStore(results_dir)
    except BadInput as error:
        return None, error.problems
    return store, store.problems()


def _looks(folder: Place) -> dict[str, dict[str, Any]]:
    """What was promised when each set of samples was looked at, the first first.

    Of before looks had numbers, one is named by its samples, and its clock says when it was.
    """
    found = [(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    found.sort(key=lambda one: (one[1].get("time_ns", math.inf), one[0]))
    return {facts.get("samples", stem): facts["promise"] for stem, facts in found}
