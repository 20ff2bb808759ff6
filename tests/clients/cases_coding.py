# SPDX-License-Identifier: Apache-2.0
"""Agents that work in a folder: Claude Code, its SDK, Codex CLI. They write a note and read it."""
import asyncio
import os
import pathlib
import subprocess

from cases import URL, WORK, case, version_of
from scripts import ANSWER, NOTE

PROMPT = "Write the note, please. case:"


def claude_environment(home):
    """Claude Code's variables for a server of one's own; nothing of the user's is read."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "ANTHROPIC_BASE_URL": URL,
            "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "scripted",
            "ANTHROPIC_SMALL_FAST_MODEL": "scripted", "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def written(folder):
    assert (folder / "note.txt").read_text() == NOTE, list(folder.iterdir())


def claude_program():
    import claude_agent_sdk
    return pathlib.Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"


def run_claude(script, *flags):
    folder = WORK
    ran = subprocess.run(
        [claude_program(), "-p", PROMPT + script, "--allowedTools", "Bash", "Read", "Write", *flags],
        cwd=folder, env=claude_environment(folder / "home"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and "The note is written." in ran.stdout, ran
    written(folder)


@case("claude-code", version=lambda: subprocess.run(
    [claude_program(), "--version"], capture_output=True, text=True, check=True,
    env={**os.environ, "HOME": str(WORK)}).stdout.split()[0])
def claude_code():
    run_claude("claude")


@case("claude-agent-sdk")
def claude_agent_sdk():
    import claude_agent_sdk as sdk

    @sdk.tool("weather", "The weather of a city.", {"city": str})
    async def weather(arguments):
        asked.append(arguments["city"])
        return {"content": [{"type": "text", "text": "12 degrees"}]}

    asked, messages = [], []
    options = sdk.ClaudeAgentOptions(
        model="scripted", cwd=str(WORK), env=claude_environment(WORK / "home"),
        mcp_servers={"weather": sdk.create_sdk_mcp_server("weather", tools=[weather])},
        allowed_tools=["mcp__weather__weather"], setting_sources=[])

    async def ask():
        async for message in sdk.query(prompt="How is the weather? case:mcp", options=options):
            messages.append(message)

    asyncio.run(ask())
    assert asked == ["Köln"], messages
    result = messages[-1]
    assert not result.is_error and result.result == ANSWER, result


@case("codex-cli", version=lambda: version_of("openai-codex-cli-bin"))
def codex_cli():
    import codex_cli_bin
    home = pathlib.Path(os.environ["CLIENTS_HOME"]) / "codex"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        'model = "scripted"\nmodel_provider = "sluice"\n[model_providers.sluice]\nname = "sluice"\n'
        f'base_url = "{URL}/v1"\nwire_api = "responses"\n')
    program = pathlib.Path(codex_cli_bin.__file__).parent / "bin" / "codex"
    ran = subprocess.run(
        [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
         PROMPT + "codex"],
        cwd=WORK, env={**os.environ, "CODEX_HOME": str(home)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and "The note is written." in ran.stdout, ran
    written(WORK)


