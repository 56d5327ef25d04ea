"""A broker registers again when its lease has ended, and leaves the lead while its disk is bad."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from fakes.broker_pair import BrokerPair, with_broker_pair
from fakes.handled import Handled, handle
from ottla.broker.membership import Disk, Membership
from ottla.broker.registration import Registration
from ottla.config import BrokerConfig
from ottla.storage.flusher import Flusher
from ottla.storage.log_dir import LogDir


class FakeMachine:
    """A disk that can be made to fail or hang."""

    offline_reason: str | None = None
    unfinished_s = 0.0

    def disk(self) -> Disk:
        return Disk(cast("LogDir", self), cast("Flusher", self), BrokerConfig)


def test_a_disk_is_bad_when_it_failed_or_a_sync_does_not_end() -> None:
    machine = FakeMachine()
    disk = machine.disk()
    assert disk.problem is None
    machine.unfinished_s = 9.9
    assert disk.problem is None
    machine.unfinished_s = 10.1
    assert disk.problem == "the disk has been syncing for 10.1 s"
    machine.unfinished_s, machine.offline_reason = 0.0, "no space left"
    assert disk.problem == "no space left"


def test_a_broker_with_a_bad_disk_does_not_register_again_until_it_is_good() -> None:
    machine = FakeMachine()
    machine.offline_reason = "input/output error"
    registered = asyncio.Event()

    async def wait_lost() -> None:
        if registered.is_set():
            await asyncio.Event().wait()

    async def register() -> None:
        registered.set()

    async def main() -> None:
        registration = cast("Registration", SimpleNamespace(wait_lost=wait_lost))
        membership = Membership(
            registration, machine.disk(), register=register, note_lost=lambda _: None
        )
        running = asyncio.create_task(membership.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not registered.is_set()
        machine.offline_reason = None
        async with asyncio.timeout(30):
            await registered.wait()
        running.cancel()

    asyncio.run(main())


def test_a_broker_steps_down_for_its_peers_and_is_registered_again(tmp_path: Path) -> None:
    async def scenario(pair: BrokerPair) -> None:
        state = pair.leader.services.state
        await pair.leader._membership.check_disk()
        assert state.is_registered
        await pair.leader._registration.step_down("a test")
        assert not state.is_registered
        async with asyncio.timeout(30):
            while not state.is_registered:  # noqa: ASYNC110  # the state has no event for it
                await asyncio.sleep(0.01)

    with_broker_pair(tmp_path, scenario)


def test_a_broker_without_peers_registers_again_whatever_its_disk_says(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        broker, state = handled.broker, handled.services.state
        broker._log_dir.take_offline(OSError("broken"))
        await broker._membership.check_disk()
        assert state.is_registered
        await state.step_down()
        assert not state.is_registered
        async with asyncio.timeout(30):
            while not state.is_registered:  # noqa: ASYNC110  # the state has no event for it
                await asyncio.sleep(0.01)

    handle(tmp_path, scenario)
