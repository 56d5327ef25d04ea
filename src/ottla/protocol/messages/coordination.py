"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from ottla.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@message(versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Find the coordinator of a key; type 0 group, 1 transactional id, 2 share group."""

    key: str = wire(string, "0-3")
    key_type: int = wire(int8, "1+")
    coordinator_keys: list[str] = wire(array(string), "4+")


@struct
class Coordinator:
    key: str = wire(string, "4+")
    node_id: int = wire(int32, "4+")
    host: str = wire(string, "4+")
    port: int = wire(int32, "4+")
    error_code: int = wire(int16, "4+")
    error_message: str | None = wire(string, "4+", nullable="4+")


@message(versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinator; from version 4 one for each key."""

    throttle_time_ms: int = wire(int32, "1+")
    error_code: int = wire(int16, "0-3")
    error_message: str | None = wire(string, "1-3", nullable="1-3")
    node_id: int = wire(int32, "0-3")
    host: str = wire(string, "0-3")
    port: int = wire(int32, "0-3")
    coordinators: list[Coordinator] = wire(array(Coordinator), "4+")
