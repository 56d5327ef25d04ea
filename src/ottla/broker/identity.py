"""Whose data a directory holds: a broker must not open that of another cluster or broker."""

from pathlib import Path
from typing import Final

from ottla.errors import UsageRefused
from ottla.model import BrokerId
from ottla.storage.files import Files, replace_file

IDENTITY_FILE: Final = "meta.properties"  # the name and format that Kafka uses


def check_identity(files: Files, data: Path, cluster_id: str, node_id: BrokerId) -> None:
    """Write down whose directory this is, or make sure that it is still the same."""
    path = data / IDENTITY_FILE
    try:
        known = _parse(files.read_whole(path).decode(errors="replace"))
    except FileNotFoundError:
        lines = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
        replace_file(files, path, lines.encode())
        return
    if known.get("cluster.id") != cluster_id:
        raise UsageRefused(
            f"{data} holds data of cluster {known.get('cluster.id')}, this is cluster {cluster_id}:"
            " choose another directory with --data, or bring back its cluster.sqlite"
        )
    if known.get("node.id") != str(node_id):
        raise UsageRefused(
            f"{data} belongs to broker {known.get('node.id')}: start it with"
            f" --node-id {known.get('node.id')}, or choose another directory with --data"
        )


def _parse(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
