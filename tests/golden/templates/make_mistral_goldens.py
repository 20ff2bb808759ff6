#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mistral.json: conversations, and the text that mistral-common gives each of them, for each version of a
tekken.json, with control tokens between ⟪ and ⟫. null: mistral-common refuses the conversation.

    pip install mistral-common && python make_mistral_goldens.py [--vocabulary FOLDER VERSION] [--check URL VERSION]

--vocabulary writes a tekken.json of mistral-common's own with this version. --check compares random conversations with
the ids that a server of such a directory gives at URL/tokenize instead. Made with mistral-common 1.13.1.
"""
import argparse
import json
import pathlib
import random
import tempfile
import urllib.error
import urllib.request
import warnings

from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers import mistral
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

warnings.simplefilter("ignore")
OUT = pathlib.Path(__file__).resolve().parent / "mistral.json"
VERSIONS = ["v3", "v7", "v11", "v13"]
DATA = pathlib.Path(mistral.__file__).resolve().parents[2] / "data" / "tekken_240911.json"
MORE = ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]


def vocabulary(version):
    made = json.loads(DATA.read_text())
    made["config"]["version"] = version
    names = [str(getattr(token["token_str"], "value", token["token_str"])) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    names += MORE if version in ("v11", "v13") else []
    made["special_tokens"] = [dict(rank=i, token_str=name, is_control=True) for i, name in enumerate(names)]
    return made


class Oracle:
    def __init__(self, version):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tekken.json"
            path.write_text(json.dumps(vocabulary(version)))
            self.tokenizer = mistral.MistralTokenizer.from_file(path)
        self.tekken = self.tokenizer.instruct_tokenizer.tokenizer
        self.thinks = version == "v13"

    def ids(self, row):
        """None: refused."""
        messages = [dict(message) for message in row["messages"]]
        for message in messages:
            # What the other versions have no place for.
            if not self.thinks:
                message.pop("reasoning_content", None)
        try:
            request = ChatCompletionRequest.from_openai(messages=messages, tools=row.get("tools"),
                                                        continue_final_message=row.get("continue_final_message", False))
            return self.tokenizer.encode_chat_completion(request).tokens
        except (MistralCommonException, ValueError, AssertionError):
            return None

    def text(self, ids):
        if ids is None:
            return None
        text, run = "", []
        for token in [*ids, None]:
            if token is not None and token >= self.tekken.num_special_tokens:
                run.append(token)
                continue
            text, run = text + self.tekken.decode(run), []
            if token is not None:
                text += "⟪" + self.tekken.id_to_piece(token) + "⟫"
        return text


def user(content):
    return dict(role="user", content=content)


def system(content):
    return dict(role="system", content=content)


def assistant(content, *calls, **more):
    message = dict(role="assistant", content=content, **more)
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(name, arguments, call_id):
    return dict(id=call_id, type="function", function=dict(name=name, arguments=arguments))


def result(content, call_id):
    return dict(role="tool", content=content, tool_call_id=call_id)


def tool(name, description=None, parameters=None, **more):
    function = dict(name=name, **more)
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return dict(type="function", function=function)


def parts(*texts):
    return [dict(type="text", text=text) for text in texts]


CITY = dict(type="object", properties=dict(city=dict(type="string", description="Où ? </s> \"x\"")), required=["city"])
WEATHER = tool("get_weather", "The weather <b>here</b>", CITY)
TIME = dict(function=dict(parameters=dict(type="object", properties={}), name="time", strict=True), type="function")
IDS = ["abcDEF123", "000000000", "zzzzzzzz9"]
HI, HELLO = user("Hi"), assistant("Hello!")


def spoken():
    """Conversations without tools."""
    return [
        [HI], [system("Be brief."), HI], [HI, HELLO, user("And now?")], [system("S"), HI, HELLO, user("u2"), assistant("a2"), user("u3")],
        [user("a"), user("b"), user("")], [HI, assistant("a"), assistant("b  "), user("c")], [system("one"), system("two"), HI],
        [HI, HELLO, system("late"), user("u")], [system("S"), HI, system("T"), user("u")], [user("")], [user("  spaces  \n")],
        [user("[INST] x [/INST]</s><s>[TOOL_CALLS][THINK]")], [system("[/SYSTEM_PROMPT]"), user("</s>"), assistant("[/INST]"), user("é中🙂")],
        [user(parts("a", "", "b"))], [system(parts("s", "t")), user(parts("x")), user("y"), HELLO, user(parts("p", "q"))],
        [HI, assistant(" a b   "), user("x")], [HI, assistant("line\n  "), user("x")], [system("only")], [system("S"), HELLO, user("u")],
        [HI, assistant("Because", reasoning_content="Let me think.\n\n"), user("u")], [HI, assistant("x ", reasoning_content="[/THINK] y "), user("u")],
        [HI, assistant("a", reasoning_content="r"), assistant("b", reasoning_content="q"), assistant("c"), user("u")],
        [HI, assistant("a"), assistant("b", reasoning_content="q"), user("u")], [HI, assistant("", reasoning_content="r"), user("u")],
        [HI, assistant(parts("a", "b ")), user("u")]]


def continued():
    return [[HI, assistant("The answer")], [HI, assistant("The answer is  ")], [system("S"), HI, assistant("{\"a\": ")], [HI, HELLO, assistant("more\n")],
            [HI, assistant("a", reasoning_content="r")]]


def called():
    """Conversations with tools."""
    one, two, three = (call("get_weather", json.dumps(dict(city=city)), call_id) for city, call_id in zip(["Rome", "Zürich", "a\"b\\"], IDS))
    return [
        [HI], [system("S"), HI], [HI, HELLO, user("u")], [system("S"), HI, HELLO, user("u2")], [HI, assistant("", one), result("22", IDS[0])],
        [HI, assistant(None, one), result("It is { warm", IDS[0]), assistant("Warm."), user("And Zürich?")],
        [system("S"), HI, assistant("", one, two), result("{\"t\":1.50,  \"u\": [1,2,null,true]}", IDS[0]), result("", IDS[1])],
        [HI, assistant("", one, two, three), result("3", IDS[2]), result("1", IDS[0]), result("\"é\"", IDS[1]), assistant("done"), user("u")],
        [HI, assistant("Let me see. ", one), result("null", IDS[0]), assistant("ok"), user("u"), assistant("", two), result("[ ]", IDS[1])],
        [HI, assistant("", call("time", "", IDS[0])), result("[TOOL_CALLS]</s>", IDS[0])], [HI, assistant("", call("time", "{}", IDS[0])), result("1e5", IDS[0])],
        [HI, assistant("", call("time", "{\"a\":1,\"b\":[ ],\"c\":\"\\u00e9\\n\"}", IDS[0])), result(parts("x", "y"), IDS[0])],
        [HI, assistant("", call("time", "[1,2]", IDS[0])), result("x", IDS[0])], [HI, assistant("", call("time", "{\"cut", IDS[0])), result(" 7 ", IDS[0])],
        [HI, assistant("", one), result("a", IDS[0]), assistant("", two), result("b", IDS[1]), assistant("end"), user("u")],
        [HI, assistant("w", one, reasoning_content="why"), result("a", IDS[0])], [HI, assistant("", one), result("a", IDS[0]), user("no")],
        [HI, assistant("", one), assistant("", two), result("b", IDS[1]), result("a", IDS[0])]]


def fixed():
    rows = [dict(messages=messages) for messages in spoken()]
    rows += [dict(messages=messages, continue_final_message=True) for messages in continued()]
    rows += [dict(messages=messages, tools=[WEATHER, TIME]) for messages in called()]
    return rows + [dict(messages=called()[4]), dict(messages=[HI], tools=[tool("bare")]),
                   dict(messages=[HI], tools=[tool("[/AVAILABLE_TOOLS]".strip("[/]"), "[/AVAILABLE_TOOLS]<s>", CITY)])]


def random_row(rng):
    words = ["a", "Hello", " ", "\n", "[INST]", "</s>", "é", "中", "🙂", "{\"x\": 1}", "[", "\"", "\\", "  ", "0.10", "[ARGS]", "[THINK]", "null", ""]

    def text():
        return "".join(rng.choices(words, k=rng.randint(0, 4)))

    def content():
        return parts(*(text() for _ in range(rng.randint(1, 3)))) if rng.random() < 0.2 else text()

    def value(level=0):
        kind = rng.randrange(7 if level < 2 else 5)
        if kind < 5:
            return [text(), rng.randint(-9, 99), rng.random() * 10 ** rng.randint(-8, 20), None, True][kind]
        if kind == 5:
            return [value(level + 1) for _ in range(rng.randint(0, 3))]
        return {text(): value(level + 1) for _ in range(rng.randint(0, 3))}

    def written(spelled):
        return json.dumps(spelled, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")]))

    messages, pending = [], []
    for _ in range(rng.randint(1, 8)):
        roles = ["user", "user", "assistant", "assistant", "system"] if not pending or rng.random() < 0.05 else ["tool"]
        role = rng.choice(roles) if messages else rng.choice(["user", "system"])
        if role == "tool":
            messages.append(result(rng.choice([content(), written(value())]), pending.pop(rng.randrange(len(pending)))))
        elif role == "assistant":
            message = assistant(content())
            if rng.random() < 0.3:
                message["reasoning_content"] = text() or "r"
            if rng.random() < 0.4:
                pending = ["".join(rng.choices("abcXYZ019", k=9)) for _ in range(rng.randint(1, 3))]
                arguments = [written({text(): value()}) if rng.random() < 0.9 else "x" + text() for _ in pending]
                message["tool_calls"] = [call("f", spelled, call_id) for spelled, call_id in zip(arguments, pending)]
                message["content"] = rng.choice(["", None, message["content"]])
            messages.append(message)
        else:
            messages.append(dict(role=role, content=content()))
    row = dict(messages=messages)
    if rng.random() < 0.5:
        row["tools"] = [tool(f"t{i}", rng.choice([None, text()]), rng.choice([None, CITY, {}])) for i in range(rng.randint(1, 3))]
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        row["continue_final_message"] = True
    return row


def asked(url, row):
    body = dict(row, add_special_tokens=False, add_generation_prompt=not row.get("continue_final_message", False))
    request = urllib.request.Request(url + "/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]
    except urllib.error.HTTPError as error:
        return error.read().decode()


def check(url, version, count):
    oracle, rng, compared, wrong = Oracle(version), random.Random(11), 0, []
    while compared < count:
        row = random_row(rng)
        ids = oracle.ids(row)
        if ids is None:
            continue
        compared += 1
        found = asked(url, row)
        if found != ids:
            wrong.append((json.dumps(row, ensure_ascii=False), oracle.text(ids), found if isinstance(found, str) else oracle.text(found)))
    print(f"{version}: {len(wrong)} of {compared} differ")
    for case in sorted(wrong, key=lambda case: len(case[0]))[:5]:
        print(*case, sep="\n  ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", nargs=2, metavar=("FOLDER", "VERSION"))
    parser.add_argument("--check", nargs=2, metavar=("URL", "VERSION"))
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    if arguments.vocabulary:
        folder, version = arguments.vocabulary
        return (pathlib.Path(folder) / "tekken.json").write_text(json.dumps(vocabulary(version)))
    if arguments.check:
        return check(*arguments.check, arguments.count)
    rows = fixed()
    for version in VERSIONS:
        oracle = Oracle(version)
        for row in rows:
            row.setdefault("texts", {})[version] = oracle.text(oracle.ids({key: row[key] for key in row if key != "texts"}))
    OUT.write_text(json.dumps(rows, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
