#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a chat: packages, build, model, server, one streamed answer; then serves
# until Ctrl-C. --once: ends after the answer. SLUICE_PORT: another port than 8000.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
port="${SLUICE_PORT:-8000}"
once=no
case "${1:-}" in
  "") ;;
  --once) once=yes ;;
  *)
    echo "usage: bash deploy/quickstart.sh [--once]" >&2
    exit 2
    ;;
esac
cache="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
log="$cache/quickstart.log"
url="http://127.0.0.1:$port"
server=""
mkdir -p "$cache"

fail() { # step, remedy
  echo "quickstart.sh: step '$1' failed. $2" >&2
  exit 1
}

# One compiler needs up to 1.5 GB.
build_jobs() {
  local by_memory
  by_memory=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1500000))
  local jobs
  jobs=$(nproc)
  if ((by_memory < jobs)); then jobs=$by_memory; fi
  if ((jobs < 1)); then jobs=1; fi
  echo "$jobs"
}

stop_server() {
  if [[ -n "$server" ]]; then kill -TERM "$server" 2>/dev/null || true; fi
}

wait_for_server() {
  for _ in $(seq 600); do
    kill -0 "$server" 2>/dev/null || return 1
    if grep -q '^serving ' "$log" &&
      curl -s --noproxy '*' -o /dev/null --fail "$url/health"; then
      return 0
    fi
    sleep 0.1
  done
  return 1
}

# Prints the text of an OpenAI event stream as it comes; fails unless the stream ends properly.
print_stream='
import json, sys
done = False
for line in sys.stdin:
    line = line.strip()
    if line == "data: [DONE]":
        done = True
    elif line.startswith("data: "):
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit("the server answered: " + event["error"]["message"])
        for choice in event.get("choices", []):
            print(choice["delta"].get("content") or "", end="", flush=True)
    elif line.startswith("{"):
        sys.exit("the server answered: " + line)
print()
sys.exit(0 if done else "the stream broke off")
'

ask() { # question
  local body
  body="$(python3 -c '
import json, sys
print(json.dumps({"model": sys.argv[1], "stream": True, "max_tokens": 200, "temperature": 0,
                  "messages": [{"role": "user", "content": sys.argv[2]}]}))' "$1" "$2")"
  curl -sS -N --noproxy '*' -H 'Content-Type: application/json' -d "$body" \
    "$url/v1/chat/completions" | python3 -u -c "$print_stream"
}

echo "== 1/5 packages"
bash deploy/install_packages.sh || fail packages "The lines above say what to do."

echo "== 2/5 build"
cmake --preset cpu >"$cache/configure.log" 2>&1 ||
  fail configure "$(tail -n 5 "$cache/configure.log"); all of it is in $cache/configure.log; \
'rm -r build' helps where the folder was copied from elsewhere."
ninja -C build -j "$(build_jobs)" sluice ||
  fail build "The compiler's message is above; with little memory run 'ninja -C build -j1 sluice'."

echo "== 3/5 model"
if model="$(bash deploy/fetch_model.sh)"; then
  echo "$model"
elif [[ $? -eq 3 ]]; then
  model="tests/golden/tiny/tiny-llama.gguf"
  echo "The model could not be downloaded: serving the repository's tiny model instead. Its"
  echo "answers are gibberish; with a network, run this again for a model that talks."
else
  fail model "The lines above say why; 'rm -r $cache' makes it start over."
fi

echo "== 4/5 server"
# A session of its own, so that Ctrl-C reaches it once, through stop_server.
setsid ./build/sluice serve "$model" --host 127.0.0.1 --port "$port" >"$log" 2>&1 &
server=$!
trap stop_server EXIT
trap 'stop_server' INT TERM
if ! wait_for_server; then
  cat "$log" >&2
  fail server "Its output is above; where the port is in use: SLUICE_PORT=8001 bash deploy/quickstart.sh"
fi
cat "$log"

echo "== 5/5 chat"
question="What is a sluice gate? Answer in two sentences."
echo "> $question"
name="$(curl -sS --noproxy '*' "$url/v1/models" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')" ||
  fail chat "GET $url/v1/models did not list a model; the server's output is in $log"
ask "$name" "$question" || fail chat "The server's output is in $log"

if [[ "$once" == yes ]]; then
  stop_server
else
  echo
  echo "Serving $name at $url/v1 until Ctrl-C. Another question:"
  echo "  curl -N $url/v1/chat/completions -H 'Content-Type: application/json' -d \\"
  echo "    '{\"model\": \"$name\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'"
fi
# A signal interrupts `wait`; the server is gone when kill -0 says so.
status=0
while kill -0 "$server" 2>/dev/null; do
  status=0
  wait "$server" || status=$?
done
server=""
exit "$status"
