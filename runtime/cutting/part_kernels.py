"""Compiled loops over the parts of a cut: what they take, their list schedule, and merging by trial.

Parts are numbered 0 to count - 1, arrays may be longer. Legend: I instances, T tensors that instances hand out, K reads
of a tensor by an instance, S parts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hsdag.ir.graph import BoolArray, FloatArray, IntArray


@njit(cache=True)
def quotient(
    label: IntArray,
    count: int,
    device: IntArray,
    op_s: FloatArray,
    tensor_src: IntArray,
    tensor_bytes: FloatArray,
    is_result: BoolArray,
    read_tensor: IntArray,
    read_by: IntArray,
    launch_s: FloatArray,
    read_s: FloatArray,
    write_s: FloatArray,
    part_device: IntArray,
    duration_s: FloatArray,
    follows: BoolArray,
) -> None:  # pragma: no cover - compiled
    """Device and seconds of each part, and which part follows which."""
    follows[:count, :count] = False
    for p in range(count):
        duration_s[p] = -1.0
    for i in range(len(label)):
        p = label[i]
        if duration_s[p] < 0:
            part_device[p] = device[i]
            duration_s[p] = launch_s[device[i]]
        duration_s[p] += op_s[i]
    written = is_result.copy()
    read = np.zeros((len(tensor_src), count), dtype=np.bool_)
    for k in range(len(read_tensor)):
        t = read_tensor[k]
        p, q = label[tensor_src[t]], label[read_by[k]]
        if p != q:
            follows[p, q] = written[t] = True
            if not read[t, q]:
                read[t, q] = True
                duration_s[q] += tensor_bytes[t] * read_s[part_device[q]]
    for t in range(len(tensor_src)):
        if written[t]:
            duration_s[label[tensor_src[t]]] += tensor_bytes[t] * write_s[device[tensor_src[t]]]


@njit(cache=True)
def _has_detour(follows: BoolArray, count: int, a: int, b: int) -> bool:  # pragma: no cover - compiled
    """Whether a path leads from a to b over a third part."""
    seen = np.zeros(count, dtype=np.bool_)
    stack = np.empty(count, dtype=np.int64)
    top = 0
    for p in range(count):
        if follows[a, p] and p != b:
            seen[p] = True
            stack[top] = p
            top += 1
    while top:
        top -= 1
        p = stack[top]
        if follows[p, b]:
            return True
        for q in range(count):
            if follows[p, q] and not seen[q]:
                seen[q] = True
                stack[top] = q
                top += 1
    return False


@njit(cache=True)
def _mark_pairs(parts: IntArray, near: BoolArray) -> None:  # pragma: no cover - compiled
    """Write True for every two of some ascending parts."""
    for i in range(len(parts)):
        for j in range(i + 1, len(parts)):
            near[parts[i], parts[j]] = True


@njit(cache=True)
def _candidates(part_device: IntArray, duration_s: FloatArray, follows: BoolArray, count: int) -> IntArray:
    """[C, 2] pairs of parts of one device that are neighbours, the shortest first."""  # pragma: no cover - compiled
    near = np.zeros((count, count), dtype=np.bool_)
    before, after = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for p in range(count):
        num_before = num_after = 0
        for q in range(count):
            if follows[q, p]:
                before[num_before] = q
                num_before += 1
            if follows[p, q]:
                near[min(p, q), max(p, q)] = True
                after[num_after] = q
                num_after += 1
        _mark_pairs(before[:num_before], near)
        _mark_pairs(after[:num_after], near)
    pairs = np.empty((count * count, 2), dtype=np.int64)
    key = np.empty(count * count)
    num = 0
    for a in range(count):
        for b in range(a + 1, count):
            if near[a, b] and part_device[a] == part_device[b]:
                pairs[num, 0], pairs[num, 1] = a, b
                key[num] = duration_s[a] + duration_s[b]
                num += 1
    return pairs[:num][np.argsort(key[:num], kind="mergesort")]


@njit(cache=True)
def merge_all(
    label: IntArray,
    count: int,
    device: IntArray,
    op_s: FloatArray,
    tensor_src: IntArray,
    tensor_bytes: FloatArray,
    is_result: BoolArray,
    read_tensor: IntArray,
    read_by: IntArray,
    launch_s: FloatArray,
    read_s: FloatArray,
    write_s: FloatArray,
    most_trials: int,
    by_load: bool,
) -> None:  # pragma: no cover - compiled
    """Join parts in ``label`` while the makespan, or the load of the busiest device, gets no longer."""
    part_device = np.zeros(count, dtype=np.int64)
    duration_s, b_level_s, start_s = np.zeros(count), np.zeros(count), np.zeros(count)
    follows = np.zeros((count, count), dtype=np.bool_)
    trial, tried_device, tried_s, tried_follows = label.copy(), part_device.copy(), duration_s.copy(), follows.copy()
    costs, num_devices = (launch_s, read_s, write_s), len(launch_s)
    graph = (device, op_s, tensor_src, tensor_bytes, is_result, read_tensor, read_by)
    quotient(label, count, *graph, *costs, part_device, duration_s, follows)
    best_s = _judged(part_device, duration_s, follows, count, num_devices, b_level_s, start_s, by_load)
    work_s = duration_s[:count].sum()
    trials, merged = 0, True
    while merged and trials < most_trials:
        merged = False
        pairs = _candidates(part_device, duration_s, follows, count)
        for k in range(len(pairs)):
            a, b = pairs[k, 0], pairs[k, 1]
            if _has_detour(follows, count, a, b) or _has_detour(follows, count, b, a):
                continue
            if trials >= most_trials:
                break
            trials += 1
            for i in range(len(label)):
                p = label[i]
                trial[i] = a if p == b else (b if p == count - 1 else p)
            tried = (tried_device, tried_s, tried_follows)
            quotient(trial, count - 1, *graph, *costs, *tried)
            judged_s = _judged(*tried, count - 1, num_devices, b_level_s, start_s, by_load)
            total_s = tried_s[: count - 1].sum()
            if judged_s < best_s - 1e-12 or (judged_s <= best_s + 1e-12 and total_s < work_s):
                label[:] = trial
                count -= 1
                best_s, work_s, merged = judged_s, total_s, True
                quotient(label, count, *graph, *costs, part_device, duration_s, follows)
                break


@njit(cache=True)
def _judged(
    device: IntArray,
    duration_s: FloatArray,
    follows: BoolArray,
    count: int,
    num_devices: int,
    b_level_s: FloatArray,
    start_s: FloatArray,
    by_load: bool,
) -> float:  # pragma: no cover - compiled
    """The seconds that merging must not add to."""
    if not by_load:
        return scheduled_makespan(device, duration_s, follows, count, num_devices, b_level_s, start_s)
    load_s = np.zeros(num_devices)
    for p in range(count):
        load_s[device[p]] += duration_s[p]
    return float(load_s.max())


@njit(cache=True)
def scheduled_makespan(
    device: IntArray,
    duration_s: FloatArray,
    follows: BoolArray,
    count: int,
    num_devices: int,
    b_level_s: FloatArray,
    start_s: FloatArray,
) -> float:  # pragma: no cover - compiled
    """The makespan of work-conserving list scheduling by b-level; -1 where there is a cycle.

    Written are the b-levels and the starts.
    """
    if not _b_levels(duration_s, follows, count, b_level_s):
        return -1.0
    return list_schedule(device, duration_s, follows, count, num_devices, b_level_s, start_s)


@njit(cache=True)
def _waits(follows: BoolArray, count: int) -> IntArray:  # pragma: no cover - compiled
    """[count] how many parts each one follows."""
    waits = np.zeros(count, dtype=np.int64)
    for p in range(count):
        for q in range(count):
            waits[q] += follows[p, q]
    return waits


@njit(cache=True)
def _b_levels(
    duration_s: FloatArray, follows: BoolArray, count: int, b_level_s: FloatArray
) -> bool:  # pragma: no cover - compiled
    """Write seconds of the longest way to the end; False where there is a cycle."""
    order = np.empty(count, dtype=np.int64)
    left = _waits(follows, count)
    num = 0
    for p in range(count):
        if left[p] == 0:
            order[num] = p
            num += 1
    k = 0
    while k < num:
        for q in range(count):
            if follows[order[k], q]:
                left[q] -= 1
                if left[q] == 0:
                    order[num] = q
                    num += 1
        k += 1
    if num < count:
        return False
    for k in range(count - 1, -1, -1):
        p = order[k]
        b_level_s[p] = duration_s[p]
        for q in range(count):
            if follows[p, q]:
                b_level_s[p] = max(b_level_s[p], duration_s[p] + b_level_s[q])
    return True


@njit(cache=True)
def _next_of(
    d: int, device: IntArray, ready: BoolArray, b_level_s: FloatArray, count: int
) -> int:  # pragma: no cover - compiled
    """The ready part of a device with the largest b-level, ties by index; -1 where none is ready."""
    found = -1
    for p in range(count):
        if ready[p] and device[p] == d and (found < 0 or b_level_s[p] > b_level_s[found]):
            found = p
    return found


@njit(cache=True)
def list_schedule(
    device: IntArray,
    duration_s: FloatArray,
    follows: BoolArray,
    count: int,
    num_devices: int,
    b_level_s: FloatArray,
    start_s: FloatArray,
) -> float:  # pragma: no cover - compiled
    """The makespan where a free device takes the ready part with the largest b-level; starts are written."""
    waits = _waits(follows, count)
    ready = np.zeros(count, dtype=np.bool_)
    for p in range(count):
        ready[p] = waits[p] == 0
    runs = np.full(num_devices, -1, dtype=np.int64)
    until_s = np.zeros(num_devices)
    now_s = 0.0
    for _ in range(count):
        for d in range(num_devices):
            if runs[d] < 0:
                runs[d] = _next_of(d, device, ready, b_level_s, count)
                if runs[d] >= 0:
                    ready[runs[d]] = False
                    start_s[runs[d]] = now_s
                    until_s[d] = now_s + duration_s[runs[d]]
        first = -1
        for d in range(num_devices):
            if runs[d] >= 0 and (first < 0 or until_s[d] < until_s[first]):
                first = d
        if first < 0:
            break
        now_s = until_s[first]
        for d in range(num_devices):
            if runs[d] >= 0 and until_s[d] == now_s:
                _release(runs[d], follows, count, waits, ready)
                runs[d] = -1
    return now_s


@njit(cache=True)
def _release(
    p: int, follows: BoolArray, count: int, waits: IntArray, ready: BoolArray
) -> None:  # pragma: no cover - compiled
    """Make ready the parts that waited for part p alone."""
    for q in range(count):
        if follows[p, q]:
            waits[q] -= 1
            if waits[q] == 0:
                ready[q] = True
