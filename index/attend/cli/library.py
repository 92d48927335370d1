"""`attend info`, `verify`, `alias` and `projections`: looking at a library and managing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from attend.cli.options import FILE, VERSION, Target, on_collection, on_library
from attend.cli.output import plain, table
from attend.collection.data import Data
from attend.collection.verify import Verified, together, unopened, verify
from attend.core.errors import Damaged
from attend.projection import Projection
from attend.store import ROLES, Role, StoredProjection


@click.command("info")
@on_collection
@click.option("--all", "all_fields", is_flag=True, help="Also what is not set, and capabilities.")
def info_command(target: Target, all_fields: bool) -> None:
    """Print the contents and settings of a collection.

    \b
    Example:
      attend info --data library
    """
    library = target.library()
    info = asdict(library.collection(target.name).info())
    info["collections"] = library.names()
    single = [(name, value) for name, value in info.items() if not isinstance(value, dict)]
    nested = [
        (f"{name}.{field}", value)
        for name, values in info.items()
        if isinstance(values, dict) and (all_fields or name != "capabilities")
        for field, value in values.items()
    ]
    rows = [(name, plain(value)) for name, value in [*single, *nested]]
    target.show(info, table(row for row in rows if all_fields or row[1] != "-"))


@click.command("alias")
@click.argument("alias", required=False)
@click.argument("collection", required=False)
@on_library
@click.option("--delete", is_flag=True, help="Delete ALIAS; its collection stays.")
def alias_command(target: Target, alias: str | None, collection: str | None, delete: bool) -> None:
    """Point ALIAS at COLLECTION, in every process at once; without either, list all aliases.

    \b
    Example:
      attend alias books books-2024 --data library
      attend alias --data library
    """
    if delete == (collection is not None) and alias is not None:
        raise click.UsageError("Give ALIAS with COLLECTION, or with --delete.")
    if delete and alias is None:
        raise click.UsageError("Give the ALIAS to delete.")
    library = target.library()
    if alias is not None and collection is not None:
        library.set_alias(alias, collection)
    elif alias is not None:
        library.drop_alias(alias)
    aliases = library.aliases()
    listing = table([("alias", "collection"), *aliases.items()])
    target.show({"aliases": aliases}, listing if aliases else "There are no aliases.")


@click.command("verify")
@on_collection
@click.option("--repair", "--mend", "repair", is_flag=True, help="Rebuild derived data.")
def verify_command(target: Target, repair: bool) -> None:
    """Check that databases are sound and that the indexes match them.

    Checks all collections, or the one that --collection names. Reads all of it, while others may
    write. Exit status: 0 if nothing is wrong, or all of it was repaired; 1 if a problem is left.

    \b
    Example:
      attend verify --data library --repair
    """
    library = target.library()
    names = target.named() or library.names() or [target.name]
    reports = {name: _verified(library, name, repair) for name in names}
    if len(reports) == 1:
        (report,) = reports.values()
        target.show(report.json(), "\n".join(_findings(report, repair)))
    else:
        report = together(reports)
        listed = {name: single.json() for name, single in reports.items()}
        lines = [
            f"{name}: {line}"
            for name, single in reports.items()
            for line in _findings(single, repair)
        ]
        target.show({**report.json(), "collections": listed}, "\n".join(lines))
    if report.left:
        raise SystemExit(1)


def _verified(library: Data, name: str, repair: bool) -> Verified:
    try:
        return verify(library.collection(name), mend=repair)
    # What cannot be opened is a finding too.
    except Damaged as error:
        return unopened(error)


def _findings(report: Verified, repair: bool) -> Iterator[str]:
    """Yield a line for each problem, and for its remedy."""
    if not report.problems:
        yield f"{report.keys} keys: database and index agree."
    yield from report.hints
    for finding in report.findings:
        yield f"{finding.check}: {finding.problem}"
        if finding.problem in report.left and not finding.can_mend:
            yield f"  {finding.remedy}"
    if repair:
        repaired = [finding for finding in report.findings if finding.problem not in report.left]
        yield from dict.fromkeys(finding.remedy for finding in repaired)
    elif any(finding.can_mend for finding in report.findings):
        yield "Run it with --repair to rebuild what can be rebuilt."


@click.group("projections", invoke_without_command=True)
@on_collection
@click.pass_context
def projections_group(context: click.Context, target: Target) -> None:
    """List the versions of W_Q and W_K; `activate N` makes one answer, `rollback` undoes it.

    The active one is marked. Each is listed with the version that answered before it, and with
    the measures of its training on held-out queries, before and after.

    \b
    Example:
      attend projections --data library
      attend projections --data library activate 2
      attend projections --data library rollback
    """
    context.obj = target
    if context.invoked_subcommand is None:
        versions = target.collection().projections()
        result = {"projections": [version.json() for version in versions]}
        header = ("", "version", "role", "kind", "created", "fingerprint", "after", "measure")
        target.show(result, table([header, *map(_cells, versions)]))


def _cells(version: StoredProjection) -> tuple[object, ...]:
    return (
        "*" if version.active else "",
        version.version,
        version.role,
        version.kind,
        version.created,
        version.fingerprint[:12],
        plain(version.parent),
        _evidence(version.report),
    )


def _evidence(report: Mapping[str, Any]) -> str:
    """Return the first measure of the training that produced a version, before and after."""
    before, after = report.get("before") or {}, report.get("after") or {}
    measure = next((name for name in before if name in after), None)
    return "" if measure is None else f"{measure} {before[measure]:.3f} -> {after[measure]:.3f}"


@projections_group.command("activate")
@click.argument("version", type=VERSION)
@click.pass_obj
def activate_command(target: Target, version: int) -> None:
    """Answer with projection VERSION from the next search on, in every process.

    \b
    Example:
      attend projections --data library activate 2
    """
    target.collection().activate(version)
    target.show({"projection": version, "active": True}, f"Projection {version} is active.")


@projections_group.command("rollback")
@click.option("--role", type=click.Choice(ROLES), default="search", show_default=True)
@click.pass_obj
def rollback_command(target: Target, role: Role) -> None:
    """Answer again with the version that was active before the active one.

    \b
    Example:
      attend projections --data library rollback
    """
    version = target.collection().rollback(role)
    name = f"Projection {version}" if version else "The untrained version"
    target.show({"projection": version, "active": True}, f"{name} is active.")


@projections_group.command("fit")
@click.argument("kind", type=click.Choice(["pca", "lsi", "lsi-scaled"]))
@click.option("--dimensions", required=True, type=click.IntRange(1), help="d_k, below d.")
@click.pass_obj
def fit_command(target: Target, kind: Any, dimensions: int) -> None:
    """Store an untrained projection of the embeddings onto fewer dimensions.

    \b
    Example:
      attend projections --data library fit pca --dimensions 64
    """
    collection = target.collection()
    _show_added(target, collection.add_projection(collection.fit_projection(kind, dimensions)))


@projections_group.command("add")
@click.argument("file", type=FILE)
@click.pass_obj
def add_command(target: Target, file: Path) -> None:
    """Store a projection from FILE, as `Projection.to_bytes` writes it (safetensors).

    \b
    Example:
      attend projections --data library add heads.safetensors
    """
    projection = Projection.from_bytes(file.read_bytes())
    _show_added(target, target.collection().add_projection(projection))


def _show_added(target: Target, version: int) -> None:
    text = f"Projection {version} is stored; 'activate {version}' makes it answer."
    target.show({"projection": version, "active": False}, text)
