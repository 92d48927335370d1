"""`attend info`, `verify` and `projections`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from attend.cli.common import on_collection, open_collection, open_data, show, table
from attend.collection import Collection
from attend.errors import Damaged
from attend.projection import Projection
from attend.store import ROLES, Role, StoredProjection
from attend.verify import Verified, unopened, verify


@click.command("info")
@on_collection
def info_command(folder: Path, collection: str, precision: str, as_json: bool) -> None:
    """Say what a collection holds and how it answers.

    \b
    Example:
      attend info --data library
    """
    info = asdict(open_collection(folder, collection, precision).info())
    info["collections"] = open_data(folder, precision).names()
    flat = [
        (f"{a}.{b}", v)
        for a, each in info.items()
        if isinstance(each, dict)
        for b, v in each.items()
    ]
    plain = [(name, value) for name, value in info.items() if not isinstance(value, dict)]
    show(as_json, info, table([*plain, *flat]))


@click.command("verify")
@on_collection
@click.option("--mend", is_flag=True, help="Make again what the database can make again.")
def verify_command(
    folder: Path, collection: str, precision: str, as_json: bool, mend: bool
) -> None:
    """Check everything that must be true of the database, and that the index says what it says.

    Reads all of it, while others may write. Exit status: 0 where nothing is wrong, or all of it
    was mended; 1 where something still is.

    \b
    Example:
      attend verify --data library --mend
    """
    try:
        found = verify(open_collection(folder, collection, precision), mend=mend)
    # What cannot be opened is a finding too.
    except Damaged as error:
        found = unopened(error)
    show(as_json, found.json(), "\n".join(_told(found, mend)))
    if found.left:
        raise SystemExit(1)


def _told(found: Verified, mend: bool) -> Iterator[str]:
    """A line for each problem, and what was or can be done."""
    if not found.problems:
        yield f"{found.keys} keys: database and index agree."
    for each in found.findings:
        is_left = each.problem in found.left
        yield f"{each.check}: {each.problem}"
        if is_left and not each.can_mend:
            yield f"  {each.remedy}"
    yield from dict.fromkeys(
        each.remedy for each in found.findings if mend and each.problem not in found.left
    )
    if any(each.can_mend for each in found.findings) and not mend:
        yield "Run it with --mend to put right what can be."


class Opened(NamedTuple):
    """What the group of commands found, for each of them."""

    collection: Collection
    as_json: bool

    def added(self, projection: Projection) -> None:
        """Store a projection and say under which version."""
        version = self.collection.add_projection(projection)
        text = f"Projection {version} is stored; 'activate {version}' makes it answer."
        show(self.as_json, {"projection": version, "active": False}, text)


class Helpful(click.Group):
    """A group that tells the help of its commands without the folder that they would open."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = next((each for each in args if each in self.commands), None)
        if named is not None and set(args) & set(ctx.help_option_names):
            # Asked for help, it prints it and exits.
            self.commands[named].make_context(named, list(ctx.help_option_names[:1]), parent=ctx)
        return super().parse_args(ctx, args)


@click.group("projections", cls=Helpful, invoke_without_command=True)
@on_collection
@click.pass_context
def projections_group(
    ctx: click.Context, folder: Path, collection: str, precision: str, as_json: bool
) -> None:
    """List the versions of W_Q and W_K; `activate N` makes one answer, `rollback` undoes it.

    The active one is marked. Each is told with the version that answered before it, and with
    what its training measured on queries held out, before and after.

    \b
    Example:
      attend projections --data library
      attend projections --data library activate 2
      attend projections --data library rollback
    """
    opened = open_collection(folder, collection, precision)
    ctx.obj = Opened(opened, as_json)
    if ctx.invoked_subcommand is not None:
        return
    versions = opened.projections()
    told = {"projections": [each.json() for each in versions]}
    show(as_json, told, "\n".join(map(_line, versions)))


def _line(version: StoredProjection) -> str:
    parent = "" if version.parent is None else f"after {version.parent}"
    return (
        f"{'*' if version.active else ' '} {version.version:>3}  {version.role:<9} "
        f"{version.kind:<12} "
        f"{version.created}  {version.fingerprint[:12]}  {parent:<9} {_evidence(version.report)}"
    ).rstrip()


def _evidence(report: Mapping[str, Any]) -> str:
    """What the training that made a version measured, by the first of its measures."""
    before, after = report.get("before") or {}, report.get("after") or {}
    measure = next((name for name in before if name in after), None)
    if measure is None:
        return ""
    return f"{measure} {before[measure]:.3f} -> {after[measure]:.3f}"


@projections_group.command("activate")
@click.argument("version", type=click.IntRange(1, 2**63 - 1))
@click.pass_obj
def activate_command(opened: Opened, version: int) -> None:
    """Answer with projection VERSION from the next search on, in every process.

    \b
    Example:
      attend projections --data library activate 2
    """
    opened.collection.activate(version)
    result = {"projection": version, "active": True}
    show(opened.as_json, result, f"Projection {version} is active.")


@projections_group.command("rollback")
@click.option("--role", type=click.Choice(ROLES), default="search", show_default=True)
@click.pass_obj
def rollback_command(opened: Opened, role: Role) -> None:
    """Answer again with the version that was active before the active one.

    \b
    Example:
      attend projections --data library rollback
    """
    version = opened.collection.rollback(role)
    result = {"projection": version, "active": True}
    told = f"Projection {version}" if version else "The untrained version"
    show(opened.as_json, result, f"{told} is active.")


@projections_group.command("fit")
@click.argument("kind", type=click.Choice(["pca", "lsi", "lsi-scaled"]))
@click.option("--dimensions", required=True, type=click.IntRange(1), help="d_k, below d.")
@click.pass_obj
def fit_command(opened: Opened, kind: Any, dimensions: int) -> None:
    """Store an untrained projection of the embeddings onto fewer dimensions.

    \b
    Example:
      attend projections --data library fit pca --dimensions 64
    """
    opened.added(opened.collection.fit_projection(kind, dimensions))


@projections_group.command("add")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def add_command(opened: Opened, file: Path) -> None:
    """Store a projection from FILE, as `Projection.to_bytes` writes it (safetensors).

    \b
    Example:
      attend projections --data library add heads.safetensors
    """
    opened.added(Projection.from_bytes(file.read_bytes()))
