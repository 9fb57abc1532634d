"""In a real browser: each page by clicking as a user would, by keyboard, at phone width, in the dark; and nothing injected runs."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from web_server import serve_store
from webstores import begin, rows, write_samples

from audit.web.app import build

pytestmark = pytest.mark.browser

ALL_SHOWN = "[...document.images].every(i => i.loading == 'lazy' || (i.complete && i.naturalWidth > 0))"


def runs(site: str) -> dict[str, str]:
    with urllib.request.urlopen(site + "?format=json") as answer:
        return {run["name"]: run["run_id"] for run in json.load(answer)["runs"]}


def test_from_the_confusion_matrix_to_a_replay(page: Any, site: str) -> None:
    """A run that kept digests alone: nothing is stored to be shown, so that the replay has to derive it."""
    page.goto(site)
    page.get_by_role("link", name="digest", exact=True).click()
    page.locator(".matrix td.off a").first.click()
    page.wait_for_url(re.compile("gallery"))
    page.locator(".tile").first.wait_for()
    assert "predicted" in page.locator("input[name=where]").input_value()
    page.locator(".tile").first.click()
    page.wait_for_url(re.compile("/trace/"))
    assert page.locator(".state.unchanged").count() == 1
    assert page.locator(".stage .frame .absent").count() == 6
    page.get_by_role("button", name="Replay").click()
    page.locator("#verdict .status.identical").wait_for(timeout=90_000)
    page.locator("#verdict .strip img").first.wait_for()
    page.wait_for_function(f"() => {ALL_SHOWN}")


def test_a_film_strip(page: Any, site: str) -> None:
    page.goto(f"{site}run/{runs(site)['baseline']}/gallery")
    shot = page.locator(".tile img").first
    shot.wait_for()
    page.wait_for_function("picture => picture.complete && picture.naturalWidth > 0", arg=shot.element_handle())
    page.locator(".tile").first.click()
    page.wait_for_url(re.compile("/trace/"))
    assert page.locator(".strip .stage").count() == 6
    page.wait_for_function(f"() => {ALL_SHOWN}")


def test_mistakes_by_keyboard(page: Any, site: str) -> None:
    run = runs(site)["baseline"]
    page.goto(f"{site}run/{run}/gallery")
    page.locator(".tile").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.locator(".tile.here").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/trace/"))
    first = page.url
    while page.locator("a[rel=prev]").count():
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("before => location.href != before", arg=first)
        page.wait_for_load_state()
        first = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_function("before => location.href != before", arg=first)
    page.wait_for_load_state()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("before => location.href == before", arg=first)


def test_the_gallery_scrolls_on(page: Any, site: str) -> None:
    run = runs(site)["baseline"]
    page.goto(f"{site}run/{run}/gallery?where=&order=index")
    page.locator(".tile").nth(59).wait_for()
    page.locator(".tile").nth(59).scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('.tile').length == 120")
    page.get_by_label("stage").select_option(index=2)
    page.wait_for_url(re.compile("stage=2"))
    page.locator(".tile").first.wait_for()
    page.fill("input[name=where]", "labl = 2")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("The condition cannot be used").wait_for()


def test_compare_two_runs(page: Any, site: str) -> None:
    known = runs(site)
    page.goto(site)
    page.get_by_label("compare baseline as A").check()
    page.get_by_label("compare nearest as B").check()
    page.get_by_role("button", name="Compare A with B").click()
    page.get_by_text("First divergent stage").wait_for()
    page.locator("table a").first.click()
    page.wait_for_url(re.compile("/compare/stages"))
    assert known["baseline"] in page.url
    assert page.locator(".status.different").count() == 4
    page.wait_for_function(f"() => {ALL_SHOWN}")


def test_ask_in_sql(page: Any, site: str) -> None:
    page.goto(f"{site}sql")
    page.locator("#q").click()
    page.keyboard.type("FROM wrong_pre")
    page.locator("#complete li").first.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type(" LIMIT 3")
    page.keyboard.press("Control+Enter")
    page.locator("table.result").wait_for()
    assert "q=FROM" in page.url
    assert page.locator("table.result tbody tr").count() == 3
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    assert Path(saved.value.path()).read_text().startswith("run_id,")
    page.locator("table.result a[href*='/trace/']").first.click()
    page.wait_for_url(re.compile("/trace/"))


def test_an_sql_error_is_shown(page: Any, site: str) -> None:
    page.goto(f"{site}sql")
    page.fill("#q", "SELECT nope")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Binder Error").wait_for()


def test_a_skipped_check_can_be_seen(page: Any, site: str) -> None:
    page.goto(f"{site}run/{runs(site)['training']}")
    page.get_by_text("1 passed, 1 skipped").click()
    skipped = page.locator(".status.skip").bounding_box()
    assert skipped is not None
    assert skipped["x"] > 0


def test_training_charts(page: Any, site: str) -> None:
    page.goto(f"{site}run/{runs(site)['training']}/training")
    page.wait_for_function("() => document.querySelectorAll('.plot canvas').length == 3")
    page.locator("#plot-loss canvas").click()
    page.wait_for_url(re.compile("/trace/"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_dark(page: Any, site: str, scheme: str) -> None:
    """No page is wider than a phone, and dark is dark."""
    known = runs(site)
    page.set_viewport_size({"width": 375, "height": 740})
    page.emulate_media(color_scheme=scheme)
    every = ["", f"run/{known['baseline']}", f"run/{known['baseline']}/gallery", f"run/{known['baseline']}/trace/28"]
    every += [
        "sql?q=FROM+runs",
        f"compare?a={known['baseline']}&b={known['nearest']}",
        f"compare/stages?a={known['baseline']}&b={known['nearest']}&index_a=28&index_b=28",
        f"run/{known['training']}/training",
    ]
    for path in every if scheme == "light" else every[:2]:
        page.goto(site + path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", background)[0]) < 100) is (scheme == "dark")


def test_nothing_comes_from_outside(page: Any, site: str) -> None:
    known = runs(site)
    for path in ("", f"run/{known['baseline']}", f"run/{known['training']}/training", "sql"):
        page.goto(site + path)
        page.wait_for_load_state("networkidle")
    assert page.asked
    assert all(url.startswith((site, "data:")) for url in page.asked)


def test_a_running_run_refreshes(page: Any, tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    writer = begin(place, "slow", classes=["a"])
    write_samples(writer, [{"label": 0, "predicted": 0, "label_name": "a"}])
    writer.flush()
    with serve_store(place) as address:
        page.goto(f"{address}run/{writer.run.run_id}")
        page.get_by_text("is still being recorded").wait_for()
        write_samples(writer, [{"index": n, "label": 0, "predicted": 0, "label_name": "a"} for n in range(1, 9)])
        writer.finish("complete")
        page.locator(".status.complete").wait_for()
        assert page.locator(".figure dd").first.inner_text() == "9"
        page.goto("about:blank")  # the page goes on asking; no server is there to answer after this


#: Markup and script in every place where text of a user can end up; each calls `hit` if it runs.
_SEEDS = [
    "<script>hit(1)</script>", "<ScRiPt>hit(2)</sCrIpT>", "<img src=x onerror=hit(3)>", "<svg onload=hit(4)>", "<svg/onload=hit(5)>",
    "\"><script>hit(6)</script>", "'><script>hit(7)</script>", "</script><script>hit(8)</script>", "</title><script>hit(9)</script>",
    "</textarea><script>hit(10)</script>", "</style><script>hit(11)</script>", "<!--<script>hit(12)//-->", "--><script>hit(13)</script>",
    "<body onload=hit(14)>", "<iframe src=javascript:parent.hit(15)>", "<a href=javascript:hit(16)>x</a>", "<details open ontoggle=hit(17)>",
    "<input autofocus onfocus=hit(18)>", "<video><source onerror=hit(19)></video>", "<object data=javascript:hit(20)>",
    "<math><mtext><script>hit(21)</script></mtext></math>", "<template><script>hit(22)</script></template>", "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=javascript:hit(24)'>", "<link rel=stylesheet href=//evil.test/a.css>", "<style>*{color:red}</style>",
    "\" onmouseover=\"hit(27)", "' onmouseover='hit(28)", "x\" autofocus onfocus=\"hit(29)", "` onmouseover=`hit(30)", "javascript:hit(31)",
    "{{7*7}}{{constructor.constructor('hit(32)')()}}", "${hit(33)}", "<%= hit(34) %>", "#{hit(35)}", "{% raw %}hit(36)", "&lt;script&gt;hit(37)&lt;/script&gt;",
    "&#60;script&#62;hit(38)&#60;/script&#62;", "%3Cscript%3Ehit(39)%3C/script%3E", "\\u003cscript\\u003ehit(40)\\u003c/script\\u003e",
    "<img hx-get=/ hx-trigger=load hx-on::load=hit(41)>", "<div hx-on:click=hit(42) hx-trigger=load>", "<div data-hx-get=//evil.test hx-trigger=load>",
    "<div data-get=//evil.test data-when=load>", "<form data-post=//evil.test data-into=#main>", "<div data-get=/ data-into=body data-when=load>",
    "<script src=//evil.test/x.js></script>", "<scr<script>ipt>hit(45)</script>", "<svg><script>hit(46)</script></svg>", "<svg><a xlink:href=javascript:hit(47)>x",
    "<img src=1 href=1 onerror=hit(48)//", "<marquee onstart=hit(49)>", "<form action=javascript:hit(50)><button>x", "<x onclick=hit(51) style=position:fixed;inset:0>",
    "'-hit(52)-'", "\";hit(53);//", "</pre><script>hit(54)</script>", "</td></table><script>hit(55)</script>", "]]><script>hit(56)</script>",
    "\u202e<script>hit(57)</script>", "\x00<script>hit(58)</script>", "\r\nX-Evil: 1\r\n\r\n<script>hit(59)</script>", "<noscript><p title='</noscript><script>hit(60)</script>'>",
    "＜script＞hit(61)＜/script＞", "<script\x0c>hit(62)</script>", "w" * 300,
]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A store in which every text is an attack."""
    place = tmp_path_factory.mktemp("hostile") / "lineage"
    count = len(_SEEDS)
    made = []
    for name in ("one", "two"):
        names = [seed.replace("/", "\u2215") for seed in _SEEDS]
        writer = begin(
            place, name, classes=_SEEDS, dataset=_SEEDS[0], model=_SEEDS[5], arch=_SEEDS[2], command=_SEEDS[6], capture=_SEEDS[3],
            warnings=_SEEDS[:4], tags={_SEEDS[0]: _SEEDS[1]}, versions={_SEEDS[7]: _SEEDS[8]}, git_commit=_SEEDS[9], host=_SEEDS[1],
        )  # fmt: skip
        writer.run.name = _SEEDS[0]
        samples: list[dict[str, Any]] = [
            {"index": n, "source": _SEEDS[n], "root": _SEEDS[n], "label": n, "label_name": _SEEDS[n], "predicted": (n + len(name)) % 7,
             "predicted_name": _SEEDS[(n + len(name)) % 7], "params": json.dumps({_SEEDS[n]: _SEEDS[n]}), "text": _SEEDS[n]}
            for n in range(count)
        ]  # fmt: skip
        samples += [
            {"index": count + n, "source": _SEEDS[n], "error": _SEEDS[n], "failed_stage": names[n]}
            for n in range(count)
        ]
        write_samples(writer, samples, stages=(_SEEDS[0], _SEEDS[2], _SEEDS[5]))
        found = [
            {
                "run_id": writer.run.run_id,
                "check_name": s,
                "severity": s,
                "status": s,
                "message": s,
                "index": n,
                "source": s,
                "evidence": json.dumps(s),
            }
            for n, s in enumerate(_SEEDS)
        ]
        layers = [
            {
                "run_id": writer.run.run_id,
                "epoch": 0,
                "step": 0,
                "index": n,
                "visit": 0,
                "layer": s,
                "layer_type": s,
                "direction": s,
                "port": s,
            }
            for n, s in enumerate(_SEEDS)
        ]
        writer.append({"findings": rows("findings", found), "activations": rows("activations", layers)})
        made.append(writer.finish("complete").run_id)
    return place, made[0], made[1]


@pytest.fixture(scope="module")
def hostile_client(hostile: tuple[Path, str, str]) -> Iterator[TestClient]:
    with TestClient(build(str(hostile[0])), base_url="http://localhost") as made:
        yield made


class Markup(HTMLParser):
    """The elements of a page, and what in them could run or load anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.count = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count += 1
        given = dict(attrs)
        if tag in ("iframe", "object", "base", "style", "embed", "marquee", "template") or any(
            n.startswith("on") for n in given
        ):
            self.bad.append(str(self.get_starttag_text()))
        if tag == "script" and not str(given.get("src")).startswith("/static/"):
            self.bad.append("script")
        for name in ("href", "src", "action", "data-get", "data-post", "hx-get", "hx-post", "data-hx-get"):
            if name in given and (not str(given[name]).startswith(("/", "#")) or str(given[name]).startswith("//")):
                self.bad.append(f"{tag} {name}={given[name]}")


def test_no_name_becomes_markup(hostile: tuple[Path, str, str], hostile_client: TestClient) -> None:
    """Every payload as source, label, class, text, drawn parameter and error; and every one in an address."""
    paths = [f"/run/{hostile[1]}/trace/{n}" for n in range(2 * len(_SEEDS))]
    quoted = [quote(seed, safe="") for seed in _SEEDS]
    paths += [f"/run/{seed}" for seed in quoted]
    paths += [f"/run/latest/gallery?order={seed}&where={seed}" for seed in quoted]
    paths += [f"/run/latest/trace/1?epoch={seed}" for seed in quoted[:10]] + [f"/{seed}" for seed in quoted[:10]]
    for path in paths:
        found = Markup(hostile_client.get(path).text)
        assert found.count > 10, path
        assert found.bad == [], path


def test_nothing_injected_runs(page: Any, hostile: tuple[Path, str, str]) -> None:
    place, one, two = hostile
    assert len(_SEEDS) >= 60
    with serve_store(place) as address:
        paths = ["", f"run/{one}", f"run/{one}/gallery?where=", f"run/{one}/training", f"compare?a={one}&b={two}",
                 f"compare/stages?a={one}&b={two}&index_a=3&index_b=3", "sql?q=FROM+lineage", "sql?q=FROM+findings", "sql?q=FROM+runs"]  # fmt: skip
        slow = len(paths)  # these fetch panels after they have loaded
        paths += [f"run/{one}/trace/{n}" for n in range(0, 2 * len(_SEEDS), 31)]
        paths += [f"sql?q={quote(seed)}" for seed in _SEEDS[:2]]
        paths += [f"run/{one}/gallery?where={quote(seed)}" for seed in _SEEDS[5:7]]
        paths += [f"run/{quote(_SEEDS[2], safe='')}", quote(_SEEDS[3], safe="")]
        for number, path in enumerate(paths):
            page.goto(address + path)
            page.wait_for_load_state("networkidle" if number < slow else "load")
            for selector in (".tile", "main a:visible", "main td:visible") if number < slow else ():
                for element in page.locator(selector).all()[:1]:
                    element.hover(timeout=10_000, force=True)
            assert page.locator("script:not([src])").count() == 0, path
            assert (
                page.locator(
                    "main script, main iframe, main object, main base, main style, main [onerror], main [onload]"
                ).count()
                == 0
            ), path
        assert [url for url in page.asked if not url.startswith((address, "data:"))] == []
        assert page.evaluate("printable('\\u202eb\\0 c\\n\\u200c\\u200d')") == "\\u202eb\\u0000 c\n\u200c\u200d", (
            "as the server escapes names"
        )
        page.set_viewport_size({"width": 390, "height": 800})
        for path in (f"run/{one}/trace/{len(_SEEDS) - 1}", f"run/{one}", f"compare?a={one}&b={two}"):
            page.goto(address + path)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_report_opens_from_disk(page: Any, hostile: tuple[Path, str, str], digits: Path, tmp_path: Path) -> None:
    """One file: no request at all, no script, under 15 MB, and nothing injected runs."""
    from audit.report.html.report_file import write_report
    from audit.store.read.reader import Reader

    for number, (place, run, baseline) in enumerate(
        ((hostile[0], hostile[1], hostile[2]), (digits, "baseline", "nearest"))
    ):
        target = tmp_path / f"report-{number}.html"
        with Reader(str(place)) as store:
            assert write_report(store, str(target), run, baseline=baseline) < 15_000_000
        page.goto(target.as_uri())
        assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
        assert page.locator("script").count() == 0
        assert page.locator(".strip").count() > 0
        assert page.evaluate("getComputedStyle(document.querySelector('.strip')).display") == "flex"
        # Every picture is there without scrolling, so that it can be printed; from the gallery to its film strip.
        assert page.evaluate("[...document.images].every(i => i.loading != 'lazy')")
    shown = page.locator(".strip .zoom").first
    before = shown.locator("img").bounding_box()
    shown.click()
    assert shown.locator("img").bounding_box()["width"] > 2 * before["width"]
    shown.click()
    assert shown.locator("img").bounding_box()["width"] == before["width"]
    last = page.locator(".worst a").last
    last.click()
    page.wait_for_function("() => [...document.querySelectorAll('details.mistake')].at(-1).open")
    page.set_viewport_size({"width": 375, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.emulate_media(media="print")
    broken = "selector => getComputedStyle(document.querySelector(selector)).breakInside"
    assert page.evaluate(broken, "details.mistake") == "avoid", "a mistake is on one page"
    assert page.evaluate(broken, "section.card") == "auto", "a long section does not leave the page before it empty"
    page.evaluate("document.querySelector('details.mistake').open = false")
    assert page.locator("details.mistake .strip").first.is_visible(), "a closed mistake is printed too"
    page.emulate_media(media="screen")


def test_a_report_with_the_viewer(page: Any, digits: Path, tmp_path: Path) -> None:
    """One script, which the file's own policy names; the values under the pointer are those of the store, and nothing is loaded."""
    from audit.api import Store

    target = tmp_path / "report.html"
    with Store(str(digits)) as store:
        assert store.report(str(target), "baseline", viewer=True) < 2_000_000
        index = store.sql(
            "SELECT index FROM graded_predictions WHERE NOT correct ORDER BY loss DESC LIMIT 1", run="baseline"
        ).fetchall()[0][0]
        exact = store.trace("baseline", index=index).value(5, numpy_only=True)
    page.goto(target.as_uri())
    assert page.locator("script").count() == 1
    page.locator(".mistake").first.locator(".zoom").last.click()
    page.locator('.viewer[data-ready="float32 16x16"]').wait_for()
    assert page.get_by_label("picture A").locator("option").count() == 6, "the stages of this mistake alone"
    pane = page.locator(".viewer .pane").first.bounding_box()
    page.mouse.move(pane["x"] + pane["width"] / 2 + 1, pane["y"] + pane["height"] / 2 + 1)
    x, y, shown = re.match(r"x (\d+)  y (\d+)   (\S+)", page.locator(".pixel").inner_text()).groups()  # type: ignore[union-attr]
    assert float(shown) == pytest.approx(float(exact[0, int(y), int(x)]), rel=1e-5)
    page.get_by_label("show").select_option("difference")
    page.get_by_text("largest difference").wait_for()
    page.keyboard.press("Escape")
    page.locator(".viewer").wait_for(state="detached")
    assert page.locator(".zoom input:checked").count() == 0
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
