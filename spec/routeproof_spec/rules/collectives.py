"""COL: which collectives a capturer may issue, and when.

These rules are judged from what the communicator of the TP group saw: predicates over
the recorded operations, never equality with a script. Gathering layer by layer and
gathering once a step are both possible. Surface of all: the capturer.
"""

from routeproof_spec.rule import Level, Rule, Surface

CAPTURER = (Surface.CAPTURER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="COL-01",
        level=Level.MUST,
        title="lockstep",
        statement=(
            "Ranks of one TP group whose context and n agree MUST issue equal sequences of collectives, "
            "equal in operation, element type and shape, whether the step ends well or in an error; a rank "
            "MUST NOT be left waiting for a peer that has returned or raised. Where contexts or row counts "
            "differ between the ranks, which is a fault upstream, every rank MUST end with an error before "
            "the time-out of the group has passed."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A rank that gathers alone waits for ever, and the server with it. A gather that meets one of "
            "another layer or another type returns plausible rows that belong to neither."
        ),
        sources=("vLLM #61388", "derived: uneven shards, where some ranks reject n and others gather"),
    ),
    Rule(
        id="COL-02",
        level=Level.MUST,
        title="no needless gather",
        statement=(
            "Where n rows already hold the own rows, a capturer MUST NOT gather. Hence there is no gather at "
            "T_d <= 1, where the publisher's shard is the whole."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Gathering rows that are complete multiplies them by tp: their order is then no token order, and "
            "each decode step of one token would pay for a collective per layer."
        ),
        sources=("vLLM #61388",),
    ),
    Rule(
        id="COL-03",
        level=Level.MUST,
        title="at most one gather per layer call",
        statement="A captured layer call MUST NOT lead to more than one gather.",
        surfaces=CAPTURER,
        rationale=(
            "Sizes, ids and validity gathered one by one triple the latency of each layer, and each extra "
            "collective is one more place where ranks can part."
        ),
        sources=("vLLM 0.33.0: one all-gather per layer call", "derived: COL-01"),
    ),
    Rule(
        id="COL-04",
        level=Level.SHOULD,
        title="one gather per step",
        statement="The shards of all layers of a step SHOULD be moved by one collective.",
        surfaces=CAPTURER,
        rationale=(
            "With 60 layers, a gather per layer is 60 collectives a step, each with its own launch and its "
            "own synchronisation of the group, for blocks of a few kilobytes."
        ),
        sources=("derived: bytes and launches of a gather per layer against one per step",),
    ),
    Rule(
        id="COL-05",
        level=Level.MUST,
        title="checks come first",
        statement=(
            "Layer index, width and layout of a call MUST be judged before the first collective that moves "
            "its rows. A rejected call therefore issues none."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A rank that finds the fault after joining has used up the collective of its peers; one that "
            "finds it while they join leaves them waiting."
        ),
        sources=("vLLM #61388", "vLLM 0.33.0: layer index checked before its gather"),
    ),
    Rule(
        id="COL-06",
        level=Level.MUST,
        title="contiguous, movable input",
        statement=(
            "What is handed to a collective MUST be contiguous and of an element type that the backend "
            "moves, also where the ids tensor is a strided view or of another type."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Backends copy memory, not views: a column slice of a wider tensor is refused or moves its "
            "neighbours. gloo refuses 16-bit integers, so ids narrowed to uint16 have to travel as bytes."
        ),
        sources=("vLLM 0.33.0: makes ids contiguous before its gather", "derived: types that gloo moves"),
    ),
    Rule(
        id="COL-07",
        level=Level.MUST,
        title="no host synchronisation",
        statement=(
            "The capture path MUST NOT read ids or buffer from the host, nor wait for the device in another "
            "way. Counts that are on the host may be read."
        ),
        surfaces=CAPTURER,
        rationale=(
            "One read of a device value per layer makes the host wait for all queued work, and makes capture "
            "impossible inside a recorded graph."
        ),
        sources=("derived: graph capture forbids it", "SGLang 0.5.23: clones on the device, copies later"),
    ),
)
"""The rules on collectives, in catalogue order."""
