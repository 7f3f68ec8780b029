"""What producers hand over, for every case of the catalogue, and the truth behind it.

The truth is built token by token: the ids that the case gives, or a generated row spelt out
here from (step, layer, DP rank, TP seat, token, kind). It passes no resolver.
"""

from functools import cache

import numpy as np
import pytest
from routeproof_conformance.cases import all_cases
from routeproof_reference import Kind, expected, producers
from routeproof_reference.rows import spell
from routeproof_spec import Layout

CASES = all_cases()
TWINS = tuple(case.twin for case in CASES if case.twin is not None)
PADDED = {Layout.TP_SHARD, Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX, Layout.PADDED_LOCAL}
SHARDED = {Layout.TP_SHARD, Layout.GATHERED_SHARDS}


@cache
def played():
    """(case, producer, what is expected of it per DP rank) of every step; equal steps once."""
    seen, found = set(), []
    for case in (*CASES, *TWINS):
        steps = producers(case)
        for producer, result in zip(steps, expected(case, steps), strict=True):
            if producer not in seen:
                seen.add(producer)
                found.append((case, producer, result))
    return found


@cache
def smallest_shard(count, tp):
    return next(size for size in range(count + 1) if size * tp >= count)


def fields(producer, dp, part, token):
    """Where one physical row comes from; `token` counts within the part."""
    size = smallest_shard(producer.counts(part)[dp], producer.topology.tp)
    seat = token // size if producer.step.emitted in SHARDED else 0
    kind = 1 if token < part.real[dp] else 2
    return producer.index, dp, seat, part.offset + token, kind


def spelt(step, layer, dp, seat, token, kind):
    digits = (step, layer, dp, seat, token % 32, token // 32 % 32, token // 1024, kind)
    return [32 * column + digit for column, digit in enumerate(digits)]


@cache
def truth(producer, dp):
    """Physical rows [extent][L][K] of a DP rank; None where no part has the row."""
    config = producer.config
    table = [None] * producer.extent(dp)
    for part in producer.parts:
        for token in range(producer.counts(part)[dp]):
            index, _, seat, position, kind = fields(producer, dp, part, token)
            if producer.step.ids is None:
                rows = [spelt(index, layer, dp, seat, position, kind) for layer in range(config.layers)]
            else:
                given = producer.step.ids[dp][position]
                rows = [list(given[layer][: config.top_k]) for layer in range(config.layers)]
            table[position] = rows
    return table


def real_tokens(producer, dp):
    """Positions of the published tokens, in order."""
    return [part.offset + token for part in producer.parts for token in range(part.real[dp])]


def check_expected(producer, result):
    for dp, at in enumerate(result):
        if at.error is not None:
            continue
        table, tokens = truth(producer, dp), real_tokens(producer, dp)
        layers = sorted(at.captured)
        own = at.own.tolist()
        assert len(own) == len(table)
        for position, rows in enumerate(table):
            for layer in layers:
                want = [-1] * producer.config.top_k if rows is None else rows[layer]
                assert own[position][layer] == want, (position, layer, dp)
        published = at.published.tolist()
        assert len(published) == len(tokens) == producer.step.context.real[dp]
        for got, token in zip(published, tokens, strict=True):
            assert [got[layer] for layer in layers] == [table[token][layer] for layer in layers], token


def test_expected_rows_are_the_truth():
    accepted = 0
    for case, producer, result in played():
        try:
            check_expected(producer, result)
        except AssertionError as error:
            raise AssertionError(f"{case.id}, step {producer.index}: {error}") from error
        accepted += any(at.error is None for at in result)
    assert accepted > len(played()) // 2


def test_a_wrong_expectation_is_refuted():
    case, producer, result = next(it for it in played() if it[0].id.startswith("LAY-03/shards[tp=2,dp=1,T=5"))
    assert case.topology.tp == 2
    check_expected(producer, result)
    kept = result[0].own[0].copy()
    result[0].own[0] = result[0].own[1]
    try:
        with pytest.raises(AssertionError):
            check_expected(producer, result)
    finally:
        result[0].own[0] = kept
    check_expected(producer, result)


def test_own_origins_are_the_tokens_in_order():
    for case, producer, _ in played():
        for dp in range(producer.topology.dp):
            for part in producer.parts:
                table = producer.own(dp, part)
                want = [fields(producer, dp, part, token) for token in range(producer.counts(part)[dp])]
                got = [(row[0], *row[2:]) for row in table.tolist()]
                assert got == want, (case.id, producer.index, dp)
                top_k = producer.config.top_k
                for layer in range(producer.config.layers):
                    table[:, 1] = layer
                    rows = producer.rows(table)[:, :top_k].tolist()
                    told = [truth(producer, dp)[row[3]][layer] for row in want]
                    assert rows == told, (case.id, producer.index, dp)


def calls():
    """Every rank and every call of every step."""
    for case, producer, _ in played():
        for rank in producer.topology.ranks():
            for call in producer.calls:
                yield case, producer, rank, call


def test_generated_rows_spell_their_origin():
    seen = set()
    for case, producer, rank, call in calls():
        if producer.step.ids is not None:
            continue
        rows, table = producer.handed(rank, call)
        layer = call.layer % producer.config.layers
        assert (table[:, 1] == layer).all()
        width = min(8, rows.shape[1])
        want = [spelt(step, of, dp, seat, token, kind) for step, of, dp, seat, token, kind in table.tolist()]
        got = rows[:, :width].tolist()
        assert got == [row[:width] for row in want], (case.id, producer.index)
        assert all(32 * column <= got[0][column] < 32 * column + 32 for column in range(width) if got)
        seen |= set(table[:, 5].tolist())
    assert seen == set(Kind)


def test_a_field_that_does_not_fit_is_refused():
    for column, value in ((0, 32), (4, 32**3), (2, -1)):
        table = np.zeros((1, 6), np.int64)
        table[0, column] = value
        with pytest.raises(ValueError, match="outside"):
            spell(table)


def test_what_is_handed_over_is_the_layout():
    """Physical rows of the right DP ranks in token order, padding only where the layout pads."""
    for case, producer, rank, call in calls():
        if call.n is not None:
            continue
        table = producer.handed(rank, call)[1]
        physical = table[table[:, 5] <= Kind.GRAPH_PADDING]
        assert producer.step.emitted in PADDED or len(physical) == len(table), case.id
        assert Kind.FILLER not in table[:, 5]
        part = producer.parts[min(call.microbatch, len(producer.parts) - 1)]
        everyone = {Layout.CROSS_DP, Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX}
        ranks = range(producer.topology.dp) if producer.step.emitted in everyone else [rank.dp]
        want = [(dp, part.offset + token) for dp in ranks for token in range(producer.counts(part)[dp])]
        if producer.step.emitted is Layout.TP_SHARD:
            want = [(dp, at) for dp, at in want if fields(producer, dp, part, at - part.offset)[2] == rank.tp]
        assert [(row[2], row[4]) for row in physical.tolist()] == want, (case.id, str(rank))


def test_padding_of_given_ids_is_no_row_of_the_truth():
    padding = 0
    for case, producer, rank, call in calls():
        if producer.step.ids is None:
            continue
        rows, table = producer.handed(rank, call)
        extra = rows[table[:, 5] > Kind.GRAPH_PADDING][:, : producer.config.top_k].tolist()
        tokens = [
            row[layer]
            for dp in range(producer.topology.dp)
            for row in truth(producer, dp)
            for layer in range(producer.config.layers)
        ]
        padding += len(extra)
        assert all(row not in tokens for row in extra), (case.id, extra)
    assert padding >= 8


def test_masks_are_as_long_as_the_rows_and_shards_where_they_are():
    masked = shards = 0
    for case, producer, rank, call in calls():
        mask = producer.context(rank).padding_mask
        if not producer.step.mask:
            assert mask is None
            continue
        rows, table = producer.handed(rank, call)
        assert len(mask) == len(rows), case.id
        assert list(mask) == [kind != Kind.REAL for kind in table[:, 5]]
        masked += 1
        shards += len(mask) != producer.extent(rank.dp)
    assert masked > shards > 50


def test_element_type_and_strides_are_as_asked():
    seen = set()
    for case, producer, rank, call in calls():
        step = producer.step
        ids = producer.ids(rank, call)
        assert ids.dtype == np.dtype(step.element), case.id
        assert ids.shape == producer.handed(rank, call)[0].shape
        assert np.array_equal(ids, producer.handed(rank, call)[0])
        if ids.size > len(ids) > 0:
            assert ids.flags.c_contiguous is not step.strided, case.id
        seen.add((step.element, step.strided))
    assert seen == {(element, strided) for element in ("int32", "int64") for strided in (False, True)}


def test_ids_are_fresh_copies():
    for case, producer, rank, call in calls():
        first = producer.ids(rank, call)
        before = first.copy()
        first[...] = 9
        assert np.array_equal(producer.ids(rank, call), before), case.id


def test_given_ids_must_fit_the_configuration():
    case = next(case for case in CASES if case.id == "LAY-02/six-tokens[tp=2,dp=1,N=6]")
    step = case.steps[-1]
    short = step.model_copy(update={"ids": (step.ids[0][:5],)})
    with pytest.raises(ValueError, match="ids of 5 tokens, 6 tokens"):
        producers(case.model_copy(update={"steps": (short,)}))
    generated = step.model_copy(update={"ids": None})
    with pytest.raises(ValueError, match="generated rows need K = 8"):
        producers(case.model_copy(update={"steps": (generated,)}))
