#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page for people in headless Chromium.

usage: page_browser_test.py SCRIPTED_SERVER [FOLDER_OF_SCREENSHOTS]
Runs where there is a program `chromium` (or the one that CHROMIUM names) and where this Python, or the
one that SLUICE_TEST_PYTHON names, has the package `playwright`; skipped otherwise.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from report_data import report_data
from server_process import SKIPPED, needs, wait_until

needs("playwright")
from playwright.sync_api import expect, sync_playwright  # noqa: E402

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
if CHROMIUM is None:
    print("skipped: there is no chromium")
    sys.exit(SKIPPED)

KEY = "sk-page"
EXPECTED = re.compile("401|requires 'Trusted")  # errors that checks bring about
SHOTS = sys.argv[2] if len(sys.argv) > 2 else None
PATIENCE_MS = 60_000
SIZES = {"wide": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 740}}

POLITE = """<think>
They want a tour, so I show one of each.
</think>

## Formats

A paragraph with **bold**, *italic*, `code`, ~~gone~~ and a [link](https://example.org/a_b).

1. first
2. second
   - nested **item**
   - another

| name | value |
|------|------:|
| a    | 1     |
| b    | 22    |

```python
def area(r):  # of a circle
    return 3.14159 * r ** 2
```

> A quote.

<tool_call>
{"name": "weather", "arguments": {"city": "Köln", "days": 2}}
</tool_call>"""

HOSTILE = r"""<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2">
<svg onload="window.hacked=3"><style>*{display:none}</style></svg><iframe srcdoc="<b>x</b>"></iframe>

[click](javascript:window.hacked=4) [data](data:text/html,<script>window.hacked=5</script>)
[tab](java	script:window.hacked=6) [vb](vbscript:x) [case](JaVaScRiPt:window.hacked=7)
![img](https://evil.invalid/x.png) <a href="javascript:window.hacked=8">a</a> <javascript:window.hacked=9>
[good](https://example.org/)

| <script>window.hacked=10</script> | ![x](http://evil.invalid/y.png) |
|---|---|
| <img src=x onerror=window.hacked=11> | **bold |

```"><script>window.hacked=12</script>
</code></pre><script>window.hacked=13</script>
"""
HOSTILE_TAIL = "\n**unclosed *nested `code [link](http://\n- - - -\n> > > > > > > > > > deep\n" \
               "```\nunclosed fence </textarea><script>window.hacked=14</script>"


class Scripted:
    """The scripted server; say() is what it answers from then on."""

    def __init__(self, program, text, *key):
        self.process = subprocess.Popen([program, text, *key], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.folder = tempfile.TemporaryDirectory()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def say(self, text, pace=0):
        path = os.path.join(self.folder.name, "text")
        with open(path, "w") as file:
            file.write(text)
        self.tell("say " + path)
        self.tell(f"pace {pace}")

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        self.folder.cleanup()
        assert code == 0, code


@contextlib.contextmanager
def opened(browser, url, path="/", **options):
    """A page in a browser profile of its own. Nothing may be asked of another server, and no error
    may come up in its script."""
    context = browser.new_context(viewport=SIZES["wide"], **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    elsewhere, errors = [], []
    page.on("request", lambda r: None if r.url.startswith((url, "data:", "blob:")) else elsewhere.append(r.url))
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and not EXPECTED.search(m.text) else None)
    page.goto(url + path)
    yield page
    context.close()
    assert not elsewhere, elsewhere
    assert not errors, errors


def ask(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answer(page):
    """The last answer, when it has ended."""
    expect(page.locator("#send")).to_be_visible()
    last = page.locator("article.assistant").last
    expect(last).not_to_have_class("message assistant running")
    return last


def kept(page):
    return page.evaluate("""Object.keys(localStorage).filter(n => n.startsWith('sluice.chat.'))
                            .map(n => JSON.parse(localStorage.getItem(n)))""")


def shot(page, name):
    if SHOTS:
        page.screenshot(path=os.path.join(SHOTS, name + ".png"))


def no_sideways(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page is too wide"
    assert page.evaluate("document.querySelector('#log').scrollWidth <= document.querySelector('#log').clientWidth")


def check_stream_and_forms(browser, server):
    server.say(POLITE, pace=8000)
    with opened(browser, server.url) as page:
        expect(page.locator("#model option")).to_have_count(1)
        page.evaluate("""settings.tools = '[{"type":"function","function":{"name":"weather"}}]'""")
        ask(page, "Show me")
        running = page.locator("article.assistant.running")
        expect(running.locator("h4")).to_have_text("Formats")  # while the answer still runs
        expect(page.locator("#stop")).to_be_visible()
        last = answer(page)
        for selector, count in {"strong": 2, "em": 1, "del": 1, "ol > li": 2, "ul > li": 2, "table tr": 3,
                                "blockquote": 1, "figure.code": 1, "details.call": 1}.items():
            expect(last.locator(selector)).to_have_count(count)
        link = last.locator("a")
        assert link.get_attribute("href") == "https://example.org/a_b"
        assert "noopener" in link.get_attribute("rel") and link.get_attribute("target") == "_blank"
        fold = last.locator("details.fold").first
        assert not fold.evaluate("node => node.open")
        fold.locator("summary").click()
        expect(fold.locator(".body")).to_contain_text("one of each")
        expect(last.locator("details.call pre")).to_contain_text('"city": "Köln"')
        for part in ("tokens", "first after", "tokens/s"):
            expect(last.locator(".stats")).to_contain_text(part)
        # The result of the call goes back, and the model goes on.
        server.say("It rains.")
        last.locator("input[name=result]").fill("12 degrees")
        with page.expect_request("**/v1/chat/completions") as sent:
            last.locator("form.result button").click()
        body = sent.value.post_data_json
        assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool"], body
        assert body["messages"][2]["tool_call_id"] == body["messages"][1]["tool_calls"][0]["id"]
        expect(answer(page)).to_contain_text("It rains.")


def check_stop_regenerate_edit(browser, server):
    server.say("word " * 1500, pace=2000)
    with opened(browser, server.url) as page:
        ask(page, "Tell me a long story")
        expect(page.locator("article.assistant.running > .body")).to_contain_text("word word")
        page.keyboard.press("Escape")
        last = answer(page)
        expect(last.locator(".stats")).to_contain_text("stopped")
        assert 9 < len(last.locator(":scope > .body").inner_text()) < 7000
        server.say("Another answer.")
        last.get_by_text("Regenerate").click()
        expect(page.locator("article.assistant > .body")).to_have_text("Another answer.")
        answer(page)
        assert len(kept(page)[0]["messages"]) == 2
        page.locator("article.user").get_by_text("Edit").click()
        page.locator("article.user textarea").fill("A short one")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.locator("article.user").get_by_text("Ask again").click()
        assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "A short one"}]
        answer(page)
        assert [m["content"] for m in kept(page)[0]["messages"]] == ["A short one", "Another answer."]


def check_reload_keeps_conversations(browser, server):
    server.say("Noted.")
    with opened(browser, server.url) as page:
        ask(page, "The first subject")
        answer(page)
        page.keyboard.press("Alt+n")
        expect(page.locator("article")).to_have_count(0)
        ask(page, "The second subject")
        answer(page)
        page.reload()
        expect(page.locator("article.user > .body")).to_have_text("The second subject")
        expect(page.locator("#chats li")).to_have_count(2)
        page.locator("#chats button.chat", has_text="The first subject").click()
        expect(page.locator("article.user > .body")).to_have_text("The first subject")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_label("Delete The first subject").click(force=True)
        expect(page.locator("#chats li")).to_have_count(1)
        page.reload()
        expect(page.locator("#chats li")).to_have_count(1)


MATH = r"""The root is $x = \frac{-b \pm \sqrt{b^2-4ac}}{2a}$ and \(a_1 * b_2 * c\).

$$
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}

= f'(x)
$$

\[ A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}, \quad \mathbb{R}^n \]

It costs $5 and $10, US$ or CA$; $HOME/bin:$PATH and \$7 stay. `$x^2$` is code.

Not known: $\madeup{x}_a *b* c_d$, \[ \madeup{*y*} \], \(\frac{1}\) and $$\left( x$$ end."""


def check_math(browser, server):
    """Formulas are MathML; what is none, or is not known, is the text that it was."""
    server.say(MATH, pace=2000)
    with opened(browser, server.url) as page:
        ask(page, "Show me")
        last = answer(page)
        expect(last.locator("math")).to_have_count(4)
        expect(last.locator("math[display=block]")).to_have_count(2)
        expect(last.locator("math mfrac")).to_have_count(2)
        expect(last.locator("math mtable mtr")).to_have_count(2)
        expect(last.locator("math").nth(1)).to_have_text("a1∗b2∗c")
        expect(last.locator("math").nth(3)).to_contain_text("ℝ")
        expect(last.locator("em, .scroll p")).to_have_count(0)
        text = last.locator(":scope > .body").inner_text()
        for part in ("It costs $5 and $10, US$ or CA$; $HOME/bin:$PATH and $7 stay. $x^2$ is code.",
                     r"Not known: $\madeup{x}_a *b* c_d$, \[ \madeup{*y*} \], \(\frac{1}\) and $$\left( x$$ end."):
            assert part in text, text
        no_sideways(page)
        shot(page, "math")
        # Formulas of any length or depth end, in time.
        for tex in ("{" * 3000, "\\frac" * 3000, "x_" * 5000, "\\left(" * 500 + "x" + "\\right)" * 500,
                    "\\begin{matrix}" * 300, "^" * 2000, "\\sqrt[" * 900, "}" * 10, "\\\\" * 4000):
            begin = time.monotonic()
            shown = page.evaluate("""tex => { const node = document.createElement('div');
                showMarkdown(node, '$$' + tex + '$$'); return node.textContent }""", tex)
            assert shown == "$$" + tex + "$$" or tex.startswith("\\\\"), (tex[:20], shown[:60])
            assert time.monotonic() - begin < 30, tex[:20]


def check_sampling_is_that_of_chats(browser, server):
    server.say("Yes.")
    with opened(browser, server.url) as page:
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "Well?")
        body = sent.value.post_data_json
        assert body["temperature"] == 0.7 and body["top_p"] == 0.95, body
        answer(page)
        # A model that says how it is sampled is sampled so.
        document = json.loads(page.evaluate("getText('openapi.json')"))
        document["components"]["schemas"]["ChatCompletionRequest"]["properties"]["temperature"]["default"] = 0.3
        page.route("**/openapi.json", lambda route: route.fulfill(json=document))
        page.reload()
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "And now?")
        body = sent.value.post_data_json
        assert "temperature" not in body and "top_p" not in body, body
        answer(page)


def check_settings_go_with_the_request(browser, server):
    server.say("Yes.")
    with opened(browser, server.url) as page:
        page.keyboard.press("Alt+s")
        expect(page.locator("#set-temperature")).to_have_attribute("placeholder", "0.7")
        page.fill("#set-temperature", "0.25")
        page.fill("#set-seed", "7")
        page.fill("#set-system", "Be brief.")
        page.check("#set-logprobs")
        page.fill("#set-tools", "[{]")
        page.press("#set-tools", "Tab")
        expect(page.locator("dialog .problem")).to_contain_text("no JSON")
        page.fill("#set-tools", json.dumps([{"type": "function", "function": {"name": "f"}}]))
        page.get_by_text("Done").click()
        page.set_input_files("#files", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"1 < 2\n```\n"},
                                        {"name": "b.bin", "mimeType": "x/y", "buffer": b"\xff\x00\x01"}])
        expect(page.locator("#attached li")).to_have_count(1)
        expect(page.locator("#toast")).to_contain_text("b.bin is no text")
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "Well?")
        body = sent.value.post_data_json
        assert body["temperature"] == 0.25 and body["seed"] == 7 and body["logprobs"] is True, body
        assert body["top_p"] == 0.95, body
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert body["messages"][1]["content"] == "File a.txt:\n````\n1 < 2\n```\n\n````\n\nWell?"
        assert body["tools"][0]["function"]["name"] == "f"
        token = answer(page).locator(".token").first
        token.hover()
        expect(page.locator("#tip")).to_contain_text("60.7 %")  # exp(-0.5)
        page.reload()
        assert page.evaluate("settings.sampling.temperature") == 0.25


def check_hostile_text_stays_text(browser, server):
    server.say(HOSTILE + HOSTILE_TAIL)
    with opened(browser, server.url) as page:
        ask(page, HOSTILE)
        last = answer(page)
        expect(last.locator(":scope > .body")).to_contain_text("<script>window.hacked = 1</script>")
        expect(last.locator(":scope > .body")).to_contain_text("<img src=x onerror=")
        inside = page.locator("#log")
        for selector in ("script", "img", "iframe", "svg", "style", "object", "embed", "base", "link", "meta"):
            expect(inside.locator(selector)).to_have_count(0)
        links = [a.get_attribute("href") for a in inside.locator("a").all()]
        assert "https://example.org/" in links, links
        assert all(link.startswith(("https://", "http://")) for link in links), links
        # What a page does with such text elsewhere: the title in the list, the reload.
        page.reload()
        expect(page.locator("#chats li")).to_have_count(1)
        assert page.evaluate("window.hacked") is None
        # The policy stops what the code does not do either.
        for attack in ("node.innerHTML = '<p>x</p>'", "node.textContent = 'window.hacked = 15'",
                       "document.write('<p>x</p>')"):
            assert page.evaluate("""() => { const node = document.createElement('script');
                try { %s; return 'done' } catch (e) { return e.name } }""" % attack) == "TypeError", attack


def events_of(deltas):
    chunks = [{"choices": [{"index": 0, "delta": {"content": delta}, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def check_long_and_broken_text(browser, server):
    """Lines of a megabyte, and what makes regular expressions slow: the page goes on in time."""
    texts = {"a line": ["x" * 10_000] * 105, "words": ["word **bold** `c` " * 500] * 117,
             "marks": ["*_`[(<h#|~" * 1000] * 10, "brackets": ["[" * 30_000, "](" * 5_000],
             "heading": ["# " + " #" * 19_000 + "x"], "spaces": ["| a |\n|" + " " * 39_000 + "x"],
             "quotes": [">" * 30_000 + "\n" + "> " * 15_000], "list": ["- " * 15_000, "\n  - x" * 3000],
             "nested": ["\n".join(" " * i + "- x" for i in range(300))], "code": ["```\n" + "/*" * 6000 + '"\'`' * 300],
             "lines": ["line\n" * 40_000], "broken": ["```\n~~~\n|-|\n|\n[](\n![\n<\n\\"]}
    with opened(browser, server.url) as page:
        replies = iter(texts.values())
        page.route("**/v1/chat/completions", lambda route: route.fulfill(
            status=200, content_type="text/event-stream", body=events_of(next(replies))))
        for name, parts in texts.items():
            page.evaluate("chat.open(newChat())")
            begin = time.monotonic()
            ask(page, name)
            last = answer(page)
            seconds = time.monotonic() - begin
            shown = page.evaluate("chat.chat.messages[1].content.length")
            assert shown == sum(map(len, parts)), (name, shown)
            assert last.locator(".problem").is_hidden(), last.inner_text()
            no_sideways(page)
            assert seconds < 30, (name, seconds)  # minutes, where time is quadratic


def check_random_markdown(browser, server):
    """Pieces of markdown and markup in any order: always elements of the few kinds, never an error;
    and what is shown piece by piece is what is shown at once."""
    with opened(browser, server.url) as page:
        found = page.evaluate(r"""() => {
          let state = 7;
          const random = (n) => { state = (state * 48271) % 2147483647; return state % n; };
          const pieces = ["a", "b c", " ", "  ", "\n", "\n\n", "*", "**", "_", "__", "~~", "`", "```", "```js\n",
            "~~~\n", "# ", "- ", "  - ", "    * ", "1. ", "9) ", "> ", ">> ", "|", "|-|-|\n", "| a | b |\n", "[", "](",
            "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\frac", "{", "}", "^", "_", "$$\n", "\\]\n", "x", "&", "\\\\",
            "\\begin{cases}", "\\end{cases}", "\\left(", "\\right)", ")", "![", "](javascript:x)", "](https://e.org/)", "<https://e.org>", "http://e.org/a_b.", "<script>",
            "</script>", "<img src=x onerror=y>", "\\", "\t", "---\n", "[ ] ", "[x] ", "\r\n", "\0", "\u202e", "🙂"];
          const allowed = new Set(("A BLOCKQUOTE BUTTON CODE DEL DIV EM FIGCAPTION FIGURE H3 H4 H5 H6 HR LI OL P PRE " +
            "SPAN STRONG TABLE TBODY TD TH THEAD TR UL math mfrac mi mn mo mrow mspace msub msubsup msup mtable mtd " +
            "mtext mtr munder munderover mover").split(" "));
          for (let round = 0; round < 600; round += 1) {
            const whole = document.createElement("div");
            const grown = document.createElement("div");
            let text = "";
            for (let i = random(40); i >= 0; i -= 1) {
              text += pieces[random(pieces.length)];
              showMarkdown(grown, text);
            }
            showMarkdown(whole, text);
            if (!whole.isEqualNode(grown)) return "piece by piece: " + JSON.stringify(text);
            for (const node of whole.querySelectorAll("*")) {
              const isLink = node.tagName === "A";
              if (!allowed.has(node.tagName) || (isLink && !/^https?:/.test(node.href))) return JSON.stringify(text);
              if ([...node.attributes].some((a) => a.name.startsWith("on"))) return JSON.stringify(text);
            }
          }
          return "";
        }""")
        assert found == "", found


def check_keys(browser, url):
    with opened(browser, url) as page:
        expect(page.locator("#settings")).to_be_visible()  # it asks by itself, and says why
        expect(page.locator("#settings .reason")).to_contain_text("needs an API key")
        shot(page, "key")
        page.fill("#set-key", "sk-wrong")
        page.press("#set-key", "Tab")
        expect(page.locator("#settings .reason")).to_contain_text("does not take this API key")
        page.get_by_text("Done").click()
        ask(page, "Hello")
        expect(page.locator("article.assistant .problem")).to_contain_text("Invalid API key")
        expect(page.locator("#settings .reason")).to_contain_text("does not take this API key")
        page.fill("#set-key", KEY)
        page.press("#set-key", "Tab")
        expect(page.locator("#model option")).to_have_count(1)
        page.get_by_text("Done").click()
        page.locator("article.assistant").get_by_text("Regenerate").click()
        expect(page.locator("article.assistant > .body")).to_have_text("Hello")
        assert page.evaluate("localStorage.getItem('sluice.key')") is None  # until the tab is closed
        page.reload()
        expect(page.locator("#model option")).to_have_count(1)


def check_operations(browser, server):
    server.say("word " * 1000, pace=4000)
    with opened(browser, server.url) as page:
        ask(page, "Go on")
        expect(page.locator("article.assistant.running > .body")).to_contain_text("word")
        page.keyboard.press("Alt+2")
        expect(page.locator("#operations-view")).to_be_visible()
        expect(page.locator(".tile b").first).not_to_have_text("–")
        expect(page.locator("section.plot")).to_have_count(6)
        expect(page.locator("section.plot path.line").first).to_have_attribute(
            "d", re.compile("^M.*L"))
        # The axis: times of a clock that goes on, or steps.
        times = page.locator("section.plot").first.locator(".times span")
        expect(times).to_have_count(5)
        expect(times.last).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        before = times.last.inner_text()
        expect(times.last).not_to_have_text(before)
        seconds = [sum(int(part) * unit for part, unit in zip(text.split(":"), (3600, 60, 1)))
                   for text in times.all_inner_texts()]
        assert 148 <= (seconds[-1] - seconds[0]) % 86400 <= 152, seconds
        expect(page.locator("section.plot", has_text="Time of a step").locator(".times")).to_contain_text("steps ago")
        page.keyboard.press("Alt+1")
        expect(page.locator("#chat-view")).to_be_visible()
        page.click("#stop")


def check_docs(browser, server):
    with opened(browser, server.url, "/docs") as page:
        operation = page.locator("details.operation", has_text="/v1/chat/completions").first
        operation.locator("summary").click()
        row = operation.locator("tr", has=page.get_by_text("temperature", exact=True))
        expect(row).to_contain_text("0 to 2")
        page.fill("#docs-view input[type=search]", "tokenize")
        expect(page.locator("details.operation:visible")).to_have_count(3)
        no_sideways(page)
        page.fill("#docs-view input[type=search]", "")
        # Each operation has a sentence, and each with a body an example that the server takes.
        unsaid = page.evaluate("""[...document.querySelectorAll('details.operation')]
            .filter(node => !node.querySelector('.sentence').textContent).map(node => node.id)""")
        assert unsaid == [], unsaid
        server.say("Hello from the model.")
        for node in page.locator("details.operation").all():
            name = node.get_attribute("id")
            of_other_models = re.search("embed|pooling|rerank|score|classify|predict", name)
            if not name.startswith("post") or of_other_models or re.search("{id}|(ping|compact|cancel)$", name):
                continue
            if not node.evaluate("node => node.open"):
                node.locator("summary").click()
            with page.expect_response(lambda r: r.request.method == "POST") as got:
                node.get_by_text("Send", exact=True).click()
            assert got.value.status == 200, (name, got.value.status, node.locator(".answer").inner_text())
            expect(node.locator(".answer")).to_contain_text(re.compile("[{\\[]"))
            node.locator("summary").click()
        models = page.locator("[id='get/v1/models']")
        models.locator("summary").click()
        models.get_by_text("Send", exact=True).click()
        expect(models.locator(".answer")).to_contain_text('"object": "list"')
        no_sideways(page)
        page.locator("#tab-chat").click()
        expect(page.locator("#prompt")).to_be_focused()


def check_sizes_and_schemes(browser, server):
    for scheme in ("light", "dark"):
        server.say(POLITE.replace("<tool_call>", "<!--").replace("</tool_call>", "") + "\n" + "x" * 300)
        with opened(browser, server.url, color_scheme=scheme) as page:
            ask(page, "Show me a tour of the formats, please: text, lists, a table and code")
            answer(page)
            colours = set()
            for size, viewport in SIZES.items():
                page.set_viewport_size(viewport)
                no_sideways(page)
                colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                shot(page, f"chat-{scheme}-{size}")
                page.evaluate("document.querySelector('#log').scrollTop = 0")
                shot(page, f"chat-top-{scheme}-{size}")
                if size == "phone":
                    page.locator("#menu").click()
                    expect(page.locator("#chats button.chat").first).to_be_in_viewport()
                    wait_until("an open drawer", lambda: page.evaluate(
                        "getComputedStyle(document.querySelector('#drawer')).transform") == "none")
                    shot(page, f"drawer-{scheme}-{size}")
                    page.keyboard.press("Escape")
                page.keyboard.press("Alt+s")
                shot(page, f"settings-{scheme}-{size}")
                page.keyboard.press("Escape")
                for view in ("operations", "docs"):
                    page.locator("#tab-" + view).click()
                    expect(page.locator(f"#{view}-view .card").first).to_be_visible()
                    if SHOTS and view == "operations":
                        wait_until("points", lambda: page.evaluate("operations.plots.tokens.series[0].points.length") > 3)
                    if view == "docs":
                        page.locator("details.operation summary").first.click()
                    no_sideways(page)
                    shot(page, f"{view}-{scheme}-{size}")
                page.locator("#tab-chat").click()
                expect(page.locator("#prompt")).to_be_in_viewport()
        assert len(colours) == 1 and ("rgb(16" in colours.pop()) == (scheme == "dark")


def check_report(browser, _):
    """The report of `sluice bench serve --html` has letters of their size at any width."""
    source = os.path.join(os.path.dirname(__file__), "../../server/load/report_page.cpp")
    page_text = "".join(re.findall(r'R"page\((.*?)\)page"', open(source).read(), re.S))
    page_text = page_text.replace("{{DATA}}", json.dumps(report_data()))
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=SIZES["phone"], color_scheme=scheme)
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.set_content(page_text)
        for size in ("phone", "wide", "phone"):
            page.set_viewport_size(SIZES[size])
            expect(page.locator("svg")).to_have_count(5)
            wait_until("plots of their own size", lambda: page.evaluate("""[...document.querySelectorAll('svg')].every(
                node => node.getBoundingClientRect().width >= 0.9 * node.viewBox.baseVal.width)"""))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
            shot(page, f"report-{scheme}-{size}")
        context.close()
        assert not errors, errors


def main():
    program = sys.argv[1]
    expect.set_options(timeout=PATIENCE_MS)
    server, guarded = Scripted(program, "Hello"), Scripted(program, "Hello", KEY)
    with sync_playwright() as playwright:
        # The sandbox refuses root, as which containers run tests.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, check, target in (
                ("stream and forms", check_stream_and_forms, server),
                ("stop, regenerate, edit", check_stop_regenerate_edit, server),
                ("reload keeps conversations", check_reload_keeps_conversations, server),
                ("math", check_math, server),
                ("sampling", check_sampling_is_that_of_chats, server),
                ("settings", check_settings_go_with_the_request, server),
                ("hostile text", check_hostile_text_stays_text, server),
                ("long and broken text", check_long_and_broken_text, server),
                ("random markdown", check_random_markdown, server),
                ("keys", check_keys, guarded.url),
                ("operations", check_operations, server),
                ("docs", check_docs, server),
                ("report", check_report, server),
                ("sizes and schemes", check_sizes_and_schemes, server)):
            started = time.monotonic()
            check(browser, target)
            print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
        browser.close()
    server.close()
    guarded.close()


if __name__ == "__main__":
    main()
