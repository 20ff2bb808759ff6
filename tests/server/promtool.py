# SPDX-License-Identifier: Apache-2.0
"""What `promtool check metrics` has against a scrape."""
import re
import shutil
import subprocess

LINT_STATUS = 3
# Names that dashboards know from vLLM, and ours in their form.
EXPECTED = ("(vllm|sluice):[a-z0-9_]+ metric names should not contain ':'",
            'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix')


def is_there():
    return shutil.which("promtool") is not None


def complaints(scrape):
    """Lines, without those about the names; `scrape`: the bytes of /metrics in the text format."""
    done = subprocess.run(["promtool", "check", "metrics"], input=scrape, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = done.stdout.decode().splitlines()
    assert done.returncode in (0, LINT_STATUS), lines
    return [line for line in lines if not re.fullmatch("|".join(EXPECTED), line)]
