"""Inputs of public bug reports: what is right, worked out by hand.

The numbers below are literals: rows, slices of what is handed over, kinds of errors and
numbers of gathers. Nothing here asks the resolver or the catalogue what to expect.
"""

import pytest
from routeproof_conformance.cases import all_cases, reported
from routeproof_reference import expected, producers
from routeproof_spec import CapacityError, ExpertIdError, Layout, LayoutError, Rank

BY_ID = {case.id: case for case in all_cases()}

FITS = {(2, 3): {2, 3, 4}, (2, 5): {3, 5, 6}, (2, 6): {3, 6}, (4, 2): {1, 2, 4}}
"""C1f: the n that are accepted, by TP size and N; tried are 0 to 8."""


def fits(tp, count, n):
    word = "fits" if n in FITS[tp, count] else "fits-not"
    return f"LAY-01/{word}[tp={tp},dp=1,N={count},n={n}]"


WHERE = {
    "C1a": ("LAY-02/six-tokens[tp=2,dp=1,N=6]",),
    "C1b": ("LAY-05/three-tokens[tp=2,dp=1,N=3]",),
    "C1c": ("LAY-03/two-tokens-of-four-ranks[tp=4,dp=1,N=2]",),
    "C1d": ("COL-02/one-token[tp=2,dp=1,N=1]",),
    "C1e": ("LAY-01/one-row-of-six[tp=2,dp=1,N=6,n=1]",),
    "C1f": tuple(fits(tp, count, n) for tp, count in FITS for n in range(9)),
    "C1g": tuple(f"LAY-05/gathered-and-padded[tp=2,dp=1,N={count}]" for count in (3, 5)),
    "C1h": ("LAY-02/one-row-shards[tp=8,dp=1,N=5]",),
    "C2a": ("LAY-02/naive-dispatch[tp=1,dp=3,T=3+5+2]",),
    "C2b": ("LAY-02/padded-to-max[tp=1,dp=3,T=3+5+2]",),
    "C2c": ("LAY-02/local-rows[tp=1,dp=3,T=3+5+2]",),
    "C2d": ("LAY-01/eleven-of-ten[tp=1,dp=3,T=3+5+2,n=11]",),
    "C3": ("LAY-04/gathered-groups[tp=2,dp=2,T=5+3]",),
    "C3x": ("LAY-06/ten-rows-either-way[tp=2,dp=2,T=5+3]", "LAY-10/ten-rows-declared[tp=2,dp=2,T=5+3]"),
    "C4": ("LAY-10/padded-local-at-dp[tp=2,dp=2,T=1+3]",),
    "C5": tuple(f"BUF-05/staged-graph[tp={tp},dp=1,graph=16,R=4+3]" for tp in (1, 2)),
    "C5b": tuple(f"BUF-05/staged-graph[tp={tp},dp=1,graph=128,R=32+31]" for tp in (1, 2)),
    "C6": ("LAY-02/graph-extent[tp=1,dp=4,R=11+13+17+19,graph=32]",),
    "C7": ("BUF-04/graph-batch-at-dp2[tp=1,dp=2,n=32]",),
    "C8": ("BUF-04/unchunked-prefill[tp=1,dp=1,T=8192]",),
    "C9": tuple(f"LAY-03/few-tokens[tp=4,dp=1,N={count}]" for count in range(1, 17)),
    "C10": (
        *(f"SNP-02/kept[tp=1,dp=1,E={experts}]" for experts in (256, 512)),
        *(f"IDS-02/no-wrap[tp=1,dp=1,E=256,id={wrong}]" for wrong in (300, 256, -1)),
    ),
    "C11": ("BUF-09/shared-column[tp=1,dp=1,E=384]",),
}
"""The numbered inputs, and the cases of the catalogue that have them."""


def test_every_numbered_input_has_its_cases():
    listed = [case for cases in WHERE.values() for case in cases]
    assert len(listed) == len(set(listed))
    assert set(listed) == {case.id for family in reported.FAMILIES for case in family()}
    assert {case for case in listed if BY_ID[case].source == ""} == set()
    numbers = {int("".join(c for c in name if c.isdigit())) for name in WHERE}
    assert numbers == set(range(1, 12))


def row(step, layer, dp, tp, token, kind=1):
    """A generated row: column j holds 32 j + its field; kinds: 1 real, 2 graph padding, 3 other padding."""
    fields = (step, layer, dp, tp, token % 32, token // 32, 0, kind)
    return [32 * column + field for column, field in enumerate(fields)]


def case_of(name, index=0):
    return BY_ID[WHERE[name][index]]


def result(case, step=1, dp=0):
    return expected(case)[step][dp]


def published(case, step=1, dp=0, layer=0):
    got = result(case, step, dp)
    assert got.error is None
    return got.published[:, layer].tolist()


def handed(case, step=1, dp=0, tp=0, call=0):
    """What one rank hands over."""
    producer = producers(case)[step]
    rows = producer.ids(Rank(topology=case.topology, dp=dp, tp=tp), producer.calls[call])
    return rows.tolist()


def errors(case):
    """The kind of error of every step, at each DP rank."""
    return [[type(at.error) if at.error else None for at in step] for step in expected(case)]


STALE = [[7, 5], [7, 4], [7, 3], [7, 2], [7, 1], [7, 0], [6, 5], [6, 4]]
PAD = [7, 7]


@pytest.mark.parametrize("name", ["C1a", "C1b", "C1c", "C1d", "C1e", "C1g"])
def test_an_earlier_step_of_full_size_left_other_rows(name):
    for index in range(len(WHERE[name])):
        case = case_of(name, index)
        assert published(case, step=0) == STALE
        assert (case.config.experts, case.config.top_k, case.config.layers) == (8, 2, 1)


def test_c1a_six_tokens_of_two_ranks():
    case = case_of("C1a")
    assert handed(case, tp=0) == [[0, 1], [2, 3], [4, 5]]
    assert handed(case, tp=1) == [[6, 7], [1, 0], [3, 2]]
    assert published(case) == [[0, 1], [2, 3], [4, 5], [6, 7], [1, 0], [3, 2]]
    assert result(case).gathers == 1


def test_c1b_three_tokens_of_two_ranks():
    case = case_of("C1b")
    assert handed(case, tp=0) == [[0, 1], [2, 3]]
    assert handed(case, tp=1) == [[4, 5], PAD]
    assert published(case) == [[0, 1], [2, 3], [4, 5]]
    assert result(case).gathers == 1


def test_c1c_two_tokens_of_four_ranks():
    case = case_of("C1c")
    assert [handed(case, tp=tp) for tp in range(4)] == [[[1, 2]], [[3, 4]], [PAD], [PAD]]
    assert published(case) == [[1, 2], [3, 4]]
    assert result(case).gathers == 1


def test_c1d_one_token_needs_no_gather():
    case = case_of("C1d")
    assert [handed(case, tp=tp) for tp in range(2)] == [[[0, 1]], [PAD]]
    assert published(case) == [[0, 1]]
    assert result(case).gathers == 0


def test_c1e_one_row_of_six_tokens():
    case = case_of("C1e")
    assert [len(handed(case, tp=tp)) for tp in range(2)] == [1, 1]
    assert errors(case) == [[None], [LayoutError], [None]]
    assert result(case).gathers == 0
    assert published(case, step=2) == [[0, 1], [2, 3], [4, 5], [6, 7], [1, 0], [3, 2]]


@pytest.mark.parametrize(("tp", "count"), FITS)
def test_c1f_exactly_these_sizes_fit(tp, count):
    for n in range(9):
        case = BY_ID[fits(tp, count, n)]
        assert [len(handed(case, tp=rank)) for rank in range(tp)] == [n] * tp
        if n not in FITS[tp, count]:
            assert errors(case) == [[None], [LayoutError], [None]]
            continue
        shard = {2: 1, 3: 2, 5: 3, 6: 3}[count] if tp == 2 else 1
        for layer in range(2):
            seat = [token // shard if n == shard else 0 for token in range(count)]
            assert published(case, layer=layer) == [
                row(1, layer, 0, seat[token], token) for token in range(count)
            ]
        assert result(case).gathers == (2 if n == shard else 0)


@pytest.mark.parametrize(("index", "count", "n"), [(0, 3, 4), (1, 5, 6)])
def test_c1g_gathered_and_padded_already(index, count, n):
    case = case_of("C1g", index)
    rows = [[0, 1], [2, 3], [4, 5], [6, 7], [1, 0]][:count]
    for tp in range(2):
        assert handed(case, tp=tp) == [*rows, PAD]
        assert len(handed(case, tp=tp)) == n
    assert published(case) == rows
    assert result(case).gathers == 0


def test_c1h_five_shards_of_one_row():
    case = case_of("C1h")
    for layer in range(2):
        rows = [row(1, layer, 0, token, token) for token in range(5)]
        assert [handed(case, tp=tp, call=layer) for tp in range(5)] == [[one] for one in rows]
        assert [handed(case, tp=tp, call=layer)[0][7] for tp in (5, 6, 7)] == [32 * 7 + 3] * 3
        assert published(case, layer=layer) == rows
    assert result(case).gathers == 2


def slices(case, step, n, bounds):
    """The own rows are [start, stop) of what each publisher hands over, and its tokens in order."""
    assert len(bounds) == case.topology.dp
    for dp, (start, stop) in enumerate(bounds):
        for layer in range(2):
            rows = handed(case, step, dp=dp, call=layer)
            assert len(rows) == n[dp]
            assert published(case, step, dp, layer) == rows[start:stop]
            assert [one[2] - 64 for one in rows[start:stop]] == [dp] * (stop - start)
            assert [one[4] - 128 for one in rows[start:stop]] == list(range(stop - start))
        assert result(case, step, dp).gathers == 0


def test_c2_three_dp_ranks():
    slices(case_of("C2a"), 1, (10, 10, 10), ((0, 3), (3, 8), (8, 10)))
    slices(case_of("C2b"), 1, (15, 15, 15), ((0, 3), (5, 10), (10, 12)))
    slices(case_of("C2c"), 1, (3, 5, 2), ((0, 3), (0, 5), (0, 2)))
    assert Layout.PADDED_TO_MAX in case_of("C2b").config.layouts


def test_c2d_eleven_rows_of_ten_tokens():
    case = case_of("C2d")
    assert [len(handed(case, dp=dp)) for dp in range(3)] == [11, 11, 11]
    assert errors(case) == [[None] * 3, [LayoutError] * 3, [None] * 3]
    slices(case, 2, (10, 10, 10), ((0, 3), (3, 8), (8, 10)))


def test_c3_shard_groups():
    case = case_of("C3")
    assert case.steps[1].context.shard_sizes == (3, 3, 2, 2)
    slices(case, 1, (10, 10), ((0, 5), (6, 9)))
    for tp in range(2):
        kinds = [one[7] - 224 for one in handed(case, dp=1, tp=tp)]
        assert kinds == [1, 1, 1, 1, 1, 3, 1, 1, 1, 3]


def test_c3x_ten_rows_either_way():
    wrong, declared = case_of("C3x", 0), case_of("C3x", 1)
    for case in (wrong, declared):
        assert case.config.layouts == {Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX}
        assert case.steps[1].context.shard_sizes == (3, 3, 2, 2)
        assert len(handed(case, dp=1)) == 10
    # Both layouts put the rows of DP rank 0 first; only DP rank 1 cannot tell.
    assert errors(wrong) == [[None, None], [None, LayoutError], [None, None]]
    assert wrong.steps[1].context.declared is None
    slices(declared, 1, (10, 10), ((0, 5), (5, 8)))
    slices(wrong, 2, (10, 10), ((0, 5), (5, 8)))


def test_c4_padded_local_declared_at_two_dp_ranks():
    case = case_of("C4")
    assert case.steps[1].context.declared is Layout.PADDED_LOCAL
    slices(case, 1, (2, 4), ((0, 1), (0, 3)))
    assert Layout.PADDED_LOCAL not in case.config.layouts_at(2)


@pytest.mark.parametrize(
    ("name", "half", "tokens"),
    [
        ("C5", 8, [0, 1, 2, 3, 8, 9, 10]),
        ("C5b", 64, [*range(32), *range(64, 95)]),
    ],
)
def test_c5_two_microbatches_in_one_graph(name, half, tokens):
    for index, tp in enumerate((1, 2)):
        case = case_of(name, index)
        assert [part.offset for part in case.steps[1].context.microbatches] == [0, half]
        shard = half // tp
        for layer in range(2):
            rows = [row(1, layer, 0, token % half // shard, token) for token in tokens]
            assert published(case, layer=layer) == rows
            buffer = result(case).own[:, layer].tolist()
            assert len(buffer) == 2 * half
            assert [buffer[token] for token in tokens] == rows
        assert result(case).gathers == (4 if tp == 2 else 0)


def test_c6_eager_then_in_a_graph():
    case = case_of("C6")
    slices(case, 1, (60,) * 4, ((0, 11), (11, 24), (24, 41), (41, 60)))
    slices(case, 2, (128,) * 4, ((0, 11), (32, 45), (64, 81), (96, 115)))
    own = result(case, 2, 2).own[:, 0].tolist()
    assert own == handed(case, 2, dp=2)[64:96]
    assert [one[7] - 224 for one in own] == [1] * 17 + [2] * 15


def test_c7_a_step_of_32_rows_on_two_dp_ranks_of_16():
    case = case_of("C7")
    assert case.config.max_tokens == 16
    slices(case, 1, (32, 32), ((0, 16), (16, 32)))


def test_c8_a_prefill_of_8192_tokens_and_a_buffer_of_2048():
    case = case_of("C8")
    assert errors(case) == [[CapacityError], [None]]
    message = str(result(case, 0).error)
    assert "8192" in message
    assert "2048" in message
    assert result(case, 1).published.shape == (2048, 1, 8)


@pytest.mark.parametrize("count", range(1, 17))
def test_c9_four_ranks(count):
    case = case_of("C9", count - 1)
    shard = (None, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4)[count]
    assert [len(handed(case, tp=tp)) for tp in range(4)] == [shard] * 4
    for layer in range(2):
        assert published(case, layer=layer) == [
            row(1, layer, 0, token // shard, token) for token in range(count)
        ]
    assert result(case).gathers == (0 if count == 1 else 2)


def test_c10_ids_that_one_byte_does_not_hold():
    assert published(case_of("C10", 0), step=0) == [[255, 0], [1, 255]]
    assert published(case_of("C10", 1), step=0) == [[255, 256], [300, 511]]
    for index, wrong in ((2, 300), (3, 256), (4, -1)):
        case = case_of("C10", index)
        assert handed(case) == [[255, 0], [1, wrong]]
        assert errors(case) == [[None], [ExpertIdError], [None]]
        assert str(wrong) in str(result(case).error)
        assert published(case, step=2) == [[255, 0], [1, 2]]


def test_c11_the_shared_column_is_dropped():
    case = case_of("C11")
    assert (case.config.experts, case.config.top_k, case.config.shared_columns) == (384, 6, 1)
    assert handed(case, step=0) == [[343, 178, 114, 6, 141, 378, 384]]
    assert published(case, step=0) == [[343, 178, 114, 6, 141, 378]]
