# SPDX-License-Identifier: Apache-2.0
"""What the model says in each case: {name: [its turns, one more after each answer]}."""
import json


def call(name, arguments, before=""):
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{before}<tool_call>\n{body}\n</tool_call>"


TRIP = {"city": "Köln", "days": 2}
ANSWER = "It is 12 degrees in Köln."
TEXT = "The words of a script are few, and then they end."
NOTE = "written by a scripted model"
COMMAND = f"printf '%s' '{NOTE}' > note.txt"

SCRIPTS = {
    "text": [TEXT],
    "json": [json.dumps(TRIP, ensure_ascii=False)],
    "weather": [call("weather", {"city": "Köln"}, "I look. "), ANSWER],
    "weatherthenjson": [call("weather", {"city": "Köln"}), json.dumps(TRIP, ensure_ascii=False)],
    "trip": [call("Trip", TRIP)],
    "weatherthenfinal": [call("weather", {"city": "Köln"}), call("final_result", TRIP)],
    "answer": [call("weather", {"city": "Köln"}), call("final_answer", {"answer": ANSWER})],
    "code": ["Thought: I compute it.\n<code>\nfinal_answer(6 * 7)\n</code>"],
    # Agents that work in a folder.
    "claude": [call("Bash", {"command": COMMAND, "description": "Writes a note"}, "I write. "),
               call("Read", {"file_path": "FOLDER/note.txt"}), "The note is written."],
    "codex": [call("exec_command", {"cmd": COMMAND}, "I write. "),
              call("exec_command", {"cmd": "cat note.txt"}), "The note is written."],
    "mcp": [call("mcp__weather__weather", {"city": "Köln"}), ANSWER],
    "dspy": ["[[ ## answer ## ]]\nKöln\n\n[[ ## completed ## ]]"],
    "edit": ["note.txt\n```\n" + NOTE + "\n```\n"],
}


def scripts_for(folder):
    """The scripts with the folder in which agents work."""
    return {name: [turn.replace("FOLDER", folder) for turn in turns]
            for name, turns in SCRIPTS.items()}
