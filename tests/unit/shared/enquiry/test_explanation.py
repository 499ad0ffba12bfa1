"""What explains how sites differ: numbers of sites as regressors, and groups of sites."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.held import SITES, hold

from penstock.base.errors import InvalidInput
from penstock.enquiry.explanation import Differences, Moderator, explain, read_differences
from penstock.enquiry.holdings import Holdings
from penstock.enquiry.reply import answer_questions, plot_answer
from penstock.inference.moderators import compare_subgroups, regress
from penstock.inference.weighting import pool_weighed

GROUPS = {"north": SITES[:3], "south": SITES[3:7]}
HELD = hold()


def ask(question: str = "sbp ~ sex", holdings: Holdings = HELD, **more):
    (told,) = answer_questions(holdings, [question], **more)
    return told


def test_answers_are_regressed_on_numbers_of_sites():
    told = ask(moderators=["mean(age)"])
    found = told["moderation"]
    ages = ask("mean(age)")["sites"]
    x = np.array([site["coefficient"]["estimate"] for site in ages])
    y = [site["coefficient"]["estimate"] for site in told["sites"]]
    v = [site["variance"] for site in told["sites"]]
    df = [site["df"] or np.inf for site in told["sites"]]
    want = regress(y, v, np.column_stack([np.ones(8), x - x.mean()]), degrees=df)
    got = found["coefficients"]
    assert [c["name"] for c in got] == ["intercept", "mean(age)"]
    assert [c["coefficient"]["estimate"] for c in got] == pytest.approx(want.coefficients)
    assert [c["se"] for c in got] == pytest.approx(want.errors)
    assert (found["tau2"], found["r2"], found["q"]) == (want.tau2, want.r2, want.q)
    assert (found["f"], found["f_df"], found["df"]) == (want.moderator, 1, 6)
    assert got[1]["centre"] == pytest.approx(x.mean())
    assert got[1]["coefficient"]["estimate"] == pytest.approx(0.5, abs=0.1)


def test_the_mark_and_the_numbers_of_the_answer_stay():
    plain, beside = ask(), ask(moderators=["mean(age)"], among=GROUPS)
    assert plain["moderation"] is None
    assert plain["among"] is None
    assert plain | {"moderation": 0, "among": 0} == beside | {"moderation": 0, "among": 0}
    assert beside["mark"] == "unresolved"


def test_a_share_is_a_number_of_a_site_and_two_are_told_apart():
    found = ask(moderators=["mean(age)", "share(sex == 'F')"])["moderation"]
    assert [c["name"] for c in found["coefficients"]][1:] == ["mean(age)", "share(sex == 'F')"]
    assert 0.4 < found["coefficients"][2]["centre"] < 0.6
    assert found["f_df"] == 2


def test_noise_in_a_moderator_is_said():
    quiet = ask(moderators=["mean(age)"])["moderation"]
    assert quiet["coefficients"][1]["noise"] < 0.1
    assert "pulls their coefficients to 0" in quiet["text"]
    assert "is noise" not in quiet["text"]
    loud = ask(holdings=hold(noise=4.0), moderators=["mean(age)"])["moderation"]
    assert loud["coefficients"][1]["noise"] > 0.1
    assert "Of how sites differ in mean(age) about" in loud["text"]
    bare = ask(holdings=hold(refits=0), moderators=["mean(age)"])["moderation"]
    assert bare["coefficients"][1]["noise"] is None
    assert "Without refits" in bare["text"]


def test_groups_are_pooled_and_compared():
    told = ask(among=GROUPS)
    used = told["sites"][:7]
    y = [site["coefficient"]["estimate"] for site in used]
    v = [site["variance"] for site in used]
    df = [site["df"] or np.inf for site in used]
    compared = compare_subgroups(y, v, ["north"] * 3 + ["south"] * 4, degrees=df)
    north, south = told["among"]["groups"]
    # Nobody declared it: a group's interval allows for what the model misses, as the whole's does.
    alone = pool_weighed(y[:3], v[:3], degrees=df[:3])
    assert north["coefficient"]["estimate"] == alone.estimate
    assert north["se"] > alone.se
    assert (south["group"], south["k"], south["sites"]) == ("south", 4, list(SITES[3:7]))
    assert told["among"]["test"]["p"] == compared.moderator_p
    assert told["among"]["left_out"] == [SITES[7]]
    assert [s.label for s in plot_answer(told).summaries][1:] == ["north", "south"]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"moderators": ["sbp ~ age"]}, "compares rows"),
        ({"moderators": ["mean(agee)"]}, "Did you mean 'age'"),
        ({"among": {"a": ["aric-f", "chss-f"], "b": ["fos-f"]}}, "Did you mean 'chs-f'"),
        ({"among": {"a": ["aric-f"], "b": ["aric-f"]}}, "named twice"),
        ({"among": {"a": ["aric-f"]}}, "one group only"),
        ({"among": {"a": ["aric-f"], "b": []}}, "has no sites"),
        ({"among": {"a": ["aric-f", "chs-f"], "b": ["fos-f"]}}, "at least 4"),
        ({"moderators": ["mean(age)", "mean(age) "]}, "depend on each other"),
    ],
)
def test_what_cannot_explain_is_refused(asked, what):
    with pytest.raises(InvalidInput, match=what):
        ask(**asked)


def test_two_sites_more_than_coefficients_are_needed():
    three = hold(sites=3)
    with pytest.raises(InvalidInput, match="3 with an estimate, for 2 coefficients; at least 4"):
        ask(holdings=three, moderators=["mean(age)"])
    assert ask(holdings=hold(sites=4), moderators=["mean(age)"])["moderation"]["df"] == 2


def test_totals_and_constants_are_refused():
    told, same = ask(), Moderator("mean(age)", dict.fromkeys(SITES, 50.0), None)
    with pytest.raises(InvalidInput, match="the same everywhere"):
        explain(told, Differences((same,)), {}, further=False)
    with pytest.raises(InvalidInput, match="added up"):
        explain(told | {"scale": "count"}, read_differences(HELD, [], GROUPS), {}, further=False)


def test_a_site_without_the_number_is_left_out():
    ages = {site: 50.0 + place for place, site in enumerate(SITES[1:])}
    asked = Differences((Moderator("mean(age)", ages, None),))
    found = explain(ask(), asked, {}, further=False)["moderation"]
    assert found["left_out"] == [SITES[0]]
    assert found["k"] == 7
