"""Keys, limits and slow clients over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from attend_service.keys import FILE, KeyFile
from attend_service.security import MAX_HEADERS
from attend_service.server import CannotServe, NotAllowed, check_reach
from attend_service.settings import ServerSettings
from tests import warm
from tests.service.test_server import LIMIT, finished

ELSEWHERE = "192.0.2.1"
Place = tuple[str, int]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[Any, Place]]:
    process = warm.start("-m", "service", "--data", folder, "--port", "0", "--json", *arguments)
    try:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        address = urlsplit(json.loads(line)["address"])
        yield process, (str(address.hostname), int(address.port or 0))
    finally:
        process.kill()
        process.communicate()


def status(
    place: Place, path: str, headers: Mapping[str, str] = {}, method: str = "GET"
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*place, timeout=LIMIT)
    connection.request(method, path, headers=dict(headers))
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content


def test_a_running_server_follows_changes_of_its_keys(tmp_path: Path) -> None:
    file, path = KeyFile(tmp_path), "/v1/collections"
    with served(tmp_path) as (process, place):
        assert status(place, path)[0] == 200
        added = warm.run("-m", "service", "keys", "add", "--data", tmp_path, "--json")
        made = json.loads(added.stdout)
        key = {"Authorization": f"Bearer {made['key']}"}
        assert status(place, path)[0] == 401
        assert status(place, path, key)[0] == 200
        assert status(place, path, {"X-Api-Key": made["key"]})[0] == 200
        assert status(place, "/v1/collections/books", key, "DELETE")[0] == 403
        wrong = made["key"][:-3] + "zzz"
        assert status(place, path, {"X-Api-Key": wrong})[0] == 401
        file.remove(made["id"])
        assert status(place, path, key)[0] == 401
        assert status(place, path)[0] == 401, "without its last key it is open to everyone"
        assert status(place, "/healthz")[0] == 200
        process.terminate()
        _, told = process.communicate(timeout=LIMIT)
    assert told.count("a key was refused: GET /v1/collections from 127.0.0.1") == 2
    assert made["key"].split("_", 2)[2][:10] not in told


def test_keys_may_be_asked_for_before_there_are_any(tmp_path: Path) -> None:
    with served(tmp_path, "--require-keys") as (_, place):
        assert status(place, "/v1/collections")[0] == 401
        _, text = KeyFile(tmp_path).add()
        assert status(place, "/v1/collections", {"X-Api-Key": text})[0] == 200


def test_headers_have_a_limit(tmp_path: Path) -> None:
    with served(tmp_path) as (_, place):
        fits, large = ({"X-Filler": "x" * size} for size in (MAX_HEADERS // 2, MAX_HEADERS))
        assert status(place, "/healthz", fits)[0] == 200
        code, sentence = status(place, "/healthz", large)
        assert code == 431
        assert f"{MAX_HEADERS:,}" in json.loads(sentence)["detail"]
        assert status(place, "/healthz", {"Transfer-Encoding": "gzip"}) == (400, "")
        # granian itself refuses what no buffer of that size holds, without a body.
        assert status(place, "/healthz", {"X-Filler": "x" * 5 * MAX_HEADERS}) == (431, "")


def test_what_is_no_origin_is_wrong_usage(tmp_path: Path) -> None:
    done = finished("--data", str(tmp_path), "--port", "0", "--cors-origin", "*")
    assert done.returncode == 2
    assert "'*' is not an origin" in done.stderr


# -- where it listens ---------------------------------------------------------------------------


def test_elsewhere_only_with_keys_or_a_word(tmp_path: Path) -> None:
    for near in ("127.0.0.1", "127.3.2.1", "::1"):
        check_reach(near, ServerSettings(), tmp_path)
    with pytest.raises(NotAllowed, match="--allow-remote-without-keys"):
        check_reach(ELSEWHERE, ServerSettings(), tmp_path)
    check_reach(ELSEWHERE, ServerSettings(allow_remote_without_keys=True), tmp_path)
    check_reach(ELSEWHERE, ServerSettings(require_keys=True), tmp_path)
    key = KeyFile(tmp_path).add()[0]
    check_reach(ELSEWHERE, ServerSettings(), tmp_path)
    KeyFile(tmp_path).remove(key.id)
    with pytest.raises(NotAllowed, match="keys add"):
        check_reach(ELSEWHERE, ServerSettings(), tmp_path)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(CannotServe, match="cannot be read as API keys"):
        check_reach("127.0.0.1", ServerSettings(), tmp_path)


def settings_at(address: str, **options: Any) -> Any:
    return ServerSettings(**options).at(address)


def test_a_server_elsewhere_is_not_opened_by_the_removal_of_its_last_key() -> None:
    assert settings_at(ELSEWHERE).require_keys
    assert not settings_at(ELSEWHERE, allow_remote_without_keys=True).require_keys
    assert not settings_at("127.0.0.1").require_keys
    assert settings_at("127.0.0.1", require_keys=True).require_keys


def test_a_server_on_loopback_answers_to_its_own_names_alone() -> None:
    assert "localhost" in settings_at("127.0.0.1", allow_remote_without_keys=True).trusted_host
    assert settings_at(ELSEWHERE).trusted_host == ()
    named = settings_at(ELSEWHERE, trusted_host=("a.example",)).trusted_host
    assert {"a.example", ELSEWHERE} <= set(named)
