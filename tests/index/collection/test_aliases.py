"""Aliases: one name that leads to a collection, whoever switches it and whenever."""

from __future__ import annotations

import threading

import pytest

from attend.collection.data import Data
from attend.core.errors import (
    CollectionExists,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    ReadOnly,
    UnknownAlias,
    UnknownCollection,
)
from attend.engines.local import Aliases
from tests import warm
from tests.index.helpers import run_index, vector_data


@pytest.fixture
def data(tmp_path):
    made = vector_data(tmp_path)
    for name in ("one", "two"):
        made.create(name, dimension=2).upsert([{"id": name, "vector": [1, 0]}])
    return made


def answered(data, name="live") -> str:
    return data.collection(name).search([1, 0]).hits[0].id


def test_a_name_leads_to_a_collection_and_is_switched(data, tmp_path):
    theirs = vector_data(tmp_path)
    assert data.set_alias("live", "one")
    assert answered(data) == answered(theirs) == "one"
    assert not theirs.set_alias("live", "two")
    assert answered(data) == answered(theirs) == "two"
    assert data.aliases() == vector_data(tmp_path).aliases() == {"live": "two"}
    assert data.names() == ["one", "two"]
    assert data.resolve("live") == "two"
    assert data.collection("live").name == "two"
    assert data.ensure("live") is data.collection("two")
    data.drop_alias("live")
    with pytest.raises(UnknownCollection, match=r"no collection 'live'.*one, two"):
        answered(theirs)
    assert answered(theirs, "two") == "two"


def test_no_name_is_both(data):
    data.set_alias("live", "one")
    with pytest.raises(CollectionExists, match="'live' is an alias of the collection 'one'"):
        data.create("live", dimension=2)
    with pytest.raises(CollectionExists, match="an alias cannot have its name"):
        data.set_alias("two", "one")
    with pytest.raises(CollectionExists, match="an alias cannot have its name"):
        Aliases(data.folder).put("two", "one")  # as a process that looked before it was made
    with pytest.raises(InvalidRequest, match="is an alias itself, of 'one'"):
        data.set_alias("other", "live")
    assert data.aliases() == {"live": "one"}
    assert sorted(path.name for path in data.folder.iterdir()) == ["collections"]


def test_a_collection_with_an_alias_stays(data):
    data.set_alias("live", "one")
    with pytest.raises(Conflict, match="'one' is the target of live"):
        data.drop("one")
    with pytest.raises(Conflict, match="'live' is an alias of the collection 'one'"):
        data.drop("live")
    data.set_alias("live", "two")
    data.drop("one")
    assert answered(data) == "two"


def test_a_folder_to_be_read_only_keeps_its_aliases(data, tmp_path):
    data.set_alias("live", "one")
    reader = Data(tmp_path, read_only=True)
    assert answered(reader) == "one"
    for refused in (lambda: reader.set_alias("live", "two"), lambda: reader.drop_alias("live")):
        with pytest.raises(ReadOnly):
            refused()
    assert reader.aliases() == {"live": "one"}


def test_an_alias_that_leads_nowhere_says_so(data, tmp_path):
    with pytest.raises(UnknownCollection, match="no collection 'three'"):
        data.set_alias("live", "three")
    Aliases(tmp_path).put("live", "three")
    with pytest.raises(UnknownCollection, match="alias 'live' leads to the collection 'three'"):
        data.collection("live")
    with pytest.raises(UnknownAlias, match="no alias 'dead'"):
        data.drop_alias("dead")
    with pytest.raises(UnknownAlias, match="no alias 'one'"):
        data.drop_alias("one")
    assert answered(data, "one") == "one"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "-x", "x" * 64])
def test_an_alias_cannot_leave_the_folder(data, name):
    for refused in (lambda: data.set_alias(name, "one"), lambda: data.drop_alias(name)):
        with pytest.raises(InvalidRequest, match="is no collection name"):
            refused()


def test_a_collection_kept_elsewhere_is_no_alias(data, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "collections" / "one").rename(elsewhere)
    (tmp_path / "collections" / "one").symlink_to(elsewhere)
    assert (data.names(), data.aliases()) == (["one", "two"], {})
    assert answered(vector_data(tmp_path), "one") == "one"


def test_aliases_are_limited(data, monkeypatch):
    monkeypatch.setattr("attend.collection.data.MAX_ALIASES", 1)
    data.set_alias("live", "one")
    with pytest.raises(LimitExceeded, match="at most 1"):
        data.set_alias("other", "one")
    data.set_alias("live", "two")


def test_every_search_during_a_switch_is_answered(data):
    data.set_alias("live", "one")
    wrong, stop = [], threading.Event()

    def search():
        while not stop.is_set():
            try:
                found = answered(data)
                if found not in ("one", "two"):
                    wrong.append(found)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for at in range(100):
        data.set_alias("live", ("two", "one")[at % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_command_line_lists_sets_and_deletes(data, tmp_path):
    made = run_index("alias", "live", "one", "--data", tmp_path)
    assert made.stdout.splitlines() == ["alias  collection", "live   one"]
    assert answered(data) == "one"
    assert '{"aliases": {"live": "one"}}' in run_index("alias", "--data", tmp_path, "--json").stdout
    found = run_index("search", "[1, 0]", "--data", tmp_path, "--collection", "live")
    assert "one" in found.stdout
    assert run_index("alias", "live", "--delete", "--data", tmp_path).stdout.startswith("There are")
    assert run_index("alias", "live", "--data", tmp_path).returncode == 2
    assert run_index("alias", "live", "none", "--data", tmp_path).returncode == 1


def test_another_process_sees_the_switch(data, tmp_path):
    script = "import sys; from attend import Data; Data(sys.argv[1]).set_alias('live', 'two')"
    data.set_alias("live", "one")
    assert answered(data) == "one"
    warm.run("-c", script, tmp_path).check_returncode()
    assert answered(data) == "two"
