"""Tables of `ottla group`: partitions, members, states, and a plan of resets."""

from collections.abc import Sequence

from ottla.cli import terminal
from ottla.cli.group.description import GroupProgress, format_partitions
from ottla.cli.group.offset_reset import Reset


def heading(progress: GroupProgress) -> str:
    group = progress.group
    unknown = progress.unknown_count
    lag = f"lag {progress.lag}" + (f" and unknown of {unknown}" if unknown else "")
    return terminal.one_line(
        f"group {group.group_id}: {group.type.lower()}, {group.state},"
        f" {terminal.counted(len(group.members), 'member')}, {lag}, coordinator {group.coordinator}"
    )


def write_partitions(progress: GroupProgress) -> None:
    terminal.write_table(
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST"],
        [
            [
                partition.tp.topic,
                str(partition.tp.partition),
                _number(partition.committed_offset),
                "?" if partition.end_offset is None else str(partition.end_offset),
                _number(partition.lag),
                *(
                    ["-", "-", "-"]
                    if partition.owner is None
                    else map(
                        terminal.one_line,
                        [
                            partition.owner.member_id,
                            partition.owner.client_id,
                            partition.owner.host,
                        ],
                    )
                ),
            ]
            for partition in progress.partitions
        ],
    )


def write_members(progress: GroupProgress) -> None:
    terminal.write_table(
        ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS", "ASSIGNMENT"],
        [
            [
                terminal.one_line(member.member_id),
                terminal.one_line(member.instance_id or "-"),
                terminal.one_line(member.client_id),
                terminal.one_line(member.host),
                "?" if member.partitions is None else str(len(member.partitions)),
                format_partitions(member.partitions or ()) or "-",
            ]
            for member in progress.group.members
        ],
    )


def write_states(described: Sequence[GroupProgress]) -> None:
    terminal.write_table(
        ["GROUP", "TYPE", "STATE", "PROTOCOL", "ASSIGNOR", "COORDINATOR", "MEMBERS", "LAG"],
        [
            [
                terminal.one_line(progress.group.group_id),
                progress.group.type,
                progress.group.state,
                terminal.one_line(progress.group.protocol_type) or "-",
                terminal.one_line(progress.group.assignor) or "-",
                str(progress.group.coordinator),
                str(len(progress.group.members)),
                str(progress.lag),
            ]
            for progress in described
        ],
    )


def write_plan(name: str, plan: Sequence[Reset], *, dry_run: bool, json: bool) -> None:
    if json:
        for reset in plan:
            done = reset.new is not None and not dry_run
            terminal.write_json({"group": name, **reset.as_json(), "committed": done})
    else:
        terminal.write_table(
            ["TOPIC", "PARTITION", "CURRENT", "NEW", "NOTE"],
            [
                [
                    reset.tp.topic,
                    str(reset.tp.partition),
                    _number(reset.current),
                    _number(reset.new),
                    reset.note,
                ]
                for reset in plan
            ],
        )
    count = sum(reset.new is not None for reset in plan)
    if dry_run:
        terminal.print_note(
            f"group {name}: {terminal.counted(count, 'offset')} would be set; nothing was changed"
        )
    else:
        terminal.print_note(f"group {name}: {terminal.counted(count, 'offset')} set")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
