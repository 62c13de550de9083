"""The gate on two runtimes: what is deployed must compute what a second runtime computes from the same Q/DQ model. And which hop lost what."""

from __future__ import annotations

from pipeline.decibels import drift
from pipeline.records import Agreement, Attribution, Check, Verdict

NAME = "runtimes_agree"


def agreement_check(agreement: Agreement) -> Check:
    """PASS where no output is further from the second runtime than the bound, in dB; else FAIL, naming the node where they part.

    There is no interval: on the rows that were run the difference is what it is.
    """
    decibels = [value for value in agreement.sqnr_db_by_output.values() if value is not None]
    worst = min(decibels, default=None)
    verdict = Verdict.PASS if agreement.agrees else Verdict.FAIL
    evidence = f"{agreement.first} against {agreement.second} on {agreement.rows} rows"
    evidence += f": {worst:.1f} dB at the worst output" if worst is not None else ": equal outputs"
    decide = ""
    if agreement.parted_at is not None:
        parted = agreement.parted_at
        evidence += f"; they part at {parted.node} ({parted.operator}): {_db(parted.before_db)} before it, {parted.sqnr_db:.1f} dB behind"
        decide = f"`qwarm lint` on the Q/DQ model; leave {parted.node} in float, or quantize it whole"
    elif not agreement.agrees:
        decide = "`qwarm compare` of the float model and the engine by output channel"
    return Check(NAME, verdict, worst, None, agreement.bound_db, "min", "dB", evidence, decide)


def loss_text(attribution: Attribution) -> str:
    """Where the loss on the way to the engine arises, in one sentence."""
    first, last = attribution.hops[0].hop.partition(" -> ")[0], attribution.hops[-1].hop.rpartition(" -> ")[2]
    if attribution.blamed is None:
        return f"Nothing is lost from {first} to {last} on {attribution.rows} rows."
    power: dict[str, float] = {}
    for hop in attribution.hops:
        power[hop.hop] = max(power.get(hop.hop, 0.0), drift(hop.sqnr_db))
    share = power[attribution.blamed] / sum(power.values())
    whole = min((hop.sqnr_db for hop in attribution.whole if hop.sqnr_db is not None), default=None)
    place = attribution.parted_at
    worst = "" if place is None else f", most at {place.node} ({place.operator}: {_db(place.before_db)} before it, {place.sqnr_db:.1f} dB behind)"
    return f"From {first} to {last}: {_db(whole)} on {attribution.rows} rows; {share:.0%} of the error power arises in {attribution.blamed}{worst}."


def _db(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f} dB"
