"""The page in a real headless browser, on a small trained run: what one sees, types and hears."""

import json
import random
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import browser as browsers
import hdccf
from command_line import call
from hdccf.models.hdccf.settings import HDCCF
from hdccf.serving import timeline
from hdccf.serving.app import create_app
from hdccf.serving.settings import ServeSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsers.executable() is None, reason=browsers.MISSING),
]
PATIENCE = 20_000
"""Milliseconds: the machine may be busy."""
VIEWS = ["start", "user/u007", "profile/f010,f020", "negatives/u007", "run", "service"]
KEY = "a-key-of-32-letters-for-one-test"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a small world with titles, and one of another; the first is served."""

    def world(seed: int) -> hdccf.Split:
        made = hdccf.synthetic_world(3000, n_users=120, n_items=150, liked=0.3, seed=seed)
        return hdccf.leave_one_out(made.interactions)

    split = world(0)
    folder = tmp_path_factory.mktemp("runs")
    quick: dict[str, Any] = {"embedding_dim": 16, "epochs": 8, "evaluate_every": 2, "block_users": 32}
    hdccf.fit(split, HDCCF(**quick), seed=0, out=folder / "first")
    hdccf.fit(split, HDCCF(**quick, omega_items=0.02, temperature=0.5), seed=0, out=folder / "second")
    hdccf.fit(world(1), hdccf.MostPopular(), out=folder / "elsewhere-with-a-name-that-is-rather-long")
    return folder / "first"


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with browsers.listening(create_app(run, ServeSettings(timeout_seconds=60))) as found:
        yield found


@pytest.fixture(scope="module")
def featured(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run whose items have attributes."""
    copy = tmp_path_factory.mktemp("featured") / "first"
    shutil.copytree(run, copy)
    ids = hdccf.load_run(run).split.train.item_ids
    genres = [["Drama", "Crime"], ["Comedy"], ["Comedy", "Family"]]
    rows = [{"id": own, "genre": genres[k % 3], "year": 1990 + k % 9} for k, own in enumerate(ids)]
    hdccf.load_run(copy).with_features(rows)
    return copy


@pytest.fixture(scope="module")
def featured_address(featured: Path) -> Iterator[str]:
    with browsers.listening(create_app(featured, ServeSettings(timeout_seconds=60))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with browsers.browser() as started:
        yield started


@pytest.fixture
def page(browser: "Browser", address: str) -> "Iterator[Page]":
    """A fresh window. Whatever it asks of another host, and whatever it complains of, fails the test."""
    with _window(browser, address) as opened:
        yield opened


def _window(browser: "Browser", address: str, **options: object) -> "_Watched":
    return _Watched(browser, address, options)


class _Watched:
    def __init__(self, browser: "Browser", address: str, options: dict[str, object]) -> None:
        self.complaints: list[str] = []
        self.context = browser.new_context(**options)  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.address = address
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def _heard(self, said: "ConsoleMessage") -> None:
        if said.type == "error":
            self.complaints.append(said.text)

    def _asked(self, request: "Request") -> None:
        if not request.url.startswith((self.address, "data:")):
            self.complaints.append(f"asked {request.url}")

    def __enter__(self) -> "Page":
        return self.page

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if error is None:
            assert self.complaints == []


def _titles(page: "Page", region: str) -> list[str]:
    rows = page.get_by_role("region", name=region, exact=True).locator("ol.list > li > .line .title")
    rows.first.wait_for()
    return rows.all_inner_texts()


def _said(page: "Page", text: str) -> None:
    page.locator("#status", has_text=re.compile(text)).wait_for(state="attached")


def test_a_user_is_searched_and_gets_recommendations_with_reasons(
    page: "Page", address: str, run: Path
) -> None:
    page.goto(address)
    search = page.get_by_role("combobox", name="Search a user by id")
    search.fill("u007")
    page.get_by_role("option", name=re.compile("u007")).first.click()
    page.get_by_role("heading", name="Recommendations for user u007").wait_for()
    _said(page, "10 recommendations for user u007")
    expected = hdccf.load_run(run).recommend(["u007"], k=10)["title"].to_list()
    assert _titles(page, "Recommendations") == expected
    page.get_by_text(re.compile(r"because of .+ \d+\s%")).first.wait_for()
    page.get_by_text("Reasons are shares of a surrogate").wait_for()
    history = page.get_by_role("region", name="History", exact=True)
    assert history.get_by_text("held out", exact=True).count() == 2
    page.get_by_role("button", name=f"Items like {expected[0]}").click()
    page.get_by_text(re.compile("Compared by")).wait_for()


def test_the_start_shows_data_accuracy_and_the_training_curve(page: "Page", address: str, run: Path) -> None:
    known = hdccf.load_run(run)
    page.goto(address)
    _said(page, "Overview of run first")
    shown = page.get_by_role("region", name="The model", exact=True)
    text = shown.inner_text()
    for name, value in (("Users", "120"), ("Items", "150"), ("Events", f"{len(known.events):,}")):
        assert re.search(rf"{name}\s+{value}", text), text
    assert re.search(r"Validation, sampled:ndcg@10\s+0\.\d{3}\b", text)
    shown.get_by_text("Measured on the validation part").wait_for()
    page.locator("#view-start").get_by_role("img", name=re.compile("^Validation: sampled:ndcg@10")).wait_for()
    page.get_by_text("Nothing to compare yet.").wait_for()
    search = page.locator("#view-start").get_by_role("combobox", name="Search a user by id")
    search.fill("u007")
    page.get_by_role("option", name=re.compile("u007")).first.click()
    _said(page, "10 recommendations for user u007")


def test_the_start_compares_only_evaluated_runs_of_the_same_data(browser: "Browser", tmp_path: Path) -> None:
    def world(seed: int) -> hdccf.Split:
        made = hdccf.synthetic_world(1000, n_users=60, n_items=80, liked=0.3, seed=seed)
        return hdccf.leave_one_out(made.interactions)

    quick = HDCCF(embedding_dim=16, epochs=2, evaluate_every=2, block_users=32)
    hdccf.fit(world(0), quick, seed=0, out=tmp_path / "own")
    hdccf.fit(world(0), hdccf.MostPopular(), out=tmp_path / "popular")
    hdccf.fit(world(1), hdccf.MostPopular(), out=tmp_path / "elsewhere")
    for name in ("own", "popular", "elsewhere"):
        assert call("evaluate", tmp_path / name) == 0
    with (
        browsers.listening(create_app(tmp_path / "own", ServeSettings(timeout_seconds=60))) as address,
        _window(browser, address) as page,
    ):
        page.goto(address)
        compared = page.get_by_role("region", name="Compared with other models", exact=True)
        compared.locator("tbody tr").first.wait_for()
        rows = compared.locator("tbody tr").all_inner_texts()
        assert sorted(row.split()[0] for row in rows) == ["own", "popular"]
        kept = json.loads((tmp_path / "own/evaluation/test/evaluation.json").read_text())["values"]["full"]
        own = next(row for row in rows if row.startswith("own"))
        assert "this model" in own
        assert own.split()[-4:-2] == [f"{kept[name]:.3f}" for name in ("ndcg@10", "hr@10")]
        page.get_by_text("Measured on the test part, ranked among all items.").wait_for()


def test_scores_have_the_same_digits_in_all_lists(page: "Page", address: str) -> None:
    three = re.compile(r"-?\d+\.\d{3}")
    page.goto(f"{address}#/user/u007")
    _said(page, "10 recommendations for user u007")
    region = page.get_by_role("region", name="Recommendations", exact=True)
    listed = region.locator("ol.list > li > .line > .number").all_inner_texts()
    page.get_by_role("button", name=re.compile("^Items like")).first.click()
    page.get_by_text(re.compile("Compared by")).wait_for()
    similar = region.locator("ul.list > li > .number").all_inner_texts()
    page.goto(f"{address}#/negatives/u007")
    _said(page, "20 hardest negatives of user u007")
    hardest = page.locator("#view-negatives tbody td:nth-child(2)").all_inner_texts()
    assert [len(found) for found in (listed, similar, hardest)] == [10, 8, 20]
    assert [text for text in listed + similar + hardest if not three.fullmatch(text)] == []
    # Where three decimals would say nothing there are more, in the whole list the same.
    small = page.evaluate(
        "async () => { const { scores } = await import('./dom.js');"
        " const some = [{score: 0.00042}, {score: 0.0001}]; return some.map(scores(some)); }"
    )
    assert small == ["0.000420", "0.000100"]


def test_an_unknown_user_gets_the_servers_words(browser: "Browser", address: str) -> None:
    watched = _window(browser, address)
    with watched as page:
        page.goto(f"{address}#/user/nobody")
        page.get_by_text("user 'nobody' is not in the training data").first.wait_for()
        page.wait_for_load_state("networkidle")
        watched.complaints.clear()  # the browser's own lines about the two 404


def test_a_profile_changes_the_recommendations_at_once(page: "Page", address: str) -> None:
    page.goto(f"{address}#/profile")
    page.get_by_text("Popular items: there is no history to go by.").wait_for()
    search = page.get_by_role("combobox", name="Search an item by title, and add it")
    starters = page.get_by_role("region", name="Your profile", exact=True).get_by_role("button")
    starters.first.click()
    _said(page, "for a profile of 1 items")
    first = _titles(page, "Recommendations for your profile")
    search.click()
    page.get_by_role("option").last.click()
    _said(page, "for a profile of 2 items")
    second = _titles(page, "Recommendations for your profile")
    assert first != second
    assert len(first) == len(second) == 10
    picked = page.get_by_role("list", name="Your profile").get_by_role("button")
    assert picked.count() == 2
    picked.last.click()
    _said(page, "for a profile of 1 items")
    assert _titles(page, "Recommendations for your profile") == first
    # The address has it all: the link shows the same, titles included.
    named = picked.first.inner_text()
    page.reload()
    assert _titles(page, "Recommendations for your profile") == first
    page.get_by_role("button", name=re.compile(f"Remove {re.escape(named[:-2])}")).wait_for()


def test_items_have_attributes_and_recommendations_a_filter(
    browser: "Browser", featured_address: str, featured: Path
) -> None:
    known = hdccf.load_run(featured)
    with _window(browser, featured_address) as page:
        page.goto(f"{featured_address}#/user/u007")
        _said(page, "10 recommendations for user u007")
        region = page.get_by_role("region", name="Recommendations", exact=True)
        region.locator(".attribute", has_text=re.compile("Drama, Crime|Comedy")).first.wait_for()
        page.get_by_role("region", name="History", exact=True).locator(".attribute").first.wait_for()
        region.get_by_label("genre").select_option(label="Family")
        wanted = known.recommend(["u007"], k=10, where={"genre": "Family"})["title"].to_list()
        region.locator(".attributes", has_text=re.compile("^Comedy, Family · 199")).nth(9).wait_for()
        assert _titles(page, "Recommendations") == wanted
        # A filter that no item fits, and the same in a profile.
        region.get_by_label("year").select_option(label="1990")
        page.get_by_text("No item to recommend fits the filter.").wait_for()
        page.goto(f"{featured_address}#/profile/f010")
        _said(page, "for a profile of 1 items")
        profile = page.get_by_role("region", name="Recommendations for your profile", exact=True)
        profile.get_by_label("genre").select_option(label="Crime")
        profile.locator(".attribute", has_text="Crime").nth(9).wait_for()
        assert profile.locator(".attribute", has_text="Comedy").count() == 0


def test_the_lens_shows_probabilities_weights_and_densities(page: "Page", address: str) -> None:
    page.goto(f"{address}#/negatives/u007")
    _said(page, "20 hardest negatives of user u007")
    rows = page.locator("#view-negatives tbody tr")
    assert rows.count() == 20

    def probabilities() -> list[float]:
        cells = page.locator("#view-negatives tbody td:nth-child(3)").all_inner_texts()
        return [float(cell.replace("%", "").strip()) for cell in cells]

    before = probabilities()
    assert all(0 <= value <= 100 for value in before)
    shares = page.locator("#view-negatives tbody td:nth-child(4)").all_inner_texts()
    assert all("%" in share for share in shares)
    page.get_by_role("img", name=re.compile("Distribution of scores: no event")).wait_for()
    assert page.locator("#view-negatives .legend li").count() == 3
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("End")
    page.get_by_text("You chose this share.").wait_for()
    after = probabilities()
    assert sum(after) > sum(before)
    assert max(after) <= 100


def test_the_run_and_the_one_beside_it(page: "Page", address: str) -> None:
    page.goto(f"{address}#/run")
    page.get_by_role("img", name=re.compile("^Validation: sampled:ndcg@10 from")).wait_for()
    page.get_by_role("img", name=re.compile("^Share of rows that the lower bound clips")).wait_for()
    compared = page.get_by_role("region", name="Compared with other runs")
    drawn = compared.get_by_role("checkbox", name=re.compile("^Draw "))
    assert drawn.count() == 2
    assert compared.locator(".legend li").count() == 2
    compared.get_by_role("checkbox", name="Draw second").uncheck()
    assert compared.locator(".legend li").all_inner_texts() == ["first (sampled:ndcg@10)"]
    page.get_by_text("embedding_dim").first.wait_for()
    # Another data set is not comparable, and is there when asked for.
    compared.get_by_role("checkbox", name="Show all runs (1 of other data or another split)").check()
    assert drawn.count() == 3
    row = compared.locator("tbody tr", has_text="elsewhere")
    assert "other data or split" in row.inner_text()


def test_the_table_of_runs_fits_a_laptop(browser: "Browser", address: str) -> None:
    with _window(browser, address, viewport={"width": 1366, "height": 768}) as page:
        page.goto(f"{address}#/run")
        compared = page.get_by_role("region", name="Compared with other runs")
        compared.get_by_role("checkbox", name=re.compile("^Show all runs")).check()
        table, card = compared.locator("table").bounding_box(), compared.bounding_box()
        assert table is not None
        assert card is not None
        assert table["x"] + table["width"] <= card["x"] + card["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 1366


def test_the_service_shows_its_metrics_over_time(page: "Page", address: str) -> None:
    page.goto(f"{address}#/user/u007")
    _said(page, "10 recommendations for user u007")
    page.get_by_role("tab", name="Service").click()
    shown = page.get_by_role("region", name="Since the start of the server", exact=True)
    text = shown.inner_text()
    for pattern in (
        r"Requests\s+[1-9]",
        r"median\s+[\d.]+\s+ms",
        r"Users served\s+[1-9]",
        r"Long-tail share\s+[\d.]+\s%",
    ):
        assert re.search(pattern, text), text
    for title in (
        "Requests in 10 s: requests",
        "Latency in ms: median",
        "Events in 10 s: events",
        "Users served in 10 s: all from .* cold",
        "Share of long-tail items in %: long tail",
    ):
        page.get_by_role("img", name=re.compile(f"^{title} from")).wait_for()


class _Clock:
    """Time that passes when a sample is taken."""

    def __init__(self) -> None:
        self.now = 1.7e9

    def time(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def shown(featured: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str]]:
    """The address of a service with some load behind it, a user and a profile to show."""
    given: Path | None = request.config.getoption("--screenshots-run")
    user, profile = ("u007", "f010,f020") if given is None else ("196", "50,181,172")
    clock, draw = _Clock(), random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "time", clock)
        app = create_app(given or featured, ServeSettings(timeout_seconds=60))
        service = app.state.service
        users = service.current.recommender.users.ids.to_list()
        with browsers.listening(app) as address:
            for step in range(90):
                for _ in range(draw.randint(0, 2 + step // 20)):
                    some = [draw.choice([*users, "new"]) for _ in range(3)]
                    _post(f"{address}v1/recommend", {"users": some, "unknown": "popular"})
                clock.now += timeline.SAMPLE_SECONDS
                service.timeline.sample()
            yield address, user, profile


def _post(url: str, body: dict[str, Any]) -> None:
    head = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        answer.read()


SIZES = {"desktop": {"width": 1366, "height": 860}, "phone": {"width": 390, "height": 844}}
UNREADABLE = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const seen = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility()
    && e.getClientRects().length && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return seen.flatMap((e) => {
    const style = getComputedStyle(e);
    const [a, b] = [light(e instanceof SVGElement ? style.fill : style.color), light(ground(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const box = e.getBoundingClientRect();
    const outside = box.right > innerWidth + 1 && !e.closest('.scroll');
    return contrast < 4.5 || outside ? [[e.textContent.trim(), contrast, box.right]] : [];
  });
}"""
"""Visible texts with less contrast than WCAG's AA, or beyond the edge of the window."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_view_fits_and_is_readable(
    browser: "Browser", shown: tuple[str, str, str], size: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    address, user, profile = shown
    folder: Path | None = request.config.getoption("--screenshots")
    with _window(browser, address, viewport=SIZES[size], color_scheme=scheme) as page:
        for view in ("start", f"user/{user}", f"profile/{profile}", "run", "service", f"negatives/{user}"):
            name = view.split("/")[0]
            page.goto(f"{address}#/{view}")
            page.locator(f"#view-{name} .card").first.wait_for()
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
            assert page.evaluate(UNREADABLE) == [], view
            if folder is not None:
                page.screenshot(path=folder / f"{name}-{size}-{scheme}.png", animations="disabled")


def _colours(page: "Page") -> tuple[list[float], list[float]]:
    """Of the ground and of the text."""
    found: list[str] = page.evaluate(
        "() => [getComputedStyle(document.documentElement).backgroundColor, "
        "getComputedStyle(document.body).color]"
    )
    ground, text = ([float(part) for part in re.findall(r"[\d.]+", one)[:3]] for one in found)
    return ground, text


def _luminance(colour: list[float]) -> float:
    """WCAG's relative luminance."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_by_the_readers_preference(browser: "Browser", address: str, scheme: str) -> None:
    with _window(browser, address, color_scheme=scheme) as page:
        page.goto(address)
        ground, text = (_luminance(colour) for colour in _colours(page))
        assert (ground < 0.1) == (scheme == "dark")
        lighter, darker = max(ground, text), min(ground, text)
        assert (lighter + 0.05) / (darker + 0.05) > 7


@pytest.mark.parametrize(
    "view", ["start", "user/u007", "profile/f010,f020", "negatives/u007", "run", "service"]
)
def test_a_phone_scrolls_down_only(browser: "Browser", address: str, view: str) -> None:
    phone = {"width": 360, "height": 740}
    with _window(browser, address, viewport=phone, is_mobile=True, has_touch=True) as page:
        page.goto(f"{address}#/{view}")
        page.wait_for_load_state("networkidle")
        page.locator("main section:not([hidden]) .card").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= phone["width"]


def test_a_phone_shows_recommendations_first_and_the_history_below(browser: "Browser", address: str) -> None:
    with _window(browser, address, viewport={"width": 390, "height": 844}, is_mobile=True) as page:
        page.goto(f"{address}#/user/u007")
        _said(page, "10 recommendations for user u007")
        listed, history = (
            page.get_by_role("region", name=name, exact=True).locator("ol.list").bounding_box()
            for name in ("Recommendations", "History")
        )
        assert listed is not None
        assert history is not None
        assert listed["y"] < 900
        assert listed["y"] + listed["height"] < history["y"]


def test_the_keyboard_alone_does(page: "Page", address: str) -> None:
    page.goto(address)
    _said(page, "Overview of run")

    def focused() -> str:
        found: str = page.evaluate("document.activeElement.id || document.activeElement.textContent")
        return found

    page.keyboard.press("Tab")
    assert focused() == "Skip to the content"
    page.keyboard.press("Tab")
    assert focused() == "tab-start"
    page.keyboard.press("Tab")  # one stop for all tabs
    assert focused().strip() == "Expert"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "combobox"
    page.keyboard.type("u01")
    page.get_by_role("option", name=re.compile("u01")).first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = page.locator("[role=option][aria-selected=true] > span").first.inner_text()
    page.keyboard.press("Enter")
    _said(page, f"10 recommendations for user {chosen}")
    assert focused() == "tab-user"  # the search of the start is hidden
    for name in ("profile", "run", "service"):
        page.keyboard.press("ArrowRight")
        assert focused() == f"tab-{name}"
    # The expert's view is closed until asked for.
    assert not page.get_by_role("button", name="Negatives in training").is_visible()
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    assert focused() == "tab-negatives"
    page.keyboard.press("Enter")
    _said(page, f"hardest negatives of user {chosen}")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_every_field_has_a_label_and_every_button_a_name(page: "Page", address: str) -> None:
    for view in VIEWS:
        page.goto(f"{address}#/{view}")
        page.wait_for_load_state("networkidle")
    nameless = page.evaluate(
        "() => [...document.querySelectorAll('input, button')].filter(e => !(e.labels?.length || "
        "e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_the_rest_reference_works_without_another_host(page: "Page", address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="REST reference").click()
    page.get_by_role("heading", name=re.compile("^hdccf")).first.wait_for()
    page.locator(".opblock-summary-get", has_text="/v1/model").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()


def test_where_a_key_is_asked_for_the_page_asks_for_it(browser: "Browser", run: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    app = create_app(run, ServeSettings(api_key_file=tmp_path / "key", timeout_seconds=60))
    with browsers.listening(app) as address:
        watched = _window(browser, address)
        with watched as page:
            page.goto(address)
            field = page.get_by_role("textbox", name="Key")
            dialog, inner = page.get_by_role("dialog").bounding_box(), field.bounding_box()
            assert dialog is not None
            assert inner is not None
            assert inner["x"] - dialog["x"] >= 16  # room around the field
            field.fill(KEY)
            page.keyboard.press("Enter")
            _said(page, "Overview of run first")
            watched.complaints.clear()  # the browser's own line about the 401
