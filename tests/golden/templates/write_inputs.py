#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes features.json (one small template per construct) and conversations.json."""
import json
import pathlib

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a town <now> & 'later'",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "Name é"},
                "days": {"type": "integer", "enum": [1, 2, 3]},
                "opts": {"type": "array", "items": {"type": "string"}},
                "deep": {"type": "object", "properties": {"x": {"type": "number"}}},
            },
            "required": ["town"],
        },
        "return": {"type": "string"},
    },
}


def call(arguments, **extra):
    return {"role": "assistant", "content": extra.pop("content", ""),
            "tool_calls": [{"id": "call12345", "type": "function",
                            "function": {"name": "get_weather", "arguments": arguments}}], **extra}


def conversations():
    user = {"role": "user", "content": "Hello <|im_end|> wörld"}
    system = {"role": "system", "content": "Be brief."}
    reply = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nHi there."}
    base = {**TOKENS, "tools": None, "documents": None}
    more = {"role": "user", "content": "  More?\n"}
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345",
              "content": "{\"t\": 3}"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Look:"},
                                         {"type": "image"}, {"type": "text", "text": "?"}]}
    args = {"town": "Oslo", "days": 2, "opts": ["a", "b"], "ok": True, "none": None, "f": 1.5}
    return {
        "features": {**base, "messages": [system, user, reply, more], "tools": [TOOL],
                     "add_generation_prompt": True, "name": "input-É", "numbers": [3, 1, 2],
                     "mixed": {"b": 1, "A": [1, 2.5, None, True], "c": {"k": "v\"\n'"}},
                     "words": ["b", "A", "c", "a"], "text": "  one two\nthree  ", "zero": 0,
                     "empty": [], "nothing": None, "pi": 3.14159,
                     "people": [{"n": "x", "g": 1, "t": {"u": 2}}, {"n": "y", "g": 2},
                                {"n": "Z", "g": 1}]},
        "user": {**base, "messages": [user], "add_generation_prompt": True},
        "turns": {**base, "messages": [system, user, reply, more], "add_generation_prompt": True},
        "closed": {**base, "messages": [system, user, reply], "add_generation_prompt": False},
        "tools": {**base, "messages": [system, user], "tools": [TOOL, TOOL],
                  "add_generation_prompt": True},
        "calls": {**base, "messages": [system, user, call(args), result, reply, more],
                  "tools": [TOOL], "add_generation_prompt": True},
        "calls_text": {**base, "messages": [user, call(json.dumps(args)), result],
                       "tools": [TOOL], "add_generation_prompt": True},
        "thinking": {**base, "messages": [user, {**reply, "reasoning_content": "deep"}, more],
                     "add_generation_prompt": True, "enable_thinking": False, "thinking": True,
                     "reasoning_effort": "high"},
        "thinking_on": {**base, "messages": [user, call(args, reasoning_content="why",
                                                        content=None), result],
                        "tools": [TOOL], "add_generation_prompt": True, "enable_thinking": True},
        "parts": {**base, "messages": [system, parts, reply], "add_generation_prompt": True},
        "bad_roles": {**base, "messages": [user, user, {"role": "other", "content": "x"}],
                      "add_generation_prompt": True},
        "no_messages": {**base, "messages": [], "add_generation_prompt": False},
        "documents": {**base, "messages": [user], "add_generation_prompt": True,
                      "documents": [{"title": "T", "text": "Body", "doc_id": 1}],
                      "available_tools": [TOOL], "date_string": "1 Jan 2026",
                      "builtin_tools": ["wolfram_alpha"]},
        "bare": {"messages": [user, reply, more], "add_generation_prompt": True},
    }


FEATURES = """
{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789.5 }} {{ 5.0 // 2 }} {{ -5.5 % 2 }}
{{ true }} {{ none }} {{ [1, 'a', none, true, 1.5] }} {{ (1,) }} {{ () }} {{ {'a': 1, 'b': [1]} }}
{{ 'it\\'s' }} {{ ['it\\'s', "q\\"", 'a\\n\\t\\\\', 'é', '\\x07'] }}
{{ "a" "b" 'c' }} {{ 'x' * 3 }} {{ [1] * 2 + [3] }} {{ 'a' ~ 1 ~ none ~ true }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ true == 1 }}
{{ 'a' in 'cat' }} {{ 'z' not in 'cat' }} {{ 1 in [1] }} {{ 'A' in mixed }} {{ not 1 in [2] }}
{{ 'yes' if numbers else 'no' }} {{ 'x' if empty }}|{{ zero or 'other' }} {{ numbers and 'and' }}
{{ text[2:5] }} {{ text[::-1] }} {{ numbers[-1] }} {{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[:-1] }} {{ name[-1] }}
{{ numbers[10] }}|{{ mixed.nope }}|{{ mixed['nope'] }}|{{ undefined_name }}|
{{ undefined_name.attr }}
{{ mixed.nope.more }}
{{ undefined_name + 1 }}
{{ 1 + 'a' }}
{{ 1 // 0 }}
{{ numbers.append(4) }}
{{ mixed.pop('b') }}
{{ mixed.update({}) }}
{{ numbers.append is defined }} {{ mixed.items is defined }}
{{ raise_exception('No good: ' ~ name) }}
{% if zero %}a{% elif numbers %}b{% else %}c{% endif %}
{% for n in numbers %}{{ loop.index }}/{{ loop.length }}:{{ n }}{{ ',' if not loop.last }}{% endfor %}
{% for n in numbers if n > 1 %}{{ loop.index0 }}{{ n }}{{ loop.first }}{{ loop.last }};{% else %}none{% endfor %}
{% for n in empty %}x{% else %}none{% endfor %}{% for n in numbers if n > 9 %}x{% else %}none{% endfor %}
{% for k, v in mixed.items() %}{{ k }}={{ v }};{% endfor %}{% for k in mixed %}{{ k }}{% endfor %}
{% for n in numbers %}{{ loop.previtem }}<{{ n }}>{{ loop.nextitem }} {{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}
{% for n in range(5) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}
{% for n in range(3) %}{{ loop.cycle('a', 'b') }}{{ loop.changed(n // 2) }}{% endfor %}
{% for m in [{'c': [{'c': []}]}] recursive %}[{{ loop.depth }}{{ loop(m.c) }}]{% endfor %}
{% for c in 'añb' %}{{ c }}.{% endfor %}
{% set x = 1 %}{% for n in numbers %}{% set x = x + n %}{{ x }},{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for n in numbers %}{% set ns.x = ns.x + n %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}
{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set t = 1, 2 %}{{ t }}{% set (c, d) = [3, 4] %}{{ c + d }}
{% set mixed.x = 1 %}
{% set a, b = [1, 2, 3] %}
{% set block %}a{{ name }}b{% endset %}[{{ block }}]{% set up | upper %}abc{% endset %}{{ up }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% macro m(a, b=2, c='x' ~ a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(a='q', b='r') }}|{{ m() }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro w(t) %}<{{ t }}>{{ caller('in') }}</{{ t }}>{% endmacro %}{% call(x) w('p') %}body {{ x }}{{ name }}{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{{ f.name }}{{ f.arguments }}
{% macro m() %}{{ late }}{% endmacro %}{% set late = 'set later' %}{{ m() }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}
{% filter upper %}abc {{ name }}{% endfilter %}{% filter replace('a', 'b') | upper %}aa{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{% generation %}gen {{ name }}{% endgeneration %}
{% raw %}{{ not }} {% this %}{% endraw %}
a {# comment #} b {#- trimmed -#} c
  {% if true %}
  indented
  {% endif %}
  after
x  {%- if true -%}  y  {%- endif -%}  z
  {%+ if true %} keep{% endif +%}
{{- 'a' -}}   {{ 'b' }}
{{ mixed | tojson }} {{ mixed | tojson(indent=2) }} {{ tools | tojson(ensure_ascii=true) }}
{{ mixed | tojson(separators=(',', ':')) }} {{ mixed | tojson(sort_keys=true) }} {{ [] | tojson(indent=4) }} {{ {} | tojson }} {{ [1e3, 'é<>&\\'"'] | tojson }}
{{ {1: 2, none: 3, true: 4} | tojson }} {{ (1, 2) | tojson }} {{ undefined_name | tojson }}
{{ numbers | length }} {{ mixed | count }} {{ name | length }} {{ text | trim }}| {{ 5 | string }} {{ '5' | int + 1 }} {{ '2.7' | int }} {{ 'x' | int }} {{ '2.5' | float }} {{ 'x' | int(9) }}
{{ text.split() }} {{ text.strip().split(' ') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb'.splitlines() }} {{ ''.split(',') }} {{ ''.split() }}
{{ 'xxaxx'.strip('x') }} {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }}
{{ 'Hello wORLD'.title() }} {{ 'hELLO w'.capitalize() }} {{ 'ÉÀ'.lower() }} {{ 'éàß' | lower }} {{ 'a-b c' | title }}
{{ 'banana'.replace('a', 'o', 2) }} {{ 'banana' | replace('an', '') }} {{ 'banana'.find('n') }} {{ 'banana'.rfind('n') }} {{ 'banana'.count('an') }} {{ 'ab'.find('x') }} {{ 'éa'.index('a') }}
{{ ', '.join(words) }} {{ words | join('-') }} {{ numbers | join }} {{ people | join(',', attribute='n') }}
{{ '{} {1}'.format('a', 'b') }}
{{ '{} {} {x:>5} {{}}'.format('a', 2, x='c') }} {{ '{0:05.1f}|{0:<8}|{1:>7}|{2:09d}'.format(3.14159, 'mid', 1234567) }} {{ '{:x} {:3d}'.format(255, 3) }}
{{ '%s %d %5.2f %-4s| %i %%' % ('a', 3, pi, 'b', 4) }} {{ '%s' % 'x' }} {{ '%05d %x' % (42, 255) }} {{ 'a%sb' | format(1) }}
{{ '%s %s' % 'x' }}
{{ '%d' % 'x' }}
{{ people | selectattr('g', 'equalto', 1) | map(attribute='n') | list }} {{ people | rejectattr('t') | map(attribute='n') | join(',') }} {{ people | selectattr('t', 'defined') | list | length }}
{{ numbers | select('odd') | list }} {{ numbers | reject('gt', 1) | list }} {{ numbers | map('string') | list }} {{ people | map(attribute='t.u', default=0) | list }}
{{ mixed | dictsort }} {{ mixed | items | list }} {{ mixed.keys() | list }} {{ mixed.values() | list }} {{ mixed.get('zz', 5) }} {{ mixed.get('zz') }} {{ mixed.items() }}
{{ words | sort }} {{ words | sort(reverse=true) }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='n') | map(attribute='n') | list }} {{ ['a', 'A', 'b'] | unique | list }}
{{ words | first }} {{ words | last }} {{ numbers | min }} {{ numbers | max }} {{ numbers | sum }} {{ people | sum(attribute='g') }} {{ numbers | reverse | list }} {{ 'abc' | reverse }}
{{ [] | first }}|{{ [] | last }}|{{ [] | min }}
{{ -3 | abs }} {{ 2.5 | round }} {{ 3.7 | round | int }} {{ 2.675 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 5 | round }} {{ 1234 | round(-2) }}
{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(1, blank=true) }}|{{ 'a\\nb' | indent('> ') }}
{{ '<a> & "b"' | escape }} {{ '<a>' | e }} {{ '<a>' | safe }} {{ '<x>' + ('<a>' | safe) }} {{ '<x>' ~ ('<a>' | safe) }} {{ ('<a>' | safe) + 'b' }}
{{ undefined_name | default('d') }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ none | d('x') }} {{ undefined_name | length }} {{ undefined_name | upper }}| {{ nothing | default('n') }}
{{ 1 is defined }} {{ x is undefined }} {{ none is none }} {{ 'a' is string }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ true is boolean }} {{ 1 is true }} {{ false is false }} {{ range is callable }} {{ x is iterable }} {{ x is sequence }}
{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 1 is in [1] }} {{ 2 is eq 2 }} {{ 2 is not ne 3 }} {{ 2 is gt(1) }} {{ 1 is sameas 1 }}
{{ numbers is string or numbers is sequence and not nothing }} {{ nothing is not none }} {{ not true is defined }}
{{ range(3) }} {{ range(1, 10, 3) | list }} {{ range(3, 0, -1) | list }} {{ dict(a=1, b=2) }} {{ dict([('a', 1)]) }}
{{ range(100001) | length }}
{{ strftime_now('%d %b %Y %H:%M') }}
{{ 'a' | nofilter }}
{% if false %}{{ 'a' | nofilter }}{% endif %}ok
{{ 'a' is notest }}
{% unknown %}
{{ 1 + }}
{% for x in y %}
{{ 'unterminated }}
{% endif %}
{{ messages[0].content }} {{ messages[0]['role'] }} {{ messages | length }} {{ messages[-1].content | trim }} {{ messages[1:] | map(attribute='role') | list }}
{{ mixed.c.k }} {{ mixed['c']['k'] }} {{ mixed.A.0 }} {{ numbers.0 }}
{{ 'ab'.upper().lower() }}| {{ 'prefix'.removeprefix('pre') }} {{ '12'.isdigit() }} {{ ' '.isspace() }}
{{ [1, [2, (3, 'x')], {'k': none}] }} {{ 'é' ~ ['é'] }} {{ 1.5 | string ~ 2 }} {{ [1.0, 1e100, -0.0] }}
{{ numbers | list == numbers }} {{ {'a': 1} == {'a': 1.0} }} {{ (1, 2) == [1, 2] }} {{ 'a' == 1 }} {{ nope == none }} {{ nope == nope2 }} {{ none == none }}
{{ people | map(attribute='n') | select('in', ['x', 'Z']) | join('+') }} {{ (people | selectattr('g', 'eq', 9)) and 'generators are true' }}
{{ people | selectattr('g') | length }}
{{ (numbers | map('string'))[0] }}
{{ bos_token ~ messages[1].content ~ eos_token }}
{{ 5 is divisibleby 0 }}
{{ none | length }}
{{ 5.split() }}
{{ 'a'.nomethod() }}
{{ none.x }}|
{{ nothing + 'a' }}
{{ messages[0].content.split('.')[0] | upper }}{{ '\\u00e9\\x41\\101' }}
{%- for m in messages -%}{{- '<|' + m.role + '|>\\n' + m['content'] | trim + eos_token -}}{%- endfor -%}
{{ ('a', 'b') | join }} {{ 'abc' | list }} {{ mixed | list }} {{ 'abc' | first }} {{ 'abc'[1] }} {{ 0x1F }} {{ 1_000 }}
{{ [3, 1] | sort | first + 10 }} {{ -1 | abs }} {{ (-1) | abs }} {{ 10 - 2 - 3 }} {{ 100 / 10 / 2 }} {{ 2 + 3 ~ 4 }}
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ sys }}{{ loop_messages | length }}
{% for row in [[1, 2], [3, 4]] %}{% for cell in row %}{{ loop.index }}{% set outer = loop.index %}{% endfor %}{{ outer }}{{ loop.index }};{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
""".strip("\n").split("\n")


def multi_line():
    yield "trim_blocks", "{% if true %}\nline\n{% endif %}\nend\n"
    yield "lstrip_blocks", "a\n   {% if true %}\n   b\n   {% endif %}\n   {# c #}\n   {{ 'd' }}\n"
    yield "lstrip_kept", "a\n   {%+ if true %}\n   b\n  {% endif +%}\n x\n\n"
    yield "raw_block", "a\n  {% raw %}\n {{ x }}\n  {% endraw %}\nb"
    yield "raw_trim", "a\n  {%- raw -%}\n {{ x }}\n  {%- endraw -%}\nb"
    yield "comment_lines", "{#- head -#}\n\nx\n{# one\ntwo #}\ny {#- z -#} w\n"
    yield "crlf", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n"
    yield "nested_loops", ("{% for m in messages %}\n{% if m.role == 'user' %}\n"
                           "U: {{ m.content }}\n{% else %}\nO: {{ loop.index }}\n{% endif %}\n"
                           "{% endfor %}\n")
    yield "trailing_newlines", "a\n\n\n"
    yield "dict_braces", "{{ {'a': {'b': 1}} }} {{ {'a': {}}}}"
    yield "error_line", "one\ntwo\n{{ nope.attr }}\n"


def main():
    features = {f"{i:03d} {line[:40]}": line for i, line in enumerate(FEATURES)}
    features.update(multi_line())
    for name, data in (("features", features), ("conversations", conversations())):
        text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
        (HERE / f"{name}.json").write_text(text)


main()
