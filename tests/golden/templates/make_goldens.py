#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders templates with jinja2 under Hugging Face's settings and records the results.

Needs jinja2 and transformers (for its compiled environment). Without arguments it writes
goldens.json beside itself from features.json, adversarial.json, statements.json and
expressions.json (a sample of every filter, test, method and operator over values of every type). With --templates DIR it renders every *.jinja of DIR
over the conversations instead, into --out FILE; run chat_template_test with
SLUICE_TEMPLATE_GOLDENS=FILE to compare those.
"""
import argparse
import copy
import datetime
import json
import pathlib

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
CLOCK = 1767323045  # 2026-01-02 03:04:05 UTC


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc)


def render(source, variables):
    try:
        template = utils._compile_jinja_template(source)
        # A filter that several serving engines add and some published templates use.
        template.environment.filters["from_json"] = json.loads
        return {"output": template.render(**variables)}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": str(error), "kind": "syntax"}
    except jinja2.exceptions.UndefinedError as error:
        return {"error": str(error), "kind": "undefined"}
    except jinja2.exceptions.SecurityError as error:
        return {"error": str(error), "kind": "security"}
    except jinja2.exceptions.FilterArgumentError as error:
        return {"error": str(error), "kind": "argument"}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error), "kind": "raised"}
    except Exception as error:  # a Python error inside the template
        return {"error": str(error), "kind": type(error).__name__}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "goldens.json")
    args = parser.parse_args()
    utils.datetime = FixedDatetime
    features = json.loads((HERE / "features.json").read_text())
    features.update(json.loads((HERE / "adversarial.json").read_text()))
    conversations = json.loads((HERE / "conversations.json").read_text())
    rows = []
    if args.templates:
        for path in sorted(args.templates.glob("*.jinja")):
            for name, variables in conversations.items():
                source = path.read_text()
                rows.append({"name": f"{path.stem}/{name}", "template": source,
                             "variables": variables, **render(source, variables)})
    else:
        for name in ("statements", "expressions"):
            for i, source in enumerate(json.loads((HERE / f"{name}.json").read_text())):
                features[f"{name}/{i}"] = source
        for name, source in features.items():
            variables = copy.deepcopy(conversations["features"])  # sum() adds to a list in place
            rows.append({"name": name, "template": source, "input": "features",
                         **render(source, variables)})
        chatml = (HERE / "chatml.jinja").read_text()
        for name, variables in conversations.items():
            rows.append({"name": f"chatml/{name}", "template": chatml, "input": name,
                         **render(chatml, variables)})
    document = {
        "provenance": f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}, "
                      "make_goldens.py",
        "clock": CLOCK,
        "cases": rows,
    }
    args.out.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    errors = sum("error" in row for row in rows)
    print(f"{len(rows)} cases, {errors} of them errors")


main()
