"""The files that a study's analyst fetches, made once and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

from penstock import __version__
from penstock.base.documents import Json
from penstock.wire.messages import Copies
from penstock_server.store.register import StudyRow
from penstock_server.studies.coordinator import Coordinator

LISTING = "listing.json"
_TEMPORARY = ".making-"


class ResultFiles:
    """Pulled files below ``folder/cache``, one folder for a study, its copies, and this version.

    A finished study never changes, so neither do they; another version may render another report.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._root = coordinator.folder.root / "cache"
        # One at a time: a large study takes all processors, and waiting must not hold threads.
        self._making = anyio.CapacityLimiter(1)

    def clean(self) -> None:
        """Remove what a crash, or another version, has left behind."""
        for folder in self._root.glob("*"):
            if not folder.name.endswith(f"-{__version__}") or folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)

    async def listing(self, row: StudyRow, *, copies: Copies) -> list[Json]:
        """Name, size and SHA-256 of every file of a finished study.

        Raises:
            CoordinatorError: the study has no results.
        """
        folder = self._folder(row, copies)
        if not await anyio.to_thread.run_sync((folder / LISTING).exists):
            await anyio.to_thread.run_sync(self._make, row.id, folder, copies, limiter=self._making)
        text = await anyio.to_thread.run_sync((folder / LISTING).read_text)
        found: list[Json] = json.loads(text)
        return found

    async def path(self, row: StudyRow, name: str, *, copies: Copies) -> Path | None:
        """One file of the listing, or None: which there are depends on the study's mechanism."""
        found = await self.listing(row, copies=copies)
        listed = any(file["name"] == name for file in found)
        return self._folder(row, copies) / name if listed else None

    def _folder(self, row: StudyRow, copies: Copies) -> Path:
        return self._root / f"{row.id}-{copies}-{__version__}"

    def _make(self, study_id: str, folder: Path, copies: Copies) -> None:
        if (folder / LISTING).exists():
            return  # made while this request waited
        # Here, not above: the API needs no statistics and no plots until somebody pulls.
        from penstock_server.results import production

        self._root.mkdir(mode=0o700, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self._root))
        try:
            files = production.pull_results(self._coordinator, study_id, made, copies=copies)
            found = [_describe_file(f) for f in files]
            (made / LISTING).write_text(json.dumps(found))
            # Whole or not at all; another process that was faster has made the same files.
            with contextlib.suppress(OSError):
                os.rename(made, folder)
            if not (folder / LISTING).exists():
                os.rename(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _describe_file(file: Path) -> Json:
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"name": file.name, "size": file.stat().st_size, "sha256": digest}
