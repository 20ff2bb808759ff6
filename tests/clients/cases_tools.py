# SPDX-License-Identifier: Apache-2.0
"""Programs of a command line: evaluations, and what people type into."""
import os
import pathlib
import subprocess
import sys

from cases import MODEL, OPENAI, URL, WORK, case
from scripts import NOTE, TEXT


def program(name):
    return str(pathlib.Path(sys.executable).parent / name)


def run(*command, **environment):
    ran = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran
    return ran.stdout


@case("llm")
def llm():
    (WORK / "extra-openai-models.yaml").write_text(
        f"- model_id: s\n  model_name: {MODEL}\n  api_base: {URL}/v1\n")
    said = run(program("llm"), "-m", "s", "--key", "none", "case:text", LLM_USER_PATH=str(WORK))
    assert said.strip() == TEXT, said


@case("inspect-ai")
def inspect_ai():
    import inspect_ai as library
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def weather():
        async def execute(city: str):
            """The weather of a city.

            Args:
                city: Its name.
            """
            return "12 degrees in " + city
        return execute

    task = library.Task(dataset=[Sample(input="case:weather", target="12 degrees in Köln")],
                        solver=[use_tools(weather()), generate()], scorer=includes())
    model = get_model("openai-api/sluice/" + MODEL, **OPENAI)
    log = library.eval(task, model=model, display="none", log_dir=str(WORK))[0]
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0, log.results


@case("lm_eval")
def lm_eval():
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
    from lm_eval.utils import check_remote_tokenizer_support
    model = LocalChatCompletion(model=MODEL, base_url=URL + "/v1/chat/completions",
                                tokenizer_backend=None)
    messages = model.apply_chat_template([{"role": "user", "content": "case:text"}])
    said = model.generate_until([Instance("generate_until", {}, (messages, {"until": ["\n"]}), 0)])
    assert said == [TEXT], said
    # Tokenizes and renders by /tokenizer_info, /tokenize and /detokenize: no tokenizer of its own.
    remote = LocalCompletionsAPI(model=MODEL, base_url=URL + "/v1/completions",
                                 tokenizer_backend="remote")
    assert check_remote_tokenizer_support(URL + "/v1/completions")
    assert remote.tokenizer.decode([remote.eot_token_id]) == "<|im_end|>"
    # Its Jinja knows nothing that is undefined.
    asked = [{"role": "user", "content": "case:text", "tool_calls": None}]
    prompt = remote.tokenizer.apply_chat_template(asked, tools=None)
    said = remote.generate_until([Instance("generate_until", {}, (prompt, {"until": ["\n"]}), 0)])
    assert said == [TEXT], said
    scored = remote.loglikelihood([Instance("loglikelihood", {}, (prompt, TEXT), 0)])
    assert scored[0][0] < 0, scored


@case("aider-chat")
def aider():
    run(program("aider"), "--model", "openai/" + MODEL, "--no-git", "--yes-always", "--no-stream",
        "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--edit-format",
        "whole", "--message", "case:edit", "note.txt", OPENAI_API_BASE=OPENAI["base_url"],
        OPENAI_API_KEY="none", HOME=str(WORK))
    assert (WORK / "note.txt").read_text().strip() == NOTE
