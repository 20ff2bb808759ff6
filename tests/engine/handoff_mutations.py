#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the model checker sees bugs: each of the chosen ones is put into the machines of a handoff,
one at a time, and handoff_model_test has to fail. Needs a build folder with that test in it, and
leaves the sources as they are.

usage: handoff_mutations.py BUILD [WORD]    (only those whose description has WORD)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mutants  # noqa: E402

PREFILL = "engine/handoff/prefill_state.cpp"
DECODE = "engine/handoff/decode_state.cpp"

# What the bug is, file, text that stands there once, what stands there instead; more pairs.
MUTATIONS = [
    ("no pin while a part is read", PREFILL,
     "  act_on_parts(Do::kPinPart, state_.num_begun, count);\n", "",
     "  act_on_parts(Do::kUnpinPart, event_.part, 1);\n", ""),
    ("a claim's key is not compared", PREFILL,
     "if (event_.key != state_.key) return refuse(KvRefusal::kKey);", "",
     "const bool is_same = state_.key == event_.key;", "const bool is_same = true;"),
    ("a slot's generation is not compared", "engine/handoff/landing_slot.cpp",
     " && generation == for_generation;", " && generation >= for_generation;"),
    ("sums of parts are not compared", DECODE, "if (!event_.sums_agree) {", "if (false) {"),
    ("blocks are released before they have landed", DECODE,
     "      state_.has_final = true;\n", "      state_.has_final = true;\n      act(Do::kRelease);\n"),
    ("a claim for another epoch is taken", PREFILL,
     "if (event_.epoch != 0 && event_.epoch != worker_.epoch) return refuse(KvRefusal::kEpoch);", ""),
    ("a lease never ends", PREFILL,
     "    case Phase::kParked:\n      return state.lease_end_ms;\n",
     "    case Phase::kParked:\n      break;\n"),
    ("nobody looks whether bytes still come", DECODE,
     "    case Phase::kReceiving:\n    case Phase::kFallback:\n      return state.timer_ms;\n",
     "    case Phase::kReceiving:\n      break;\n    case Phase::kFallback:\n      return state.timer_ms;\n"),
    ("an early claim waits for ever", PREFILL,
     "    case Phase::kExpected:\n    case Phase::kServing:\n    case Phase::kDrain:\n      return state.timer_ms;\n",
     "    case Phase::kExpected:\n      break;\n    case Phase::kServing:\n    case Phase::kDrain:\n"
     "      return state.timer_ms;\n"),
    ("a claim without an answer waits for ever", DECODE,
     "    case Phase::kClaiming:\n    case Phase::kReceiving:\n    case Phase::kFallback:\n",
     "    case Phase::kClaiming:\n      break;\n    case Phase::kReceiving:\n    case Phase::kFallback:\n"),
    ("a handoff that ends keeps its pins", PREFILL,
     "  if (state_.is_pinned) act(Do::kUnpinAll);\n", ""),
    ("a handoff is over while parts are read", PREFILL, "  if (!is_reading()) finish();", "  finish();"),
    ("a newer claim is served beside the earlier one", PREFILL,
     "  state_.num_reading_old += state_.num_reading;\n  state_.num_reading = 0;\n  take_claim();\n",
     "  take_claim();\n"),
    ("credits of what is given up stay", PREFILL,
     "  if (state_.num_credits > 0) act(Do::kDropCredits);\n  state_.num_credits = 0;\n"
     "  state_.is_claimed = false;\n", "  state_.is_claimed = false;\n"),
    ("what was cancelled comes back with a late claim", PREFILL,
     "    if (is_same_peer && event_.attempt <= state_.attempt) return refuse(KvRefusal::kGone);\n", "",
     "const bool is_old = event_.peer == state_.peer && event_.attempt <= state_.attempt;",
     "const bool is_old = false;"),
    ("a request lands without all of its parts", DECODE,
     "  if (!state_.has_final || state_.num_received < state_.num_parts) return;\n",
     "  if (!state_.has_final) return;\n"),
    ("a part that came twice counts twice", DECODE,
     "state_.num_received += event_.is_new ? 1 : 0;", "++state_.num_received;"),
    ("a request that claims again keeps the room that others need", DECODE,
     "if (!is_waiting() || !state_.has_room) return;", "if (!is_in(Phase::kReceiving)) return;"),
    ("another first token changes nothing", DECODE, "if (!event_.agrees) act(Do::kDropBlocks);", ""),
]

if __name__ == "__main__":
    mutants.main(__doc__, "tests/engine/handoff_model_test", MUTATIONS, {})
