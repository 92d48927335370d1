"""`attend info`, `alias`, `verify`, `projections`, `drop`, `delete`, `reindex` and `mcp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field

import attend
from attend.api.documents import DeletionRequest
from attend.cli import common, main
from attend.collection.verify import Verified, together, unopened, verify
from attend.core.errors import Damaged, InvalidRequest
from attend.projection import Projection
from attend.store import ROLES, Role, StoredProjection


@common.collection_command("info")
@click.option("--all", "all_fields", is_flag=True, help="Also what is not set, and capabilities.")
def info_command(target: common.Target, all_fields: bool) -> None:
    """Print the contents and settings of a collection.

    \b
    Example:
      attend info --data library
    """
    library = target.library()
    info = asdict(library.collection(target.name).info())
    info["collections"] = library.names()
    info["precision"] = library.precisions().get(info["encoder"] or "")
    single = [(name, value) for name, value in info.items() if not isinstance(value, dict)]
    nested = [
        (f"{name}.{field}", value)
        for name, values in info.items()
        if isinstance(values, dict) and (all_fields or name != "capabilities")
        for field, value in values.items()
    ]
    rows = [(name, common.plain(value)) for name, value in [*single, *nested]]
    target.show(info, common.table(row for row in rows if all_fields or row[1] != "-"))


@main.command("alias")
@click.argument("alias", required=False)
@click.argument("collection", required=False)
@common.on_library
@click.option("--delete", is_flag=True, help="Delete ALIAS; its collection stays.")
def alias_command(
    target: common.Target, alias: str | None, collection: str | None, delete: bool
) -> None:
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
    listing = common.table([("alias", "collection"), *aliases.items()])
    target.show({"aliases": aliases}, listing if aliases else "There are no aliases.")


@common.collection_command("verify")
@click.option("--repair", "--mend", "repair", is_flag=True, help="Rebuild derived data.")
def verify_command(target: common.Target, repair: bool) -> None:
    """Check that databases are sound and that the indexes match them.

    Checks all collections, or the one that --collection names. Reads all of it, while others may
    write. Exit status: 0 if nothing is wrong, or all of it was repaired; 1 if a problem is left.

    \b
    Example:
      attend verify --data library --repair
    """
    library = target.library()
    names = target.named() or library.names() or [target.name]
    reports: dict[str, Verified] = {}
    for name in names:
        try:
            reports[name] = verify(library.collection(name), mend=repair)
        except Damaged as error:  # what cannot be opened is a finding too
            reports[name] = unopened(error)
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


@main.group("projections", invoke_without_command=True)
@common.on_collection
@click.pass_context
def projections_group(context: click.Context, target: common.Target) -> None:
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
        target.show(result, common.table([header, *map(_cells, versions)]))


def _cells(version: StoredProjection) -> tuple[object, ...]:
    """Return the cells of a version, with the first measure of its training before and after."""
    before, after = version.report.get("before") or {}, version.report.get("after") or {}
    measure = next((name for name in before if name in after), None)
    return (
        *("*" if version.active else "", version.version, version.role, version.kind),
        *(version.created, version.fingerprint[:12], common.plain(version.parent)),
        f"{measure} {before[measure]:.3f} -> {after[measure]:.3f}" if measure else "",
    )


@projections_group.command("activate")
@click.argument("version", type=common.VERSION)
@click.option("--force", is_flag=True, help="Also one that its training has not promoted.")
@click.pass_obj
def activate_command(target: common.Target, version: int, force: bool) -> None:
    """Answer with projection VERSION from the next search on, in every process.

    One that its training has not promoted is kept until the next training; it answers only by
    --force, and its report says so.

    \b
    Example:
      attend projections --data library activate 2
    """
    target.collection().activate(version, force=force)
    target.show({"projection": version, "active": True}, f"Projection {version} is active.")


@projections_group.command("rollback")
@click.option("--role", type=click.Choice(ROLES), default="search", show_default=True)
@click.pass_obj
def rollback_command(target: common.Target, role: Role) -> None:
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
def fit_command(target: common.Target, kind: Any, dimensions: int) -> None:
    """Store an untrained projection of the embeddings onto fewer dimensions.

    \b
    Example:
      attend projections --data library fit pca --dimensions 64
    """
    collection = target.collection()
    _show_added(target, collection.add_projection(collection.fit_projection(kind, dimensions)))


@projections_group.command("add")
@click.argument("file", type=common.FILE)
@click.pass_obj
def add_command(target: common.Target, file: Path) -> None:
    """Store a projection from FILE, as `Projection.to_bytes` writes it (safetensors).

    \b
    Example:
      attend projections --data library add heads.safetensors
    """
    projection = Projection.from_bytes(file.read_bytes())
    _show_added(target, target.collection().add_projection(projection))


def _show_added(target: common.Target, version: int) -> None:
    text = f"Projection {version} is stored; 'activate {version}' makes it answer."
    target.show({"projection": version, "active": False}, text)


yes_option = click.option("--yes", is_flag=True, help="Delete without a question, as in scripts.")


class DeletionOptions(common.CommandOptions):
    """The documents to delete."""

    ids: Annotated[list[str], "ID"] = Field([])
    """A document to delete; repeatable."""
    filter: Annotated[dict[str, Any] | None, common.JsonType(dict)] = None
    """Delete the documents that pass, such as {"year": {"lt": 1900}}; or a file of it."""


@main.command("drop")
@click.argument("collection")
@common.on_library
@yes_option
def drop_command(target: common.Target, collection: str, yes: bool) -> None:
    """Delete COLLECTION with its documents, feedback and versions.

    Servers that run answer 404 for it from the next request on. An alias of it must be deleted or
    pointed elsewhere first. `attend export --snapshot` makes a backup.

    \b
    Example:
      attend drop books --data library
      attend drop books --data library --yes
    """
    library = target.library()
    opened = library.collection(collection)
    library.check_droppable(collection)
    documents, _ = opened.store.counts()
    size = common.counted(documents, "document")
    common.confirm(f"Delete the collection {collection!r} with {size}?", yes)
    library.drop(collection)
    text = f"The collection {collection!r} with {size} was deleted."
    target.show({"collection": collection, "documents": documents, "dropped": True}, text)


@common.collection_command("delete")
@common.model_options(DeletionOptions)
@yes_option
def delete_command(target: common.Target, yes: bool, **options: Any) -> None:
    """Delete documents by their ids or by a filter, all or none.

    Feedback about them is deleted, too. Unknown ids are passed over. `attend drop` deletes a whole
    collection.

    \b
    Example:
      attend delete --data library --id moby-dick --id emma
      attend delete --data library --filter '{"year": {"lt": 1900}}' --yes
    """
    selection = DeletionOptions.take(options)
    ids, filter = selection.ids, selection.filter
    if bool(ids) == (filter is not None):
        raise click.UsageError("Give either --id or --filter: the documents to delete.")
    common.checked(DeletionRequest, selection.model_dump(exclude_unset=True))
    collection = target.collection()
    if filter is None:
        documents = len(collection.store.rows_of(ids))
    else:
        page = collection.page(filter, limit=0)
        documents = page.total
        for hint in page.hints or ():
            click.echo(hint, err=True)
    if documents:
        named = common.counted(documents, "document")
        common.confirm(f"Delete {named} of the collection {collection.name!r}?", yes)
    deleted = collection.delete(ids) if filter is None else collection.delete_matching(filter)
    left, _ = collection.store.counts()
    result = {"collection": collection.name, "deleted": deleted, "documents": left}
    text = f"{collection.name}: {common.counted(deleted, 'document')} deleted, {left} left."
    target.show(result, text)


@common.collection_command("reindex")
@click.option("--encoder", metavar="NAME", help="Model name or folder of the new encoder.")
@click.option("--rollback", is_flag=True, help="Answer with the encoder before again.")
@click.option("--force", is_flag=True, help="Switch whatever the comparison says.")
@click.option(
    "--bridge/--no-bridge",
    default=True,
    help="Let mapped keys answer until the texts are encoded; on by default.",
)
def reindex_command(
    target: common.Target, encoder: str | None, rollback: bool, force: bool, bridge: bool
) -> None:
    """Change the encoder of a collection while it goes on answering.

    Encodes all texts beside the index in use, with all values, payloads, examples and interactions,
    and what is written meanwhile. Then both are compared on the stored examples: the new encoder
    answers if its gain is significant and a loss is ruled out, or with --force; with fewer than 20
    questions, which are too few to tell, it answers. The encoder before is kept for --rollback,
    with the versions that were learned for it, which are named. If a run is interrupted, rerun the
    command to resume it.

    With many documents, the new encoder answers within a minute: the keys of the encoder before are
    mapped into its space, if that is accurate enough and passes the same comparison, and are
    replaced as the texts are encoded, those that logged searches need most first. At the
    end both encoders are compared once more. --no-bridge switches at the end alone.

    Exit status: 0 if the collection switched, 1 if it did not.

    \b
    Example:
      attend reindex --data library --encoder ./models/multilingual
      attend reindex --data library --rollback
    """
    if rollback == (encoder is not None):
        raise click.UsageError("Give --encoder, or --rollback alone.")
    if rollback and force:
        raise click.UsageError("--force goes with --encoder: a rollback compares nothing.")
    from attend.write import reindex  # here: torch takes seconds to import

    library = target.library()
    try:
        with common.Bar() as bar:
            if encoder is None:
                result = reindex.rollback(library, target.name, on_stage=bar)
            else:
                result = reindex.reindex(
                    library, target.name, encoder, force=force, bridge=bridge, on_stage=bar
                )
    except KeyboardInterrupt:
        now = library.collection(target.name).settings.encoder
        common.interrupted(
            f"the collection answers with {now}. To go on, run the same command again."
        )
    target.show(asdict(result), _as_text(asdict(result)))
    if not result.switched:
        raise SystemExit(1)


def _as_text(result: Mapping[str, Any]) -> str:
    rows = [
        (name, f"{split['before']:.3f}", f"{split['after']:.3f}", f"{split['p']:.4f}")
        for name, split in result["comparison"].items()
    ]
    verb = "answers with" if result["switched"] else "still answers with"
    lines = [f"{result['collection']} {verb} {result['encoder']}. {result['reason']}"]
    if rows:
        lines += ["", common.table([("", "before", "after", "p"), *rows], right=True), ""]
    way = (
        "'attend reindex --rollback' goes back" if result["switched"] else "--force switches to it"
    )
    if bridge := result["bridge"]:
        late = (
            "did not answer" if not bridge["answers"] else f"answered after {bridge['seconds']} s"
        )
        lines.append(
            f"Mapped keys {late}: {bridge['map']} map, fitted on {bridge['texts']} texts; its "
            f"recall of the 10 nearest among them was {bridge['recall']:.3f}. {bridge['reason']}"
        )
    lines += [f"{result['spare']} keeps {result['previous']}; {way}.", *result["left"]]
    lines.append(
        f"{result['documents']} documents, {result['examples']} examples, "
        f"{result['interactions']} interactions; {result['encoded']} texts encoded in "
        f"{result['seconds']:.1f} s."
    )
    return "\n".join(lines)


@main.command("mcp")
@click.option("--data", "folder", type=common.FOLDER, help="The data folder.")
@click.option("--url", metavar="URL", help="A server's library instead: http://HOST:PORT.")
@click.option(
    "--api-key", envvar="ATTEND_API_KEY", show_envvar=True, help="The key for the server of --url."
)
@click.option("--write", is_flag=True, help="Let clients add, change and delete documents, too.")
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve http://127.0.0.1:PORT/mcp instead of stdio.",
)
def mcp_command(
    folder: Path | None, url: str | None, api_key: str | None, write: bool, port: int | None
) -> None:
    """Let programs with a language model search a library by the Model Context Protocol (MCP).

    A client such as Claude Desktop starts this command and talks to it on stdin and stdout; with
    --http it serves streamable HTTP to programs on this machine. Clients only read, unless --write
    lets them add, change and delete documents and give feedback. Any number of servers and commands
    may use one folder at the same time.

    \b
    Example:
      attend mcp --data library
      attend mcp --url http://127.0.0.1:8000 --write
      attend mcp --data library --http 8808
    """
    if (folder is None) == (url is None):
        raise click.UsageError("Give either --data or --url: the library to serve.")
    if folder is not None and not write and not folder.exists():
        raise InvalidRequest(f"The folder {folder} does not exist. Check --data, or add --write.")
    try:
        from attend.connect.mcp import LibraryServer  # here: it takes a second to import
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"MCP needs packages that are not installed ({error.name}). Run 'pip install "
            f"attend-retrieval[mcp]'."
        ) from None
    if folder is not None:
        library = attend.open(folder, read_only=not write)
    else:
        library = attend.open(url or "", api_key=api_key)
    server = LibraryServer(library, write=write)
    if port is None:
        server.run("stdio")
    else:
        click.echo(f"MCP is served at http://127.0.0.1:{port}/mcp.", err=True)
        server.run("streamable-http", port=port, json_response=True, stateless_http=True)
