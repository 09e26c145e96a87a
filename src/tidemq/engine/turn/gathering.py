"""A reactor whose turns are so quick that each carries few messages waits a little before it reads.

A publisher that writes each message by itself, and its subscriber, otherwise pay for a reactor that is woken,
reads and sends for each of them; and the faster the turns, the more of these there are. So where messages
come fast, steadily and few at a time, each turn begins with a wait of less than a tenth of a millisecond, in
which more come.

Only messages count that nobody waits for an answer to: of QoS 0, from clients that subscribe to nothing.
Whoever waits for an answer before the next message would be slowed down. Should the inflow lessen
nevertheless when the waiting begins, it ends, and rests for a while. On a machine that has time to spare
nothing waits below 200,000 messages a second.
"""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_PACKETS_RECEIVED, C_TURNS, C_TURNS_GATHERED
from cython.cimports.tidemq.engine.base.system import PR_SET_TIMERSLACK, nanosleep, prctl, timespec
from cython.cimports.tidemq.engine.state.turning import Gathering

_WAIT_NS = cython.declare(int64_t, 80000)
_SPAN_NS = cython.declare(int64_t, 2000000)  # is judged as a whole
_STEADY = cython.declare(cython.int, 3)  # so many spans in a row have to be alike
_TRIED = cython.declare(cython.int, 4)  # spans: what is slower by then is slower because of the waiting
_AGAIN = cython.declare(cython.int, 256)  # spans, then it is seen whether the inflow is still like that
_REST_NS = cython.declare(int64_t, 1000000000)
_FAST_PER_S = cython.declare(int64_t, 200000)  # on any machine
_BUSY = cython.declare(cython.int, 60)  # percent of the time in turns: fast for this machine
_FEW = cython.declare(cython.int, 32)  # messages a turn: more are worth a read and a send anyway
_SLOWER = cython.declare(cython.double, 0.75)  # of what came before


def begin_gathering():
    """For the thread that calls it: waits are as short as they are meant to be."""
    prctl(PR_SET_TIMERSLACK, 1)


def wait_for_more():
    wait: timespec
    wait.tv_sec = 0
    wait.tv_nsec = _WAIT_NS
    nanosleep(cython.address(wait), cython.NULL)


def _judge(g, rate, alone, fits, now_ns):
    """A span is over. ``alone``: hardly anything but messages that nobody waits for an answer to; ``fits``:
    they came fast and few at a time.
    """
    g.spans += 1
    if g.on:
        g.slower = g.slower + 1 if rate < g.before * _SLOWER else 0
        if not alone or g.slower >= _STEADY:
            if g.spans <= _TRIED:
                g.rests_until_ns = now_ns + _REST_NS
            g.on = False
            g.spans = 0
        elif g.spans >= _AGAIN:
            g.on = False
            g.spans = _STEADY - 1
    elif not (alone and fits) or now_ns < g.rests_until_ns:
        g.spans = 0
    else:
        g.before = rate if g.spans == 1 else (g.before + rate) / 2
        if g.spans >= _STEADY:
            g.on = True
            g.spans = g.slower = 0


def _count(g, messages, packets, turns, now_ns):
    """At the end of a turn, with what has come in all: judges the span where it is over."""
    elapsed_ns: int64_t = now_ns - g.began_ns
    if elapsed_ns < _SPAN_NS:
        return
    came: int64_t = messages - g.messages
    risen: cython.bint = came >= 0 and packets >= g.packets and turns > g.turns
    holds(risen, b"gathering: counts of what comes only rise")
    rate: cython.double = cython.cast(cython.double, came) / elapsed_ns
    fast: cython.bint = rate * 1e9 >= _FAST_PER_S or g.busy_ns * 100 >= elapsed_ns * _BUSY
    few: cython.bint = came < _FEW * (turns - g.turns)
    alone: cython.bint = came > 0 and came * 8 >= (packets - g.packets) * 7
    _judge(g, rate, alone, fast and few, now_ns)
    g.began_ns, g.busy_ns, g.messages, g.packets, g.turns = now_ns, 0, messages, packets, turns


def note_turn(r, began_ns, ended_ns):
    """At the end of a turn."""
    g: cython.pointer[Gathering] = cython.address(r.gathering)
    holds(began_ns <= ended_ns, b"gathering: a turn ends after it began")
    if g.on:
        r.tally[C_TURNS_GATHERED] += 1
    g.busy_ns += ended_ns - began_ns
    _count(g, r.unasked, r.tally[C_PACKETS_RECEIVED], r.tally[C_TURNS], ended_ns)


def gathered(turns: list[tuple[int, int, int, int]]) -> list[bool]:
    """Whether a reactor with these turns would wait before the next one, after each of them.

    A turn: microseconds before it, microseconds that it takes, messages of QoS 0 that nobody waits for an
    answer to, all packets.
    """
    g: Gathering
    memset(cython.address(g), 0, cython.sizeof(Gathering))
    now_ns: int64_t = 0
    messages: int64_t = 0
    packets: int64_t = 0
    found = []
    for count, (before, takes, came, of_all) in enumerate(turns, 1):
        now_ns += (before + takes) * 1000
        messages += came
        packets += of_all
        g.busy_ns += takes * 1000
        _count(cython.address(g), messages, packets, count, now_ns)
        found.append(bool(g.on))
    return found
