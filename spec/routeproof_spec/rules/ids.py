"""IDS: what the numbers in a row mean.

IDS-02 and IDS-05 are the capturer's. The others are the router's: by the time ids reach
the capturer, a physical or shared id looks like any other.
"""

from routeproof_spec.rule import Level, Rule, Surface

ROUTER = (Surface.ROUTER,)
CAPTURER = (Surface.CAPTURER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="IDS-01",
        level=Level.MUST,
        title="logical ids",
        statement=(
            "Captured ids MUST be logical expert ids, as the router numbers its experts; the map to physical "
            "replicas that expert-load balancing applies comes after capture."
        ),
        surfaces=ROUTER,
        capability="expert-load-balancing",
        rationale=(
            "Physical ids depend on where replicas lay at that moment. A trainer has no such table and takes "
            "them for other experts, or for ids out of range."
        ),
        sources=("vLLM #33013",),
    ),
    Rule(
        id="IDS-02",
        level=Level.MUST,
        title="range",
        statement=(
            "An id outside [0, E) MUST lead to an error or to the missing marker that the profile declares. "
            "It MUST NOT become a valid id, in narrowing or otherwise. The error need not be raised by the "
            "capture call: whoever reads the snapshot may get it."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Narrowing to uint8 turns 300 into 44 and -1 into 255: a fault upstream, or a masked padding "
            "row, then passes as a choice of the router."
        ),
        sources=("prime-rl #3051", "ms-swift #9981"),
    ),
    Rule(
        id="IDS-03",
        level=Level.MUST,
        title="distinct ids",
        statement=(
            "The K ids of a row MUST be distinct. For a router with zero-experts (capability zero-experts) "
            "the level is PROFILE: the engine declares how ids can repeat in a row, and is held to that."
        ),
        surfaces=ROUTER,
        rationale=(
            "Dropless dispatch counts tokens * K pairs. A row that names an expert twice breaks the split "
            "sizes of the all-to-all in the trainer; a row of K zeros is one that nobody wrote."
        ),
        sources=("miles #1002", "vLLM #44116"),
    ),
    Rule(
        id="IDS-04",
        level=Level.MUST,
        title="no shared experts",
        statement="Experts that every token uses (shared experts) MUST NOT be among the K ids of a row.",
        surfaces=ROUTER,
        capability="shared-experts",
        rationale=(
            "A fused shared expert has an id from E on. Among the routed ones it displaces a real choice, "
            "and in replay it names an expert that the router does not have."
        ),
        sources=("SGLang #9499", "SGLang #38963"),
    ),
    Rule(
        id="IDS-05",
        level=Level.MUST,
        title="column order",
        statement=(
            "The columns of a row MUST be in the router's order; capture, gather and publication neither "
            "sort nor permute them."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Column j goes with weight j of the router. Readers that compare weights, or that pair columns "
            "over layers, get wrong pairs from sorted rows, while set comparisons still pass."
        ),
        sources=("derived: trainers that replay by column, such as slime",),
    ),
)
"""The rules on ids, in catalogue order."""
