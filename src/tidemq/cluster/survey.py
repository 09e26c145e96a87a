"""How the cluster is, as this node sees it: looked at by the keeper now and then, shown to anybody."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tidemq.broker.clustering import ClusterFigures, MemberFigures, MemberState
from tidemq.cluster.members import BEAT_S, Heartbeat
from tidemq.cluster.node import Node
from tidemq.cluster.outlook import Outlook
from tidemq.cluster.vectors import Vector, covers, raised

SAMPLES_MAX = 256  # of what there was, and when; the older they are the fewer
NEAR = 1 / 8  # of its age: between a sample and the next. A week needs about 110
STALE_S = 5.0  # without a look, after which it is said


class Pace:
    """What there was at which time, to tell for how long a member has been behind."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Vector]] = []

    def note(self, vector: Vector, now: float) -> None:
        """All that there is by now."""
        if self._samples and self._samples[-1][1] == vector:
            return
        self._samples.append((now, vector))
        if len(self._samples) > SAMPLES_MAX:
            self._thin(now)

    def _thin(self, now: float) -> None:
        """Leaves the first, and of the others those that are not too near to the next, for their age."""
        first, *others = self._samples
        kept: list[tuple[float, Vector]] = []
        for sample in reversed(others):
            if not kept or kept[-1][0] - sample[0] >= (now - sample[0]) * NEAR:
                kept.append(sample)
        self._samples = [first, *reversed(kept)]

    def behind_s(self, vector: Vector, now: float) -> float:
        """Since when there is something that a member, which has this, lacks: seconds, at least."""
        first = bisect_left(self._samples, True, key=lambda sample: not covers(vector, sample[1]))
        return now - self._samples[first][0] if first < len(self._samples) else 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """As of one look. `heard_at`: by member, of the monotonic clock."""

    at: float
    figures: ClusterFigures
    heard_at: dict[str, float]


class Survey:
    """Of one node. `look` is for the keeper's thread, `figures` for any."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._pace = Pace()
        self._states: dict[int, tuple[MemberState, float]] = {}
        self._outlooks: dict[int, Outlook] = {}
        self._seen: _Seen | None = None
        self._looked_at = -BEAT_S

    def look(
        self,
        node: Node,
        now: float,
        *,
        settled: Collection[int],
        joins: bool,
        degraded: Sequence[str],
        rows_given: int | None = None,
    ) -> None:
        """`settled`: dead nodes that have no sessions any more; `joins`: this node takes over what there is;
        `degraded`: what it does not do as it should; `rows_given`: to a node that joins, by this one.
        """
        if now - self._looked_at < BEAT_S:
            return
        self._looked_at = now
        beats = {each.beat.incarnation: each for each in node.members.known()}
        own = replace(
            node.own,
            number=node.last,
            applied=node.rows.vector,
            first=node.stability.first,
            format=node.rows.written_format,
        )
        known = [own, *(each.beat for each in beats.values())]
        top: Vector = {}
        for beat in known:
            top = raised(top, _has(beat))
        self._pace.note(top, now)
        names = {incarnation: name for incarnation, _, name in node.rows.members.all()}
        members: list[MemberFigures] = []
        for incarnation in node.members.incarnations:
            nobody = replace(own, incarnation=incarnation, name=names.get(incarnation, ""), address="")
            beat = replace(nobody, number=0, applied={})
            if incarnation == own.incarnation:
                beat = own
            elif incarnation in beats:
                beat = beats[incarnation].beat
            state: MemberState = "alive"
            if not node.members.is_live(incarnation, now):
                state = "dead" if incarnation in settled else "suspected"
            elif joins if beat is own else self._is_new(incarnation) and _lacks_log(beat, known):
                state = "joining"
            figures = self._member(beat, state, top, now, is_self=beat is own)
            heard = beat is own or incarnation in beats
            members.append(replace(figures, formats=beat.formats if heard else None))
        members = _with_rows(members, rows_given)
        self._states = {each: self._states[each] for each in node.members.incarnations}
        self._outlooks = {each: self._outlooks[each] for each in self._states if each in self._outlooks}
        heard_at = {f"{each:016x}": member.heard_at for each, member in beats.items()}
        size = node.stability.log_size
        silent = [
            _how_silent(each, node.members.is_heard(int(each.incarnation, 16), now))
            for each in members
            if each.state in ("suspected", "dead")
        ]
        texts = [*degraded, *silent]
        shown = ClusterFigures(self._cluster, members, size.records, size.bytes, texts, [], format=own.format)
        self._seen = _Seen(now, shown, heard_at)

    def _is_new(self, incarnation: int) -> bool:
        """Heartbeats of two nodes are not of one moment: who has been there does not join for that."""
        state, _ = self._states.get(incarnation, ("joining", 0.0))
        return state != "alive"

    def _member(
        self, beat: Heartbeat, state: MemberState, top: Vector, now: float, *, is_self: bool
    ) -> MemberFigures:
        before, since = self._states.get(beat.incarnation, ("", 0.0))
        if before != state:
            since = time.time()
            self._states[beat.incarnation] = state, since
        has = _has(beat)
        lacks = sum(max(0, number - has.get(each, 0)) for each, number in top.items())
        outlook = self._outlook(beat.incarnation, state, now, sum(top.values()) - lacks, lacks)
        return MemberFigures(
            name=beat.name,
            incarnation=f"{beat.incarnation:016x}",
            address=beat.address,
            is_self=is_self,
            state=state,
            since=since,
            heard_s=0.0,
            last=beat.number,
            applied={f"{each:016x}": number for each, number in sorted(has.items())},
            behind_records=lacks,
            behind_s=self._pace.behind_s(has, now),
            copies=None,
            progress=outlook.progress,
            left_s=outlook.left_s,
        )

    def _outlook(self, incarnation: int, state: MemberState, now: float, has: int, lacks: int) -> Outlook:
        """Of a member that is not heard nothing can be said; nor of one that joins: until it has all, it does
        not say what it has.
        """
        if state != "alive":
            self._outlooks.pop(incarnation, None)
            outlook = Outlook()
        else:
            outlook = self._outlooks.setdefault(incarnation, Outlook())
        outlook.note(now, has, lacks)
        return outlook

    @property
    def has_looked(self) -> bool:
        """Whether there is anything to be shown."""
        return self._seen is not None

    def figures(self, now: float) -> ClusterFigures | None:
        """As of the last look; None: there was none."""
        seen = self._seen
        if seen is None:
            return None
        members = [
            replace(each, heard_s=max(0.0, now - seen.heard_at.get(each.incarnation, now)))
            for each in seen.figures.members
        ]
        late_s = now - seen.at
        texts = list(seen.figures.degraded)
        if late_s > STALE_S:
            texts.insert(0, f"the keeper, which speaks for this node, has not gone on for {late_s:.0f} s")
        return replace(seen.figures, members=members, degraded=texts)


def _with_rows(members: list[MemberFigures], rows_given: int | None) -> list[MemberFigures]:
    """Who takes a snapshot from this node does not say so in its heartbeats: it is the one that joins."""
    joining = [each for each in members if each.state == "joining" and not each.is_self]
    if rows_given is None or len(joining) != 1:
        return members
    return [replace(each, rows_taken=rows_given) if each is joining[0] else each for each in members]


def _how_silent(member: MemberFigures, is_heard: bool) -> str:
    name = member.name or member.incarnation
    return f"{name} does not hear this node" if is_heard else f"nothing is heard of {name}"


def _has(beat: Heartbeat) -> dict[int, int]:
    """What a node has, its own records included."""
    return {**beat.applied, **({beat.incarnation: beat.number} if beat.number else {})}


def _lacks_log(beat: Heartbeat, known: Iterable[Heartbeat]) -> bool:
    """Whether records that a node lacks are in nobody's log any more, so that it must take over all."""
    has = _has(beat)
    return any(has.get(each.incarnation, 0) + 1 < each.first for each in known if each is not beat)
