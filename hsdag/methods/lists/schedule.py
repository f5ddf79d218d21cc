"""Schedule ops by urgency, each on the device where it ends or starts first; state and steps of list schedulers.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import ZERO, bare, inlined, inner, run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.tables import Tables, arrival_s
from hsdag.runtime.simulator.machine import ENTRY, Records, pop, push
from hsdag.search.evaluators.memory import MEMORY_TOLERANCE


@dataclass(frozen=True, eq=False)
class ListSchedule:
    """A simulated schedule; ``sequence`` is the order in which ops were placed, a topological order.

    Transfers take latency + bytes / bandwidth, per edge, and wait for nothing. Devices run one op at a time, followed
    by the op overhead.
    """

    device: IntArray  # [N]
    start_s: FloatArray  # [N]
    end_s: FloatArray  # [N]
    sequence: IntArray  # [N]

    @property
    def priority(self) -> IntArray:
        """Return the rank of each op by start, then end, then sequence, [N]."""
        return inverse_of(np.lexsort((inverse_of(self.sequence), self.end_s, self.start_s)))

    @property
    def plan(self) -> Plan:
        """Return the devices and ranks of all ops as a plan."""
        return Plan(self.device, self.priority)


class ListState(NamedTuple):
    """State that a compiled list scheduler updates."""

    device: IntArray  # [N], -1 before an op is placed
    start_s: FloatArray  # [N]
    end_s: FloatArray  # [N]
    sequence: IntArray  # [N]
    waiting: IntArray  # [N] inputs that are not placed yet
    held_bytes: FloatArray  # [D] weights
    limit_bytes: FloatArray  # [D]
    free_s: FloatArray  # [D] end of the last op on each device
    ready: Records  # [N + 1] ENTRY, a heap of ops whose inputs are placed

    @staticmethod
    def of(tables: Tables) -> ListState:
        """Return the state before the first op."""
        n, d = tables.time_s.shape
        return ListState(
            device=np.full(n, -1, dtype=np.int64),
            start_s=np.zeros(n),
            end_s=np.zeros(n),
            sequence=np.zeros(n, dtype=np.int64),
            waiting=np.diff(tables.in_first),
            held_bytes=np.zeros(d),
            limit_bytes=tables.memory_bytes * (1 + MEMORY_TOLERANCE),
            free_s=np.zeros(d),
            ready=np.zeros(n + 1, ENTRY),
        )

    def schedule(self) -> ListSchedule:
        """Return the schedule once all ops are placed."""
        return ListSchedule(self.device, self.start_s, self.end_s, self.sequence)


class IdleTime(NamedTuple):
    """Gaps of all devices in ascending order, each of positive length; the last gap of a device has no end."""

    begin_s: FloatArray  # [D, N + 1]
    end_s: FloatArray  # [D, N + 1]
    num_gaps: IntArray  # [D]

    @staticmethod
    def of(num_devices: int, num_ops: int) -> IdleTime:
        """Return the gaps of devices that are idle throughout, with room for ``num_ops`` ops."""
        shape = num_devices, num_ops + 1
        return IdleTime(np.zeros(shape), np.full(shape, np.inf), np.ones(num_devices, dtype=np.int64))


@inlined
def earliest(idle: IdleTime, d: int, ready_s: float, duration_s: float, overhead_s: float) -> tuple[float, int]:
    """Return when device d can first run an op that is ready at ``ready_s``, and the index of that gap."""
    low, high = 0, idle.num_gaps[d] - 1
    while low < high:  # the first gap that does not end too early
        middle = (low + high) // 2
        if ready_s + duration_s + overhead_s <= idle.end_s[d, middle]:
            high = middle
        else:
            low = middle + 1
    while max(idle.begin_s[d, low], ready_s) + duration_s + overhead_s > idle.end_s[d, low]:
        low += 1
    return max(idle.begin_s[d, low], ready_s), low


@inlined
def occupy(idle: IdleTime, d: int, i: int, start_s: float, until_s: float) -> None:
    """Remove [start, until) from gap i of device d."""
    begin_s, end_s = idle.begin_s[d], idle.end_s[d]
    has_left, has_right = start_s > begin_s[i], until_s < end_s[i]
    if has_left and has_right:
        for j in range(idle.num_gaps[d], i + 1, -1):
            begin_s[j], end_s[j] = begin_s[j - 1], end_s[j - 1]
        idle.num_gaps[d] += 1
        begin_s[i + 1], end_s[i + 1] = until_s, end_s[i]
        end_s[i] = start_s
    elif has_left:
        end_s[i] = start_s
    elif has_right:
        begin_s[i] = until_s
    else:
        idle.num_gaps[d] -= 1
        for j in range(i, idle.num_gaps[d]):
            begin_s[j], end_s[j] = begin_s[j + 1], end_s[j + 1]


def list_schedule(
    tables: Tables,
    urgency: FloatArray,
    *,
    insertion: bool = False,
    by_start: bool = False,
    pinned: IntArray | None = None,
    device_order: IntArray | None = None,
) -> ListSchedule:
    """Return the schedule that takes ops with placed inputs by ``urgency`` [N], largest first; ties by op index.

    An op goes to the device where it ends first. Devices whose memory is full of weights are excluded while there is
    another, and so are pins to them. Takes about O((N + E) D log N); insertion also passes over gaps too short for it.

    Args:
        insertion: Use the first gap that is long enough, instead of starting after all ops of the device.
        by_start: Take the device where the op starts first, then ends first.
        pinned: The device of each op [N], -1 to choose it.
        device_order: Order of devices for remaining ties, by default by index, [D].
    """
    n, d = tables.time_s.shape
    s = ListState.of(tables)
    pins = np.full(n, -1, dtype=np.int64) if pinned is None else pinned
    ties = np.arange(d) if device_order is None else device_order
    idle = IdleTime.of(d, n if insertion else 0)
    run_kernel(_run, d * (n + len(tables.in_op)), tables, s, idle, urgency, pins, ties, insertion, by_start)
    return s.schedule()


@bare
def _run(
    t: Tables,
    s: ListState,
    idle: IdleTime,
    urgency: FloatArray,
    pinned: IntArray,
    device_order: IntArray,
    insertion: bool,
    by_start: bool,
) -> None:
    num_ready = first_ready(s, urgency)
    for turn in range(len(s.device)):
        v = pop(s.ready, ZERO, num_ready)
        num_ready -= 1
        pin, within = pinned[v], True
        while not _place(t, s, idle, v, pin, device_order, insertion, by_start, within):
            pin, within = -1, pin >= 0
        s.sequence[turn] = v
        num_ready = release(t, s, urgency, v, num_ready)


@inlined
def first_ready(s: ListState, urgency: FloatArray) -> int:
    """Put the ops without inputs into the heap and return their number."""
    count: int = ZERO
    for v in range(len(s.device)):
        if s.waiting[v] == 0:
            push(s.ready, ZERO, count, -urgency[v], v)
            count += 1
    return count


@inlined
def release(t: Tables, s: ListState, urgency: FloatArray, v: int, count: int) -> int:
    """Put the ops that waited only for v into the heap of ``count`` ops; return the new count."""
    for k in range(t.out_first[v], t.out_first[v + 1]):
        u = t.out_op[k]
        s.waiting[u] -= 1
        if s.waiting[u] == 0:
            push(s.ready, ZERO, count, -urgency[u], u)
            count += 1
    return count


@inner
def _place(
    t: Tables,
    s: ListState,
    idle: IdleTime,
    v: int,
    pin: int,
    device_order: IntArray,
    insertion: bool,
    by_start: bool,
    limited: bool,
) -> bool:
    """Place v on its best device; return False if no device may take it."""
    best, best_start_s, best_end_s, slot = -1, np.inf, np.inf, -1
    for i in range(len(device_order)):
        d = device_order[i]
        if t.time_s[v, d] == np.inf or (pin >= 0 and d != pin) or (limited and not has_room(t, s, v, d)):
            continue
        ready_s = arrival_s(t, v, d, s.device, s.end_s)
        gap = -1
        start_s = max(ready_s, s.free_s[d])
        if insertion:
            start_s, gap = earliest(idle, d, ready_s, t.time_s[v, d], t.op_overhead_s)
        end_s = start_s + t.time_s[v, d]
        sooner = end_s < best_end_s
        if by_start:
            sooner = start_s < best_start_s or (start_s == best_start_s and sooner)
        if best < 0 or sooner:
            best, best_start_s, best_end_s, slot = d, start_s, end_s, gap
    if best < 0:
        return False
    if insertion:
        occupy(idle, best, slot, best_start_s, best_end_s + t.op_overhead_s)
    assign(t, s, v, best, best_start_s)
    return True


@inlined
def has_room(t: Tables, s: ListState, v: int, d: int) -> bool:
    """Return whether device d can hold the weights of v in addition to those it has."""
    fits: bool = s.held_bytes[d] + t.weight_bytes[v] <= s.limit_bytes[d]
    return fits


@inlined
def assign(t: Tables, s: ListState, v: int, d: int, start_s: float) -> None:
    """Record that v starts on device d at ``start_s``."""
    s.device[v] = d
    s.start_s[v] = start_s
    s.end_s[v] = start_s + t.time_s[v, d]
    s.held_bytes[d] += t.weight_bytes[v]
    s.free_s[d] = max(s.free_s[d], s.end_s[v] + t.op_overhead_s)


class Outlook(NamedTuple):
    """What a learned scheduler sees before it places an op, in addition to ``ListState``.

    For these schedulers ``held_bytes`` counts weights and the results that unplaced ops still need.
    """

    candidate: IntArray  # [N] ops whose inputs are placed
    readers: IntArray  # [N] edges to consumers that are not placed yet
    ready_s: FloatArray  # [N, D] when the inputs of a candidate have arrived; of other ops, the inputs sent so far
    work_s: FloatArray  # [D] time of the ops on a device
    sent_s: FloatArray  # [D] time of transfers to a device for the present op
    input_share: FloatArray  # [D] share of the present op's input on a device
    memory: FloatArray  # [D] share of memory taken, including the present op

    @staticmethod
    def of(tables: Tables) -> Outlook:
        """Return the state before the first op."""
        n, d = tables.time_s.shape
        of_devices = (np.zeros(d) for _ in range(4))
        return Outlook(np.zeros(n, np.int64), np.diff(tables.out_first), np.zeros((n, d)), *of_devices)


@inlined
def first_candidates(s: ListState, w: Outlook) -> int:
    """Make the ops without inputs candidates and return their number."""
    count = 0
    for v in range(len(s.device)):
        if s.waiting[v] == 0:
            w.candidate[count] = v
            count += 1
    return count


@inlined
def offer(t: Tables, s: ListState, w: Outlook, v: int, count: int) -> int:
    """Add the ops that waited only for v to the ``count`` candidates; return the new count."""
    for k in range(t.out_first[v], t.out_first[v + 1]):
        u = t.out_op[k]
        s.waiting[u] -= 1
        if s.waiting[u] == 0:
            for d in range(len(s.free_s)):
                w.ready_s[u, d] = arrival_s(t, u, d, s.device, s.end_s)
            w.candidate[count] = u
            count += 1
    return count


@inlined
def look(t: Tables, s: ListState, w: Outlook, v: int) -> None:
    """Compute for each device its share of v's input, the transfers to it, and its memory with v."""
    received = 0.0
    w.input_share[:] = w.sent_s[:] = 0.0
    for k in range(t.in_first[v], t.in_first[v + 1]):
        home = s.device[t.in_op[k]]
        received += t.in_bytes[k]
        w.input_share[home] += t.in_bytes[k]
        for d in range(len(s.free_s)):
            w.sent_s[d] += t.latency_s[home, d] + t.in_bytes[k] / t.bandwidth_bytes_per_s[home, d]
    for d in range(len(s.free_s)):
        needed = s.held_bytes[d] + received - w.input_share[d] + t.weight_bytes[v] + t.output_bytes[v]
        w.memory[d] = needed / max(t.memory_bytes[d], 1.0)
        w.input_share[d] = w.input_share[d] / received if received > 0.0 else 0.0


@inlined
def send(t: Tables, s: ListState, w: Outlook, v: int, home: int) -> None:
    """Note when each consumer of the placed op ``v`` has its result on every device."""
    for k in range(t.out_first[v], t.out_first[v + 1]):
        u = t.out_op[k]
        for d in range(len(s.free_s)):
            sent_s = t.latency_s[home, d] + t.out_bytes[k] / t.bandwidth_bytes_per_s[home, d]
            w.ready_s[u, d] = max(w.ready_s[u, d], s.end_s[v] + sent_s)


@inlined
def way_by_consumers(t: Tables, tail_s: FloatArray, s: ListState, w: Outlook, v: int, d: int, end_s: float) -> float:
    """Return the estimated end of the schedule if v ends on d at ``end_s``, with each consumer on its best device.

    Other inputs of the consumers count if they are placed already; ``tail_s`` [N, D] are least seconds behind an op.
    """
    longest_s = end_s
    for k in range(t.out_first[v], t.out_first[v + 1]):
        u = t.out_op[k]
        least_s = np.inf
        for other in range(len(s.free_s)):
            sent_s = t.latency_s[d, other] + t.out_bytes[k] / t.bandwidth_bytes_per_s[d, other]
            start_s = max(max(w.ready_s[u, other], end_s + sent_s), s.free_s[other])
            least_s = min(least_s, start_s + t.time_s[u, other] + tail_s[u, other])
        longest_s = max(longest_s, least_s)
    return longest_s


def tails_of(tables: Tables) -> FloatArray:
    """Return the least seconds [N, D] that follow an op on a device, transfers included."""
    tail_s: FloatArray = np.zeros(tables.time_s.shape)
    run_kernel(_fill_tails, 0.05 * tail_s.shape[1] ** 2 * len(tables.in_op), tables, tail_s)
    return tail_s


@bare
def _fill_tails(t: Tables, tail_s: FloatArray) -> None:
    """Fill ``tail_s`` [N, D] with PEFT's optimistic cost table (Arabnejad and Barbosa 2014, eq. 1), in O(E D^2)."""
    for i in range(len(t.order) - 1, -1, -1):
        v = t.order[i]
        for d in range(tail_s.shape[1]):
            longest_s = 0.0
            for k in range(t.out_first[v], t.out_first[v + 1]):
                u = t.out_op[k]
                least_s = np.inf
                for other in range(tail_s.shape[1]):
                    sent_s = t.latency_s[d, other] + t.out_bytes[k] / t.bandwidth_bytes_per_s[d, other]
                    least_s = min(least_s, sent_s + t.time_s[u, other] + tail_s[u, other])
                longest_s = max(longest_s, least_s)
            tail_s[v, d] = longest_s


@inlined
def permit(t: Tables, w: Outlook, v: int, most_memory: float, able: BoolArray) -> None:
    """Mark the devices that support v and have room for it; if none has, the one that v would overfill least."""
    roomiest = -1
    for d in range(len(able)):
        able[d] = t.time_s[v, d] < np.inf and w.memory[d] <= most_memory
        if t.time_s[v, d] < np.inf and (roomiest < 0 or w.memory[d] < w.memory[roomiest]):
            roomiest = d
    if not able.any():
        able[roomiest] = True


@inlined
def assign_and_free(t: Tables, s: ListState, w: Outlook, v: int, d: int, start_s: float) -> None:
    """Record that v starts on device d at ``start_s``, and free results that no unplaced op reads."""
    assign(t, s, v, d, start_s)
    w.work_s[d] += t.time_s[v, d]
    if w.readers[v] > 0:
        s.held_bytes[d] += t.output_bytes[v]
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        w.readers[u] -= 1
        if w.readers[u] == 0:
            s.held_bytes[s.device[u]] -= t.output_bytes[u]
