"""Decisions on brokers: registered, ready, found dead, about to leave."""

from dataclasses import replace
from typing import Final

from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import (
    BrokerImage,
    Change,
    Member,
    Ready,
    Suspicion,
    broker_key,
    member_key,
    ready_key,
    suspicion_key,
)
from ottla.errors import ApiError, ErrorCode
from ottla.model import BrokerId

_WITNESSES: Final = 2  # of the death of a broker on another machine


class NotRegistered(ApiError):
    """The registration that a broker acts under has been replaced, or its lease has ended."""

    code = ErrorCode.STALE_BROKER_EPOCH


def register_broker(image: ClusterImage, broker: BrokerImage) -> Decision[None]:
    """Register a broker that has started; its earlier process is dead, even if still registered.

    It is not ready, so it counts as dead: `settle_leaders` gives its partitions to others.
    """
    changes = [Change(broker_key(broker.id), broker)]
    if broker.id in image.ready:
        changes.append(Change(ready_key(broker.id), None))
    return Decision((*changes, *_without_suspicion(image, broker.id)), None)


def note_ready(image: ClusterImage, broker: BrokerId, epoch: int) -> Decision[None]:
    """The broker has opened its logs: it may lead and be in sync, always in a new leader epoch."""
    registered = image.registered.get(broker)
    if registered is None or registered.epoch != epoch:
        raise NotRegistered(f"broker {broker} is no longer registered in epoch {epoch}")
    known = image.members.get(broker)
    is_draining = known is not None and known.is_draining
    member = Member(broker, epoch, registered.rack, registered.machine, is_draining)
    changes = [Change(ready_key(broker), Ready(broker, epoch))]
    if known != member:
        changes.append(Change(member_key(broker), member))
    return Decision(tuple(changes), None)


def note_generation(
    image: ClusterImage, broker: BrokerId, epoch: int, generation: int
) -> Decision[None]:
    """The disk of a broker has this generation: an older copy of it must not be trusted."""
    member = image.members.get(broker)
    if member is None or member.epoch != epoch or member.generation >= generation:
        return Decision((), None)
    raised = replace(member, generation=generation)
    return Decision((Change(member_key(broker), raised),), None)


def note_dead(image: ClusterImage, broker: BrokerId, epoch: int) -> Decision[None]:
    """End the registration of a broker whose process is gone; its lease would end it later."""
    registered = image.registered.get(broker)
    if registered is None or registered.epoch != epoch:
        return Decision((), None)
    changes = [Change(broker_key(broker), None)]
    if broker in image.ready:
        changes.append(Change(ready_key(broker), None))
    return Decision((*changes, *_without_suspicion(image, broker)), None)


def suspect(
    image: ClusterImage,
    broker: BrokerId,
    epoch: int,
    by: BrokerId,
    stale: Revision = NEVER,
) -> Decision[None]:
    """Broker `by` finds that nothing listens any more where `broker` did: end its registration.

    Something between two machines can refuse connections to a broker that is alive: there two
    witnesses are needed, if there are two. The first of them writes a suspicion, which counts
    unless it is that of the revision `stale`.
    """
    registered = image.registered.get(broker)
    if registered is None or registered.epoch != epoch:
        return Decision((), None)
    known = image.suspicions.get(broker)
    is_stale = image.mod_revision(suspicion_key(broker)) == stale
    witnesses = {by}
    if known is not None and known.epoch == epoch and not is_stale:
        witnesses.update(known.by)
    peers = image.brokers.keys() - {broker}
    needed = 1 if _is_same_machine(image, broker, by) else min(_WITNESSES, len(peers))
    if len(witnesses & peers) >= needed:
        return note_dead(image, broker, epoch)
    suspicion = Suspicion(broker, epoch, tuple(sorted(witnesses)))
    if suspicion == known and not is_stale:
        return Decision((), None)
    return Decision((Change(suspicion_key(broker), suspicion),), None)


def _is_same_machine(image: ClusterImage, one: BrokerId, other: BrokerId) -> bool:
    """True if two registered brokers are known to be on the same machine."""
    first, second = image.registered.get(one), image.registered.get(other)
    if first is None or second is None or first.machine is None:
        return False
    return first.machine == second.machine


def _without_suspicion(image: ClusterImage, broker: BrokerId) -> list[Change]:
    return [Change(suspicion_key(broker), None)] if broker in image.suspicions else []


def note_leaving(image: ClusterImage, broker: BrokerId) -> Decision[None]:
    """The broker is about to stop: it counts as dead from now on, and others take over."""
    changes = (Change(ready_key(broker), None),) if broker in image.ready else ()
    return Decision(changes, None)
