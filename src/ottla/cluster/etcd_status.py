"""The state of an etcd cluster: its members, its leader, and whether it serves.

Every member is looked at by itself, through the address that it was named by or that it advertises;
what the cluster as a whole says comes from any of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from ottla.cluster.etcd_address import EtcdAccess, EtcdAddress
from ottla.cluster.etcd_gateway import Gateway, Misconfigured
from ottla.cluster.etcd_messages import Keyspace, Message
from ottla.cluster.etcd_version import check_version
from ottla.cluster.store import Revision, Snapshot, StoreUnavailable
from ottla.cluster.store_etcd import CALL_TIMEOUT_S, EtcdStore
from ottla.errors import UsageRefused
from ottla.model import Endpoint

_STATUS: Final = "/v3/maintenance/status"
_MEMBERS: Final = "/v3/cluster/member/list"
_ALARMS: Final = "/v3/maintenance/alarm"


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # serves, and something needs an operator
    UNREACHABLE = "unreachable"  # does not serve


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """A server, as it describes itself; with a problem, as far as others know it."""

    endpoint: Endpoint | None
    id: int = 0
    name: str = ""
    version: str = ""
    size_bytes: int = 0  # of the database's file
    used_bytes: int = 0  # of these
    leader_id: int = 0
    is_learner: bool = False
    problem: str = ""

    @property
    def is_leader(self) -> bool:
        return bool(self.id) and self.id == self.leader_id


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """The state of a cluster; `problems` are sentences for an operator."""

    health: Health
    members: tuple[EtcdMember, ...]
    cluster_id: int = 0
    revision: Revision | None = None
    alarms: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    snapshot: Snapshot | None = field(default=None, repr=False)  # of the keys below the prefix


async def read_status(
    address: EtcdAddress, access: EtcdAccess, *, timeout_s: float = CALL_TIMEOUT_S
) -> EtcdStatus:
    """Look at all members. Raises UsageRefused if it is not etcd, or does not let this user in."""
    keys = Keyspace(address.prefix)
    context = access.tls.context() if address.is_tls else None
    gateway = Gateway(
        address.servers, context, access.credentials, keys.probe_request(), timeout_s=timeout_s
    )
    try:
        return await _read(gateway, EtcdStore(gateway, keys), address.servers)
    finally:
        await gateway.close()


async def _read(gateway: Gateway, store: EtcdStore, servers: Sequence[Endpoint]) -> EtcdStatus:
    """Connect first: then there is a token, if one is needed."""
    probes = (gateway.probe(server) for server in servers)
    for problem in await asyncio.gather(*probes, return_exceptions=True):
        if isinstance(problem, Misconfigured):
            raise UsageRefused(str(problem)) from problem
        if isinstance(problem, BaseException) and not isinstance(problem, StoreUnavailable):
            raise problem
    named = await _look_at(gateway, servers)
    try:
        snapshot = await store.range("")
        listed = (await gateway.call(_MEMBERS, {}, is_linearizable=False)).messages("members")
    except StoreUnavailable as problem:
        return EtcdStatus(Health.UNREACHABLE, named, problems=(str(problem),))
    members = await _merged(gateway, named, listed)
    alarms = await _alarms(gateway, members)
    problems = [one.problem for one in members if one.problem]
    problems += [f"alarm {alarm}" for alarm in alarms]
    return EtcdStatus(
        Health.DEGRADED if problems else Health.HEALTHY,
        members,
        gateway.cluster_id,
        snapshot.revision,
        alarms,
        tuple(problems),
        tuple(warning for one in members if (warning := _warning(one))),
        snapshot,
    )


async def _look_at(gateway: Gateway, servers: Sequence[Endpoint]) -> tuple[EtcdMember, ...]:
    return tuple(await asyncio.gather(*(_look(gateway, server) for server in servers)))


async def _look(gateway: Gateway, server: Endpoint) -> EtcdMember:
    try:
        said = await gateway.look(server, _STATUS)
    except StoreUnavailable as problem:
        return EtcdMember(server, problem=str(problem))
    leader = said.number("leader")
    return EtcdMember(
        server,
        id=said.message("header").number("member_id"),
        version=said.text("version"),
        size_bytes=said.number("dbSize"),
        used_bytes=said.number("dbSizeInUse"),
        leader_id=leader,
        problem="" if leader else f"etcd at {server} has no leader",
    )


async def _merged(
    gateway: Gateway, named: Sequence[EtcdMember], listed: Sequence[Message]
) -> tuple[EtcdMember, ...]:
    """Every member of the cluster, looked at where it advertises to be if it was not named."""
    known = {one.id: one for one in named if one.id}
    others = [one for one in listed if one.number("ID") not in known]
    silent = {one.endpoint: one for one in named if not one.id}
    members = [
        replace(known[one.number("ID")], name=one.text("name"), is_learner=one.flag("isLearner"))
        for one in listed
        if one.number("ID") in known
    ]
    for one in others:
        endpoint = _advertised(one)
        found = silent.pop(endpoint, None)
        if found is None and endpoint is not None:
            found = await _look(gateway, endpoint)
        name = one.text("name")
        if found is None:
            text = f"member {name or hex(one.number('ID'))} has not joined yet"
            found = EtcdMember(None, problem=text)
        members.append(replace(found, id=one.number("ID"), name=name))
    return tuple(members) + tuple(silent.values())


def _advertised(member: Message) -> Endpoint | None:
    for url in member.texts("clientURLs"):
        parts = urlsplit(url)
        if parts.hostname and parts.port:
            return Endpoint(parts.hostname, parts.port)
    return None


async def _alarms(gateway: Gateway, members: Sequence[EtcdMember]) -> tuple[str, ...]:
    """Alarms of all members, from the first that responds: the response has no cluster's id."""
    for member in members:
        if member.endpoint is None or member.problem:
            continue
        try:
            said = await gateway.look(member.endpoint, _ALARMS)
        except StoreUnavailable:
            continue
        return tuple(
            f"{one.text('alarm')} of member {one.number('memberID'):x}"
            for one in said.messages("alarms")
        )
    return ()


def _warning(member: EtcdMember) -> str | None:
    if not member.version:
        return None
    server = str(member.endpoint)
    try:
        advice = check_version(server, member.version)
    except UsageRefused as refusal:
        return str(refusal)
    return None if advice is None else f"etcd at {server} is {member.version}: {advice}"
