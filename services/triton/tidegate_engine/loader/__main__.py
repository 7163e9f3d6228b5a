"""`python -m tidegate_engine.loader`: settings in, follow the table, report; away after SIGTERM."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

from tidegate_engine.loader import server, settings
from tidegate_engine.loader.bookkeeping import Bookkeeping, Rules
from tidegate_engine.loader.loader import Loader
from tidegate_engine.loader.repository import Repository
from tidegate_engine.loader.settings import Settings
from tidegate_engine.loader.triton import Triton
from tidegate_process import logs, serving
from tidegate_process.listening import CannotListen, bind
from tidegate_process.settings import InvalidSettings
from tidegate_table.api_server import ApiServer, NotInCluster, in_cluster
from tidegate_table.following import Store, follow_config_map, follow_file

_log = logging.getLogger("tidegate_engine.loader")

# httpx2 has a line for each question to Triton, some every second.
_CHATTY = ("uvicorn.access", "uvicorn.error", "httpx2", "httpcore2")


class CannotStart(Exception):
    """What whoever starts a loader can put right; the message says what."""


def main() -> int:
    """Run the loader; returns the exit status of one that could not start."""
    try:
        given = settings.load(sys.argv[1:])
        logs.configure(given.log.level, chatty=_CHATTY)
        api = in_cluster(os.environ) if given.table.config_map else None
        asyncio.run(_serve(given, api))
    except (InvalidSettings, NotInCluster, CannotListen, CannotStart) as error:
        sys.stderr.write(f"tidegate_engine.loader cannot start:\n{error}\n")
    return 1


async def _serve(given: Settings, api: ApiServer | None) -> NoReturn:
    """Serve until told to leave, or until a part ends by itself; then end the process."""
    stop = serving.told_to_leave()
    listener = bind("http", given.http.host, given.http.port)
    engine = _triton(given)
    loader = _loader(given, engine)
    try:
        await loader.begin()
    except OSError as error:
        raise CannotStart(
            f"repository.local: cannot be used: {error.strerror}: {error.filename}"
        ) from None
    # Nobody's request here is worth a wait when the loader leaves.
    http = serving.server(server.application(loader.book), grace_s=1)
    http_task = asyncio.create_task(http.serve(sockets=[listener]))
    parts = {
        http_task,
        asyncio.create_task(_followed(given, loader, api)),
        asyncio.create_task(loader.run()),
    }
    _log.info("listening", extra={"http_port": listener.getsockname()[1]})
    stopping = asyncio.create_task(stop.wait())
    ended, _ = await asyncio.wait({stopping, *parts}, return_when=asyncio.FIRST_COMPLETED)
    for task in ended - {stopping}:
        _log.error("a part of the loader has ended", exc_info=task.exception())
    http.should_exit = True
    await asyncio.wait({http_task})
    _log.info("gone")
    logging.shutdown()
    # Not by way of the other tasks: a thread that copies a version cannot be stopped, and what it
    # leaves is removed at the next start.
    os._exit(0 if ended == {stopping} else 1)


def _loader(given: Settings, engine: Triton) -> Loader:
    rules = Rules(
        crashes=given.triton.crashes,
        bad_proofs=given.proof.failures,
        proof_interval_s=given.proof.interval_s,
        silent_s=given.proof.silent_s,
        retry_s=given.repository.retry_s,
    )
    repository = Repository(
        given.repository.path, given.repository.local, link=given.repository.fetch == "link"
    )
    return Loader(
        Bookkeeping(rules, given.name or socket.gethostname()),
        repository,
        engine,
        watched=given.triton.metrics,
        poll_s=given.triton.poll_s,
        connect_pause_s=given.triton.connect_pause_s,
        proof_timeout_s=given.proof.timeout_s,
    )


def _triton(given: Settings) -> Triton:
    return Triton(
        given.triton.address,
        given.triton.key.get_secret_value(),
        metrics=given.triton.metrics,
        ask_timeout_s=given.triton.ask_timeout_s,
        load_timeout_s=given.triton.load_timeout_s,
    )


def _followed(given: Settings, loader: Loader, api: ApiServer | None) -> Coroutine[Any, Any, None]:
    table = given.table
    if api is not None:
        return follow_config_map(
            table.config_map,
            loader,
            Store(table.folder),
            api=api,
            namespace=table.namespace,
            silent_s=table.silent_s,
        )
    assert table.file is not None  # noqa: S101  the settings have one of the two
    return follow_file(table.file, loader, interval_s=table.file_interval_s)


if __name__ == "__main__":
    sys.exit(main())
